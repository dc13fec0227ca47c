"""ImageNet files for the scenario of the input pipeline."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.measurement import ENVIRONMENT
from peers.options import Options
from peers.process import ProcessError, run
from peers.programs import CHILDREN

COUNT = 512


@contextmanager
def with_imagenet_files(options: Options) -> Iterator[Options]:
    """Options with a --data_dir where one is needed: generated photographs, removed afterwards.

    Where they cannot be made, the reason goes to standard error and the options stay without.
    """
    if "input" not in options.scenarios or options.data_dir is not None:
        yield options
        return
    with tempfile.TemporaryDirectory(prefix="compare-peers-photos-") as folder:
        out = Path(folder) / "imagenet"
        print(f"input: making {COUNT} photographs", file=sys.stderr, flush=True)
        command = (options.cnnbench_python, str(CHILDREN / "photos.py"), str(out), str(COUNT))
        try:
            run(command, timeout=options.timeout, environment=ENVIRONMENT).require()
            options = dataclasses.replace(options, data_dir=out)
        except (OSError, ProcessError) as error:
            print(f"  failed: {error}", file=sys.stderr, flush=True)
        yield options
