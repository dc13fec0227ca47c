"""Folders among the temporary ones that do not outlive their process for long.

A process that is killed leaves its folder behind with the file of its lock, unlocked; the next
process that makes one removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from cnnbench.base.lock import FolderLock, abandoned

_PREFIX = "cnnbench-"


class Scratch:
    """A new temporary folder, removed when its context is left.

    Attributes:
      path: of the folder; beside other files it holds that of the lock.
      kept: whether it is left to the user instead; then nobody removes it later.

    Args:
      purpose: part of its name.

    Raises:
      OSError: it cannot be made.
    """

    def __init__(self, purpose: str) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        self._lock: FolderLock | None = None
        with contextlib.suppress(OSError):  # no locks there: only a kill leaves it behind
            self._lock = FolderLock(self.path)
        self.kept = False

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()


def remove_abandoned() -> None:
    """Removes the folders of this user whose processes were killed on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # its process has just removed it
            about = folder.lstat()
            own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
            lock = abandoned(folder) if own else None
            if lock is not None:
                with lock:
                    shutil.rmtree(folder, ignore_errors=True)
