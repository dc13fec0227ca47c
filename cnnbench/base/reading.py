"""Reading of small files that users name, with limits of size and time."""

from __future__ import annotations

import errno
import os
import stat

_MIB = 1 << 20


def read_file(path: str | os.PathLike[str], most: int = 1024) -> bytes:
    """The content of a file, or of a pipe that somebody writes to, such as ``<(command)``.

    Args:
      most: MiB that it may have.

    Raises:
      OSError: it cannot be read, is a device, a pipe that nobody writes to, or too large;
        `strerror` says which.
      ValueError: no path, such as one with a null character.
    """
    # Opening a pipe would wait for a writer otherwise.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "is a device, not a file", path)
        os.set_blocking(descriptor, True)
        parts, size = [], 0
        while part := file.read(_MIB):
            parts.append(part)
            size += len(part)
            if size > most * _MIB:
                raise OSError(errno.EFBIG, f"has more than {most} MiB", path)
    if stat.S_ISFIFO(mode) and not parts:
        raise OSError(errno.EPIPE, "is a pipe that nobody writes to", path)
    return b"".join(parts)
