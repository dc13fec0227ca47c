"""Locks of folders, so that only one process writes to a folder at a time, and temporary folders.

The operating system releases the locks of a process when the process ends. A temporary folder
contains a lock file of a separate kind. If this file is not locked, the process that created the
folder was killed, and the next process that creates a temporary folder removes it.
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
"""Name of the lock file in a folder. The process that writes to the folder locks it."""


LOGS = ".cnnbench-lock-of-logs"
"""Name of the lock file for logs.

A folder of logs may also contain the checkpoints of another writer.
"""


SCRATCH = ".cnnbench-temporary"
"""Name of the lock file in temporary folders. A folder without it is never removed.

`ab` also starts earlier commits in such a folder. Some of them refuse to write to a folder that
contains the file `.cnnbench-scratch`, which was the name of this file.
"""


SCRATCH_OF_PARENT = "CNNBENCH_SCRATCH"
"""Environment variable with the temporary folder in which a child writes for its parent."""


SCRATCH_NAME = re.compile(r"(cnnbench-[a-z]+|unfinished)-[a-z0-9_]{8}")
"""Pattern of the names of temporary folders."""


CHECKOUT = "cnnbench-checkout-"
"""Beginning of the names of temporary folders that contain a git worktree."""


NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Error numbers of file systems that do not support locks."""


_POLL_SECONDS = 0.05


class FolderLock:
    """Keeps other cnnbench processes from writing to a folder. Readers are not affected.

    The lock is an flock on a file that contains the folder's name and the holder: PID, host and
    time. Releasing the lock removes the file. If the holder is killed, the file remains without a
    lock, and the next writer locks it. The first other process that writes to an abandoned
    temporary folder turns it into an ordinary folder, see `keep_temporary_folders`.

    On NFS, locks apply to all machines; the locks of a crashed machine are dropped when its lease
    ends. On other network file systems, locks may apply to one machine only, or may not be
    supported.

    Attributes:
      left_by: the earlier holder, if the lock file names a process on another machine; otherwise
        "". This process was killed, or it still writes because locks do not apply to both machines.

    Args:
      wait_seconds: seconds to wait for a holder that may be about to end.

    Raises:
      BlockingIOError: another process holds the lock; the message names this process.
      OSError: the lock file cannot be locked. If the file system does not support locks, `errno` is
        one of `NO_LOCKS`.
    """

    def __init__(self, folder: str | Path, wait_seconds: float = 0.0, file: str = FILE) -> None:
        if is_url(folder):
            raise OSError(errno.EOPNOTSUPP, "URLs have no locks")
        if file != SCRATCH:
            keep_temporary_folders(folder)
        self._path = Path(folder) / file
        self._descriptor = self._open_locked(time.monotonic() + wait_seconds)
        host = socket.gethostname()
        left, where, _ = _read_lock_file(self._descriptor)
        self.left_by = left if where != host else ""
        now = datetime.now(timezone.utc)
        about = {"pid": os.getpid(), "host": host, "since": f"{now:%Y-%m-%d %H:%M:%S} UTC"}
        about["folder"] = self._path.parent.name
        # Even if nothing can be written into the lock file, for example because the disk is full,
        # the folder is locked.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(about).encode("ascii"), 0)

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Releases the lock."""
        # The folder may have been moved and created anew, so the lock file is removed only if it is
        # still this one.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), os.stat(self._path)):
                # The file is removed before its lock is released, so that the next writer creates a
                # new file.
                self._path.unlink()
        os.close(self._descriptor)

    def _open_locked(self, deadline: float) -> int:
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                # All users who can write to the folder must be able to lock the file, so it gets
                # the folder's permissions.
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, stat.S_IMODE(self._path.parent.stat().st_mode) & 0o666)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    return descriptor
            except FileNotFoundError:
                # Between opening and locking, the previous holder has removed the file, so this
                # process tries again.
                pass
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    reason = self._refusal_text(descriptor)
                    os.close(descriptor)
                    raise BlockingIOError(error.errno, reason) from None
                time.sleep(_POLL_SECONDS)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _refusal_text(self, descriptor: int) -> str:
        holder, host, _ = _read_lock_file(descriptor)
        reason = "another process is writing there"
        if not holder:
            return reason
        if host != socket.gethostname():
            holder += f"; if that machine is down, remove {self._path}"
        return f"{reason}: {holder}"


def lock_folder(
    flag: str,
    folder: str,
    warn: Callable[[str], None],
    wait_seconds: float = 0.0,
    file: str = FILE,
) -> contextlib.AbstractContextManager[object]:
    """Locks a folder, the value of a flag, if the file system supports locks.

    `warn` is called with a line of text if the lock may not exclude all writers. `wait_seconds` and
    `file` are passed to `FolderLock`. FlagError if another process holds the lock or the folder
    cannot be used.
    """
    try:
        lock = FolderLock(folder, wait_seconds, file)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise FlagError(flag, folder, error.strerror or str(error)) from None
        why = f"cannot be locked ({error.strerror}); let no other process write there"
        warn(f"--{flag}={folder}: {why}")
        return contextlib.nullcontext()
    if lock.left_by:
        why = (
            f"was not released by {lock.left_by}; if that still runs, end one of the two processes"
        )
        warn(f"--{flag}={folder}: {why}")
    return lock


def keep_temporary_folders(path: str | Path) -> None:
    """Converts abandoned temporary folders to ordinary folders, which are never removed
    automatically: all such folders that are parents of `path`, or `path` itself.

    BlockingIOError if the process that created the folder is still running, because it will remove
    the folder. The folder in `SCRATCH_OF_PARENT` is left unchanged, and so is a `CHECKOUT` in use,
    because programs may write to the worktree in which they are measured.
    """
    ours = os.environ.get(SCRATCH_OF_PARENT)
    real = Path(os.path.realpath(path))
    for folder in (real, *real.parents):
        if os.path.lexists(folder / SCRATCH) and str(folder) != ours:
            try:
                FolderLock(folder, file=SCRATCH).release()
            except BlockingIOError:
                if not folder.name.startswith(CHECKOUT):
                    raise


def _read_lock_file(descriptor: int) -> tuple[str, str, str]:
    """Reads a lock file. Returns a text that describes the process that holds the lock (PID, host
    and time), the host, and the name of the locked folder.

    All three are "" if the content of the lock file is not valid.
    """
    try:
        about = json.loads(os.pread(descriptor, 4096, 0))
        holder = f"pid {about['pid']} on {about['host']} since {about['since']}"
        return holder, str(about["host"]), str(about.get("folder"))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return "", "", ""


class TemporaryFolder:
    """Context manager that creates a temporary folder, `path`, and removes it at the end.

    The folder remains if `kept` is set.

    The folder also contains a lock file. Raises OSError if the folder cannot be created.

    Args:
      prefix: the beginning of the folder's name, see `SCRATCH_NAME`.
      parent: where to create the folder; by default, the system's folder for temporary files.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock: FolderLock | None = None
        # Some file systems do not support locks; then the folder stays unlocked.
        with contextlib.suppress(OSError):
            self._lock = FolderLock(self.path, file=SCRATCH)
        self.kept = False

    def __enter__(self) -> TemporaryFolder:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()


def remove_abandoned(parent: Path) -> None:
    """Removes temporary folders in `parent` that killed processes of this user on this machine have
    left behind.
    """
    for folder in parent.iterdir():
        remove_if_abandoned(folder)


def remove_if_abandoned(folder: Path) -> None:
    """Removes a temporary folder that a killed process of this user on this machine has left.

    The folder is removed if its name matches `SCRATCH_NAME` and it contains an unlocked file
    `SCRATCH` with the names of the folder and of this machine. Copies, links, and folders that were
    kept or claimed do not fulfil these conditions.
    """
    if not SCRATCH_NAME.fullmatch(folder.name):
        return
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return
        # FolderLock would create a lock file that is missing, so it is not used here. An empty lock
        # file is ignored, because its creator may be about to lock it and write to it.
        file = os.open(folder / SCRATCH, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        stack.callback(os.close, file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made = _read_lock_file(file)[1:] == (socket.gethostname(), folder.name)
        if made and os.fstat(file).st_nlink:
            shutil.rmtree(folder, ignore_errors=True)
