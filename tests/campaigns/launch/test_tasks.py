"""Commands, ports, processors and output of the processes of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cnnbench.base.jobs.job import Task
from cnnbench.campaigns.launch import session
from cnnbench.campaigns.launch.tasks import (
    JobLayout,
    check,
    chief_flags,
    gpu_variables,
    shares_of_cores,
    task_flags,
)
from cnnbench.campaigns.processes.child import Ended
from cnnbench.errors import FlagError
from cnnbench.flags import Params


def test_every_process_gets_the_job_and_its_place_in_it():
    job = JobLayout(workers=2, ps=1, controller=True).job([1001, 1002, 1003, 1004])
    assert job.is_chief
    words = {
        str(task): " ".join(task_flags(replace(job, task=task), ("--model=lenet",), 3))
        for task in job.tasks
    }
    common = (
        "--model=lenet --worker_hosts=localhost:1001,localhost:1002 --ps_hosts=localhost:1003 "
        "--controller_host=localhost:1004 --job_name={} --task_index={} --num_gpus=3"
    )
    places = {name: name.split(":") for name in ("controller:0", "worker:0", "worker:1", "ps:0")}
    assert words == {name: common.format(*place) for name, place in places.items()}


def test_a_job_can_measure_reductions():
    run = check(JobLayout(workers=2), ["allreduce", "--sizes=4K", "--device=cpu"], 3)
    assert (run.num_gpus, run.device) == (3, "cpu")


def test_processors_are_divided(cpus):
    cpus({8, 1, 2, 3, 9})
    assert shares_of_cores(2) == [{1, 2}, {3, 8, 9}]
    assert shares_of_cores(5) == [{1}, {2}, {3}, {8}, {9}]


@pytest.mark.parametrize(
    ("visible", "params", "expected"),
    [
        ("0,1,2,3", {"num_gpus": 2}, ["0,1", "2,3", None]),
        ("GPU-a,GPU-b", {}, ["GPU-a", "GPU-b", None]),
        ("0,1,2", {"num_gpus": 2}, [None] * 3),
        ("", {}, [None] * 3),
        ("0,1,2,3", {"num_gpus": 2, "device": "cpu"}, [None] * 3),
        ("0,1,2,3", {"num_gpus": 2, "gpu_indices": "1,0"}, [None] * 3),
    ],
)
def test_workers_get_gpus_of_their_own(monkeypatch, visible, params, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    job = JobLayout(workers=2, ps=1).job([1001, 1002, 1003])
    found = [gpu_variables(replace(job, task=task), Params(**params)) for task in job.tasks]
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in found] == expected


def test_a_job_is_described_by_the_checked_flags_of_its_chief():
    flags = ("--model=lenet", "--device=cpu")
    assert chief_flags(None, (*flags, "--no_such")) == (*flags, "--no_such")
    found = chief_flags(JobLayout(workers=2, ps=1), flags)
    assert found[:2] == flags
    assert {"--job_name=worker", "--task_index=0"} < set(found)
    with pytest.raises(FlagError, match="--ps=0: --variable_update=parameter_server with launch"):
        chief_flags(JobLayout(workers=2), flags)
    coordinated = (*flags, "--variable_update=parameter_server_strategy")
    assert "--job_name=controller" in chief_flags(JobLayout(workers=2, ps=1), coordinated)


def test_output_is_shown_in_whole_lines(tmp_path):
    process, shown = session._Process(Task("worker"), None, tmp_path / "log"), []
    for part in (b"first\nsec", b"ond", b" line\r\n", b" 10 %\r 20 %\n", b"la", b"st"):
        with open(process.log, "ab") as log:
            log.write(part)
        shown.append([line.removeprefix("[worker:0] ") for line in process.news()])
    process.ended = Ended(0, 1.0)
    assert shown == [["first"], [], ["second line"], ["20 %"], [], []]
    assert process.news() == ["[worker:0] last"]
