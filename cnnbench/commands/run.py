"""``cnnbench [run] FLAGS``: one benchmark run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cnnbench.commands import interrupt_on_signals
from cnnbench.driver.console import Console
from cnnbench.errors import ExitCode
from cnnbench.flags import parse_args
from cnnbench.flags.cluster import settled
from cnnbench.runtime.supervisor import supervised
from cnnbench.text.progress import Messages, Progress


def main(argv: Sequence[str]) -> int:
    """Runs what the flags say.

    Args:
      argv: the flags, without the name of the command.

    Returns:
      The exit code of a run that has succeeded; every other way out is an exception
      that cnnbench.cli turns into a line and an exit code.
    """
    parsed = parse_args(argv)
    progress = Progress(sys.stderr, parsed.params.progress)
    messages = Messages(sys.stderr, progress)
    for notice in parsed.notices:
        messages.notice(notice)
    interrupt_on_signals()
    params = settled(parsed.params, os.environ, messages.notice)
    # Imported late: parsing and refusing flags must not wait for it.
    from cnnbench.driver.benchmark_cnn import BenchmarkCNN

    benchmark = BenchmarkCNN(
        params,
        command=["cnnbench", *argv],
        explicit_flags=parsed.explicit_flags,
        console=Console(sys.stdout, progress.clear),
        messages=messages,
        progress=progress,
    )
    supervised(benchmark.lost)
    benchmark.run()
    return ExitCode.OK
