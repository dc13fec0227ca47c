"""Command lines of a job's processes, and how a job ends, with processes that never start."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden import sentences

from cnnbench.base.job import Task
from cnnbench.campaigns import launch
from cnnbench.campaigns.launch import (
    JobLayout,
    JobSession,
    check_job_flags,
    check_output_files,
    divide_cores,
    flags_to_arguments,
    gpu_environment_variables,
    parse_task_command,
    plan_chief,
    resolve_run,
    run_command_words,
    task_flags,
)
from cnnbench.campaigns.processes.child import Command, ProcessResult
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.flags import Params, parse_args

CPU = ("--model=trivial", "--device=cpu", "--batch_size=4")


def test_a_layout_has_the_flags_that_start_it() -> None:
    assert JobLayout().flags == ("--workers=1",)
    whole = JobLayout(workers=2, ps=1, controller=True, options=("--affinity",))
    assert whole.flags == ("--workers=2", "--ps=1", "--controller", "--affinity")
    assert (whole.size, JobLayout(workers=3).size) == (4, 3)
    assert run_command_words(whole, CPU) == ("launch", *whole.flags, "--", *CPU)
    assert run_command_words(None, CPU) == ("run", *CPU)


@pytest.mark.parametrize(
    ("mode", "controller"), [("replicated", False), ("parameter_server_strategy", True)]
)
def test_a_mode_that_needs_a_controller_gets_one(mode: str, controller: bool) -> None:
    run = parse_args([*CPU, f"--variable_update={mode}"])
    assert JobLayout().with_needed_controller(run).controller is controller
    assert JobLayout(controller=True).with_needed_controller(run).controller


def test_processes_of_a_job_get_their_ports_in_order() -> None:
    job = JobLayout(workers=2, ps=1, controller=True).make_job((1001, 1002, 1003, 1004))
    assert job.task == Task("controller")
    assert job.worker_addresses == ("localhost:1001", "localhost:1002")
    assert (job.ps_addresses, job.controller_address) == (("localhost:1003",), "localhost:1004")
    assert task_flags(replace(job, task=Task("worker", 1)), 2) == {
        **{"worker_hosts": "localhost:1001,localhost:1002", "ps_hosts": "localhost:1003"},
        **{"controller_host": "localhost:1004", "job_name": "worker", "task_index": 1},
        "num_gpus": 2,
    }
    alone = JobLayout(workers=2).make_job((1001, 1002))
    assert (alone.task, alone.controller_address) == (Task("worker"), None)
    assert task_flags(alone, None) == {
        **{"worker_hosts": "localhost:1001,localhost:1002", "job_name": "worker"},
        "task_index": 0,
    }


def test_the_command_line_of_a_process() -> None:
    command = parse_task_command(["--model=lenet", "--batch_size=4"])
    job = JobLayout(workers=2).make_job((1001, 1002))
    words = command.task_command_line(replace(job, task=Task("worker", 1)), 3, result_json="r")
    own = ("--task_index=1", "--num_gpus=3")
    assert words[-len(own) :] == own
    at = words.index("run")
    assert words[at : at + 4] == ("run", "--model=lenet", "--batch_size=4", "--result_json=r")
    assert parse_task_command(["allreduce", "--sizes=1K"])[:2] == ("allreduce", ("--sizes=1K",))


def test_a_single_process_of_a_job_communicates_with_no_other() -> None:
    words = [*CPU, "--variable_update=distributed_all_reduce", "--all_reduce_spec=xring"]
    found = parse_task_command([*words, "--num_gpus=1", "--xla"]).single_process_flags(2)
    assert {*found} == {*CPU, "--xla=true", "--variable_update=independent", "--num_gpus=2"}


def test_flags_become_arguments() -> None:
    assert flags_to_arguments({"a": True, "b": False, "c": 1, "d": "x y"}) == (
        *("--a", "--b=False", "--c=1", "--d=x y"),
    )


JOB = JobLayout(workers=2)
OF_JOB = (*CPU, "--variable_update=collective_all_reduce")


def test_the_plan_of_a_job_is_that_of_its_chief() -> None:
    plan = check_job_flags(JOB, parse_task_command(OF_JOB), 2)
    assert (plan.params.num_gpus, plan.length.global_batch) == (2, 16)
    assert (plan.params.job_name, plan.params.task_index) == ("worker", 0)
    alone = plan_chief(parse_args(CPU), None)
    assert not alone.params.worker_hosts
    assert resolve_run(parse_args(OF_JOB), JOB).global_batch == 8
    assert resolve_run(parse_args(CPU)).global_batch == 4


@pytest.mark.parametrize(
    ("layout", "words", "towers", "flag", "value"),
    [
        (JOB, (*OF_JOB, "--job_name=worker"), None, "job_name", "worker"),
        (JOB, (*OF_JOB, "--num_gpus=2"), 1, "num_gpus", 2),
        (JOB, (*CPU, "--variable_update=parameter_server"), None, "ps", 0),
        (JobLayout(workers=2, ps=1), OF_JOB, None, "ps", 1),
        (JOB, OF_JOB, 0, "towers", 0),
        (JobLayout(workers=2, ps=1), ("allreduce", "--device=cpu"), None, "ps", 1),
        (JOB, ("allreduce", "--device=cpu", "--num_gpus=2"), 1, "num_gpus", (2,)),
    ],
)
def test_flags_of_a_job_that_cannot_be(
    layout: JobLayout, words: tuple[str, ...], towers: int | None, flag: str, value: object
) -> None:
    with pytest.raises(FlagError) as refused:
        check_job_flags(layout, parse_task_command(words), towers)
    assert (refused.value.flag, refused.value.value) == (flag, value)


def test_an_all_reduce_has_a_plan_of_its_chief(tmp_path: Path) -> None:
    words = ("allreduce", "--device=cpu", "--sizes=1K", f"--result_json={tmp_path}/a/b.json")
    command = parse_task_command(words)
    plan = check_job_flags(JOB, command, 3)
    assert plan.params.num_gpus == 3
    with pytest.raises(FlagError, match="--result_json="):
        check_output_files(command, plan)
    assert check_output_files(parse_task_command(words[:-1]), plan) is None


def test_processors_are_divided(cpus: Callable[..., None]) -> None:
    cpus({8, 1, 2, 3, 9})
    assert divide_cores(2) == [{1, 2}, {3, 8, 9}]
    assert divide_cores(5) == [{1}, {2}, {3}, {8}, {9}]
    cpus({3})
    assert divide_cores(1) == [{3}]
    with pytest.raises(FlagError, match=r"--affinity=true: 1 CPU .* 2 processes"):
        divide_cores(2)


@pytest.mark.parametrize(
    ("task", "flags", "visible", "share"),
    [
        (Task("worker", 1), {"num_gpus": 2}, "4,5,6,7", {"CUDA_VISIBLE_DEVICES": "6,7"}),
        (Task("worker", 0), {"num_gpus": 2}, "4,5,6", {}),  # too few for both
        (Task("worker", 0), {"num_gpus": 2, "device": "cpu"}, "4,5,6,7", {}),
        (Task("worker", 0), {"num_gpus": 2, "gpu_indices": "1,0"}, "4,5,6,7", {}),
        (Task("ps", 0), {"num_gpus": 2}, "4,5,6,7", {}),
        (Task("worker", 0), {}, "GPU-a,GPU-b", {"CUDA_VISIBLE_DEVICES": "GPU-a"}),
        (Task("worker", 0), {"num_gpus": 2}, "", {}),
    ],
)
def test_workers_share_the_gpus(
    monkeypatch: pytest.MonkeyPatch,
    task: Task,
    flags: Mapping[str, Any],
    visible: str,
    share: Mapping[str, str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    job = JobLayout(workers=2, ps=1).make_job((1, 2, 3))
    params = Params.from_dict({"device": "gpu", **flags})
    assert gpu_environment_variables(replace(job, task=task), params) == share


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
            assert command.environment == {"TASK": command.words[0]}
            made.append(Standing(command.log, results[len(made)]))
            if said is not None:
                command.log.write_text(f"{said}\n")
            return made[-1]

        def stop(children: list[Standing], announce: object, seconds: float | None) -> list[Any]:
            order.extend(f"{child.log.stem}" for child in children)
            for child in children:
                child.ended = ProcessResult(-9, 1.0, timed_out=True)
            return [child.ended for child in children]

        monkeypatch.setattr(launch, "start_command", start)
        monkeypatch.setattr(launch, "stop_children", stop)
        monkeypatch.setattr(launch.sys.stdout, "fileno", lambda: 1, raising=False)
        lines: list[str] = []
        job = JobSession(
            job=JobLayout(workers=2, ps=1).make_job((1, 2, 3)),
            command=lambda seen: [str(seen.task)],
            variables=lambda seen: {"TASK": str(seen.task)},
            logs=tmp_path,
            show=lines.append,
            spares=lambda task, state: task.job in spared,
        )
        return job.run(), lines, order

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
    assert ("worker:0", "worker:1", "ps:0")[at] in failed
    sentence, _, log = failed.rpartition("; ")
    assert log.endswith(".log")
    sentences(Path(__file__).parent / "golden" / "launch.txt", {name: sentence}, FAILED)


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
    limits(launch, **{**times, limit: 0.0})
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
    limits(launch, AFTER_SUCCESS=0.0)
    _, _, stopped = session(OK, None, None)
    assert stopped == ["worker-1", "ps-0"]
    assert sent == [signal.SIGCONT] * 2


def test_a_log_that_is_gone(session: Callable[..., Any]) -> None:
    with pytest.raises(BenchmarkError, match=r"worker-0\.log: No such file"):
        session(OK, OK, OK, said=None)
