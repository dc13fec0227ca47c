"""How a chief tells the processes that serve it that the run is over, and how it ended.

TensorFlow's server neither ends by itself nor hears anything but operations. So the chief has it
write a file, on the machine of the server and by the server's own process, in a folder that
only this server's user can write to.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cnnbench.errors import BenchmarkError, ExitCode
from cnnbench.runtime.job import Job, Task, host_and_port


class Ending(NamedTuple):
    """How a run ended: an exit code, and a reason if it is not 0."""

    code: int
    reason: str = ""

    def text(self) -> str:
        """One line; a reader knows by its end that it is complete."""
        return json.dumps(self._asdict()) + "\n"


def path_of(job: Job, task: Task) -> str:
    """The file in which a server finds the ending; the same for both sides."""
    port = host_and_port(job.address(task))[1]
    return f"/tmp/cnnbench-{task.job}-{task.index}-{port}/ending"


@contextlib.contextmanager
def mailbox(job: Job) -> Iterator[Path]:
    """The path of this server's file; its folder is made for it, and removed.

    Raises:
      BenchmarkError: a folder of that name belongs to somebody else.
    """
    path = Path(path_of(job, job.task))
    folder = path.parent
    try:
        # What a run left behind that was killed; nothing but a folder of our own is removed.
        if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.getuid()):
            raise FileExistsError(f"{folder} belongs to another user")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise BenchmarkError(f"{job.task} cannot make {folder}: {error}") from error
    try:
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read(path: Path) -> Ending | None:
    """The ending; None as long as it is not there, or only in part."""
    try:
        text = path.read_text(encoding="utf-8")
        return Ending(**json.loads(text)) if text.endswith("\n") else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        return Ending(int(ExitCode.FAILED), f"{path} cannot be read: {error}")
