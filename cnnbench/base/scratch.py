"""Temporary folders, removed even after their process was killed.

The folder of a killed process is recognised by its unlocked lock file, and removed by the next
process that makes one.
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
    """A new temporary folder, `path`, removed when its context is left unless `kept` is set.

    OSError if it cannot be made. The folder also contains the file of its lock.
    """

    def __init__(self, purpose: str) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        self._lock: FolderLock | None = None
        with contextlib.suppress(OSError):  # no locks on this file system
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
