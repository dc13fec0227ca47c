"""Real jobs: every task a process of its own, all of them gone at the end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forked import Forked, cnnbench

from cnnbench.base.job import Job
from cnnbench.base.ports import ReservedPorts
from cnnbench.campaigns.launch import JobLayout

SECONDS = 150.0
"""In which every job of a test ends; most take ten."""


class Tasks:
    """The running tasks of a job.

    Attributes:
      job: its description.
      folder: of what the tasks print: NAME.out and NAME.err.
      program: what they run, see `Forked`.
      processes: by name of the task, as "worker:1".
    """

    def __init__(self, job: Job, folder: Path, program: Callable[[], object] = cnnbench) -> None:
        self.job = job
        self.folder = folder
        self.program = program
        self.processes: dict[str, Forked] = {}

    def start(self, name: str, flags: Sequence[str]) -> None:
        """Starts a task; its number is that of the description."""
        own_folder = self.folder / name  # the working directory
        own_folder.mkdir(exist_ok=True)
        kind, index = name.split(":")
        hosts = [
            f"--{job}_hosts={','.join(self.job.addresses_of(job))}" for job in ("worker", "ps")
        ]
        hosts += [f"--controller_host={self.job.controller_address or ''}"]
        own = [f"--job_name={kind}", f"--task_index={index}"]
        given = [flag for flag in (*hosts, *own) if not flag.endswith("=")]
        self.processes[name] = Forked(
            self.program,
            [*flags, *given],
            self.folder / f"{name}.out",
            self.folder / f"{name}.err",
            own_folder,
        )

    def wait(self) -> dict[str, int]:
        """The exit codes by name, once all have ended."""
        return {name: one.wait(SECONDS) for name, one in self.processes.items()}

    def printed(self, name: str, stream: str = "out") -> str:
        """What a task has printed so far, on "out" or "err"."""
        return (self.folder / f"{name}.{stream}").read_text()

    def wait_for(self, name: str, text: str, stream: str = "out", seen: int = 0) -> None:
        """Waits until a task that has to live prints a text, behind so many characters."""
        deadline = time.monotonic() + SECONDS
        while text not in self.printed(name, stream)[seen:]:
            assert self.processes[name].poll() is None, self.errors()
            assert time.monotonic() < deadline, self.errors()
            time.sleep(0.05)

    def errors(self) -> str:
        """Standard error of all, for messages of failed tests."""
        return "\n".join(f"{name}: {self.printed(name, 'err')}" for name in self.processes)


@contextlib.contextmanager
def started(
    folder: Path,
    flags: Sequence[str],
    order: Sequence[str],
    *,
    controller: bool = False,
    chief_flags: Sequence[str] = (),
    ps_flags: Sequence[str] | None = None,
    program: Callable[[], object] = cnnbench,
) -> Iterator[Tasks]:
    """Starts a job on free ports of this machine; kills what is left of it.

    Args:
      folder: of logs.
      flags: of every task.
      order: names of the tasks, in the order in which they start.
      controller: whether one of them is the controller.
      chief_flags: only of the chief, such as where the record goes.
      ps_flags: those of ps tasks, if not `flags`.
      program: see `Tasks`.
    """
    layout = JobLayout(
        workers=sum(name.startswith("worker") for name in order),
        ps=sum(name.startswith("ps") for name in order),
        controller=controller,
    )
    with ReservedPorts(layout.size) as ports:
        tasks = Tasks(layout.make_job(ports.numbers), folder, program)
        try:
            for name in order:
                chief = name == str(tasks.job.chief)
                bare = name.startswith("ps") and ps_flags is not None
                tasks.start(name, [*(ps_flags if bare else flags), *(chief_flags if chief else ())])
            yield tasks
        finally:
            for process in tasks.processes.values():
                process.kill()
                process.wait()


def record_of(
    folder: Path, flags: Mapping[str, Any], order: Sequence[str], **of: Any
) -> dict[str, Any]:
    """Runs a job to its end and returns the chief's record.

    Every task must end with 0, and only the chief may print on standard output.
    """
    path = folder / "record.json"
    texts = [f"--{name}={value}" for name, value in flags.items()]
    chief_flags = [f"--result_json={path}"]
    with started(folder, texts, order, chief_flags=chief_flags, **of) as tasks:
        codes = tasks.wait()
        assert set(codes.values()) == {0}, (codes, tasks.errors())
        chief = str(tasks.job.chief)
        assert [name for name in order if tasks.printed(name)] == [chief]
    record: dict[str, Any] = json.loads(path.read_text())
    return record
