"""How the processes of a job end, with processes that never start.

Tests cnnbench/campaigns/job_session.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden import sentences

from cnnbench.campaigns import job_session as module
from cnnbench.campaigns.job_session import JobSession
from cnnbench.campaigns.launch import JobLayout
from cnnbench.campaigns.processes.child import Command, ProcessResult
from cnnbench.errors import BenchmarkError
from cnnbench.run.runtime.supervisor import GUARDED

TASKS = ("worker:0", "worker:1", "ps:0")


class Standing:
    """A process that never started: it has ended if its result is known.

    Its descriptor can be read then, as that of a child's guard can.
    """

    def __init__(self, log: Path, result: ProcessResult | None) -> None:
        self.log, self.result = log, result
        self.ended: ProcessResult | None = None
        self.signals: list[int] = []
        self._read, write = os.pipe()
        if result is not None:
            os.close(write)

    def __enter__(self) -> Standing:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read)

    def fileno(self) -> int:
        return self._read

    def wait(self, timeout: float) -> ProcessResult | None:
        self.ended = self.result
        return self.ended

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """session(RESULT, ...): exit code of a job of two workers and a ps, its lines and processes."""
    made: list[Standing] = []
    order: list[str] = []

    def session(
        *results: ProcessResult | None, said: str | None = "", spared: tuple[str, ...] = ()
    ) -> tuple[int, list[str], list[str]]:
        def start(command: Command, stdout: int | None = None) -> Standing:
            assert (stdout is not None) == (not made)  # that of the chief is passed through
            assert command.words == (TASKS[len(made)], 2)
            assert command.environment == {GUARDED: ""}
            made.append(Standing(command.log, results[len(made)]))
            if said is not None:
                command.log.write_text(f"{said}\n")
            return made[-1]

        def stop(children: list[Standing], announce: object, seconds: float | None) -> list[Any]:
            order.extend(f"{child.log.stem}" for child in children)
            for child in children:
                child.ended = ProcessResult(-9, 1.0, timed_out=True)
            return [child.ended for child in children]

        monkeypatch.setattr(module, "Child", start)
        monkeypatch.setattr(module, "stop_children", stop)
        monkeypatch.setattr(module.sys.stdout, "fileno", lambda: 1, raising=False)
        lines: list[str] = []
        place = SimpleNamespace(tolerates_loss_of=lambda task, ended: task.job in spared)
        made_up: Any = SimpleNamespace(params=SimpleNamespace(device="cpu"), place=place)
        command: Any = SimpleNamespace(
            task_command_line=lambda job, towers: (str(job.task), towers)
        )
        job = JobSession(
            layout=JobLayout(workers=2, ps=1),
            command=command,
            towers=2,
            chief=made_up,
            show=lines.append,
        )
        return job.run(tmp_path), lines, order

    return session


OK = ProcessResult(0, 1.0)


def test_a_job_whose_processes_end_well(session: Callable[..., Any]) -> None:
    code, lines, stopped = session(OK, OK, OK, said="hello")
    assert (code, stopped) == (0, [])
    assert sorted(lines) == ["[ps:0] hello", "[worker:0] hello", "[worker:1] hello"]


def test_output_is_shown_in_whole_lines(
    session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = iter((b"first\nsec", b"ond", b" line\r\n", b" 10 %\r 20 %\n", b"la", b"st"))

    def wait(self: Standing, timeout: float) -> ProcessResult | None:
        part = next(parts, b"") if self.log.stem == "worker-1" else b""
        with open(self.log, "ab") as log:
            log.write(part)
        self.ended = None if part else self.result
        return self.ended

    monkeypatch.setattr(Standing, "wait", wait)
    code, lines, _ = session(OK, OK, OK)
    assert code == 0
    assert lines == [f"[worker:1] {line}" for line in ("first", "second line", "20 %", "last")]


# The chief's own exit code counts.
FAILED: dict[str, tuple[tuple[ProcessResult, ...], int]] = {
    "the chief exits": ((ProcessResult(3, 1.0), OK, OK), 3),
    "a worker exits": ((OK, ProcessResult(3, 1.0), OK), 4),
    "a ps is ended": ((OK, OK, ProcessResult(-15, 1.0)), 4),
    "the chief is killed": ((ProcessResult(-9, 1.0), OK, OK), 4),
    "the chief's guard is killed": ((ProcessResult(None, 1.0), OK, OK), 4),
    "the chief is not started": ((ProcessResult(None, 1.0, error="no program"), OK, OK), 4),
    "a ps does not end": ((OK, OK, ProcessResult(-9, 1.0, timed_out=True)), 4),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_process_of_a_job_that_fails(session: Callable[..., Any], name: str) -> None:
    results, code = FAILED[name]
    found, lines, stopped = session(*results)
    assert (found, stopped) == (code, [])
    (failed,) = (line for line in lines if "error: " in line)
    at = next(at for at, result in enumerate(results) if result is not OK)
    assert TASKS[at] in failed
    sentence, _, log = failed.rpartition("; ")
    assert log.endswith(".log")
    sentences(Path(__file__).parent / "golden" / "job.txt", {name: sentence}, FAILED)


@pytest.mark.parametrize(
    ("results", "code"),
    [((OK, OK, ProcessResult(1, 1.0)), 0), ((OK, ProcessResult(1, 1.0), OK), 4)],
)
def test_a_task_that_a_job_can_spare_may_fail(
    session: Callable[..., Any], results: tuple[ProcessResult, ...], code: int
) -> None:
    assert session(*results, spared=("ps",))[0] == code


@pytest.mark.parametrize(
    ("results", "limit", "code"),
    [
        ((OK, None, OK), "AFTER_SUCCESS", 4),
        ((ProcessResult(3, 1.0), None, OK), "AFTER_FAILURE", 4),  # stopped, not failed by itself
        ((None, ProcessResult(3, 1.0), OK), "AFTER_LOSS", 4),
    ],
)
def test_processes_that_run_on_are_stopped_the_chief_first(
    session: Callable[..., Any],
    limits: Callable[..., None],
    results: tuple[ProcessResult | None, ...],
    limit: str,
    code: int,
) -> None:
    times = {"AFTER_SUCCESS": 60.0, "AFTER_FAILURE": 60.0, "AFTER_LOSS": 60.0}
    limits(module, **{**times, limit: 0.0})
    found, lines, stopped = session(*results)
    assert found == code
    assert stopped == [f"worker-{at}" for at in range(2) if results[at] is None]
    for task in (name.replace("-", ":") for name in stopped):
        assert any(f"error: {task} " in line for line in lines)


def test_suspended_processes_go_on_before_they_are_stopped(
    session: Callable[..., Any], limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(Standing, "send_signal", lambda self, number: sent.append(number))
    limits(module, AFTER_SUCCESS=0.0)
    _, _, stopped = session(OK, None, None)
    assert stopped == ["worker-1", "ps-0"]
    assert sent == [signal.SIGCONT] * 2


def test_a_log_that_is_gone(session: Callable[..., Any]) -> None:
    with pytest.raises(BenchmarkError, match=r"worker-0\.log: No such file"):
        session(OK, OK, OK, said=None)
