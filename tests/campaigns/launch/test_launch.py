"""Layouts and command lines of the processes of a job.

Tests cnnbench/campaigns/launch.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cnnbench.base.job import Task
from cnnbench.campaigns.launch import (
    JobLayout,
    check_job_flags,
    check_output_files,
    divide_cores,
    flags_to_arguments,
    gpu_variables,
    parse_task_command,
    plan_chief,
    resolve_run,
    run_command_words,
    task_flags,
)
from cnnbench.errors import FlagError
from cnnbench.flags import Params, parse_args

CPU = ("--model=trivial", "--device=cpu", "--batch_size=4")


def test_a_layout_has_the_flags_that_start_it() -> None:
    assert JobLayout().flags == ("--workers=1",)
    whole = JobLayout(workers=2, ps=1, controller=True)
    assert whole.flags == ("--workers=2", "--ps=1", "--controller")
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
    words = command.task_command_line(replace(job, task=Task("worker", 1)), 3)
    own = ("--task_index=1", "--num_gpus=3")
    assert words[-len(own) :] == own
    at = words.index("run")
    assert words[at : at + 3] == ("run", "--model=lenet", "--batch_size=4")
    assert parse_task_command(["allreduce", "--sizes=1K"])[:2] == ("allreduce", ("--sizes=1K",))


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
    assert gpu_variables(replace(job, task=task), params) == share
