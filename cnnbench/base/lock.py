"""Locks that give a folder one writer, and temporary folders.

The system releases a lock when its process ends. So the temporary folder of a killed process is
recognised by its own kind of lock file, unlocked, and removed by the next process that makes one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from cnnbench.base.urls import is_url
from cnnbench.errors import FlagError

FILE = ".cnnbench-lock"
"""The file in a folder that its writer locks."""

LOGS = ".cnnbench-lock-of-logs"
"""The same for logs, which may be beside the files of another writer, such as checkpoints."""

SCRATCH = ".cnnbench-scratch"
"""The same for temporary folders. Only these have it: a folder without it is never removed."""

SCRATCH_OF_PARENT = "CNNBENCH_SCRATCH"
"""Variable with the temporary folder in which a process writes for its parent, which lives."""

SCRATCH_NAME = re.compile(r"(cnnbench-[a-z]+|unfinished)-[a-z0-9_]{8}")
"""Names of temporary folders."""

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems that have no locks."""

_POLL_SECONDS = 0.05


class FolderLock:
    """Excludes other writers of cnnbench from a folder; readers are not affected.

    An flock on a file that names the folder and the holder: process number, host and time. The file
    is removed on release. A killed process leaves it unlocked, and the next writer takes it over;
    a temporary folder becomes an ordinary one by its first writer, see `claim`. NFS passes such
    locks between machines, and drops those of a lost machine when its lease ends; other network
    file systems may keep them to one machine or have none.

    Attributes:
      left_by: holder on another machine that the file names: it was killed there, or still writes
        because locks do not reach it; "" for none.

    Args:
      patience: seconds to wait for a holder that may be about to end.

    Raises:
      BlockingIOError: another process holds it; the message names that one.
      OSError: it cannot be locked; `errno` is one of `NO_LOCKS` where no file there can.
    """

    def __init__(self, folder: str | Path, patience: float = 0.0, file: str = FILE) -> None:
        if is_url(folder):
            raise OSError(errno.EOPNOTSUPP, "URLs have no locks")
        if file != SCRATCH:
            claim(folder)
        self._path = Path(folder) / file
        self._descriptor = self._locked(time.monotonic() + patience)
        host = socket.gethostname()
        left, where, _ = _holder(self._descriptor)
        self.left_by = left if where != host else ""
        now = datetime.now(timezone.utc)
        about = {"pid": os.getpid(), "host": host, "since": f"{now:%Y-%m-%d %H:%M:%S} UTC"}
        about["folder"] = self._path.parent.name
        with contextlib.suppress(OSError):  # such as a full disk; the lock holds anyway
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(about).encode("ascii"), 0)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Releases the lock."""
        with contextlib.suppress(OSError):  # another folder may have taken the path
            if os.path.samestat(os.fstat(self._descriptor), os.stat(self._path)):
                self._path.unlink()  # still locked; the next writer creates a new file
        os.close(self._descriptor)

    def _locked(self, deadline: float) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                with contextlib.suppress(OSError):  # for all who can write to the folder
                    os.fchmod(descriptor, stat.S_IMODE(self._path.parent.stat().st_mode) & 0o666)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    return descriptor
            except FileNotFoundError:
                pass  # removed by its holder between the opening and the lock
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    reason = self._refusal(descriptor)
                    os.close(descriptor)
                    raise BlockingIOError(error.errno, reason) from None
                time.sleep(_POLL_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _refusal(self, descriptor: int) -> str:
        holder, host, _ = _holder(descriptor)
        reason = "another process is writing there"
        if not holder:
            return reason
        if host != socket.gethostname():
            holder += f"; if that machine is down, remove {self._path}"
        return f"{reason}: {holder}"


def hold(
    flag: str,
    folder: str,
    warn: Callable[[str], None],
    patience: float = 0.0,
    file: str = FILE,
) -> contextlib.AbstractContextManager[object]:
    """Locks the folder of a flag for this process, as far as its file system supports locks.

    `warn` gets a line about locks that may not reach all writers; `patience` and `file` are those
    of `FolderLock`. FlagError if another process holds the lock or the folder cannot be used.
    """
    try:
        lock = FolderLock(folder, patience, file)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise FlagError(flag, folder, error.strerror or str(error)) from None
        why = f"cannot be locked ({error.strerror}); let no other process write there"
        warn(f"--{flag}={folder}: {why}")
        return contextlib.nullcontext()
    if lock.left_by:
        why = f"was not released by {lock.left_by}; if that still runs, end one of the two"
        warn(f"--{flag}={folder}: {why}")
    return lock


def claim(path: str | Path) -> None:
    """Makes temporary folders of killed processes that contain a path ordinary ones, which stay.

    BlockingIOError if the process of one lives and will remove it; see `SCRATCH_OF_PARENT`.
    """
    ours = os.environ.get(SCRATCH_OF_PARENT)
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        if os.path.lexists(folder / SCRATCH) and str(folder) != ours:
            FolderLock(folder, file=SCRATCH).release()


def _holder(descriptor: int) -> tuple[str, str, str]:
    """Description and host of the process that a lock file names, and its folder; empty if none."""
    try:
        about = json.loads(os.pread(descriptor, 4096, 0))
        holder = f"pid {about['pid']} on {about['host']} since {about['since']}"
        return holder, str(about["host"]), str(about.get("folder"))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "", "", ""


class Scratch:
    """A new temporary folder, `path`, removed when its context is left unless `kept` is set.

    OSError if it cannot be made. The folder also contains the file of its lock.

    Args:
      prefix: the beginning of its name, see `SCRATCH_NAME`.
      parent: the folder for it; by default that of temporary files.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock: FolderLock | None = None
        with contextlib.suppress(OSError):  # no locks on this file system
            self._lock = FolderLock(self.path, file=SCRATCH)
        self.kept = False

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()


def remove_abandoned(parent: Path) -> None:
    """Removes temporary folders of this user whose processes were killed on this machine.

    Such a folder has a name that `Scratch` gives, and a file `SCRATCH` that names it and this
    machine and is not locked; a copy, a link, or a folder that was kept or claimed has not.
    """
    for folder in parent.iterdir():
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            about = folder.lstat()
            own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
            if not (own and SCRATCH_NAME.fullmatch(folder.name)):
                continue
            # Not made here, unlike that of a FolderLock; empty if it was made and not yet locked.
            file = os.open(folder / SCRATCH, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            made = _holder(file)[1:] == (socket.gethostname(), folder.name)
            if made and os.fstat(file).st_nlink:
                shutil.rmtree(folder, ignore_errors=True)
