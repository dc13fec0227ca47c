"""What one process of pytest makes for all of them.

pytest-xdist may deal out the tests of a file to several processes, each of which makes the fixtures
of the file anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def made_once(
    temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]
) -> tuple[Path, Any]:
    """A folder and what `make` returned for it, called by the process that asks first.

    Args:
      temporary: the fixture `tmp_path_factory`.
      name: of what is made, unlike any other.
      make: fills a folder; what it returns can be written as JSON.
    """
    base = temporary.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = common / f"{name}.json"
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder = Path(tempfile.mkdtemp(prefix=name, dir=common))
            made.write_text(json.dumps([str(folder), make(folder)]))
    folder, result = json.loads(made.read_text())
    return Path(folder), result
