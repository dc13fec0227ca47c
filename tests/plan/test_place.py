"""What flags say about the job.

Tests cnnbench/flags/facts.py and cnnbench/plan/identity.py.
"""

from __future__ import annotations

import pytest

from cnnbench.base.job import Task
from cnnbench.base.probe import REFUSED
from cnnbench.flags import Params
from cnnbench.plan import WorkKind, check_flags
from cnnbench.plan.identity import facts_to_agree_on
from cnnbench.version import __version__


def test_processes_agree_on_what_is_measured_but_not_on_where_it_is_written():
    facts = facts_to_agree_on(Params(model="lenet", num_batches=7).as_dict())
    assert facts["cnnbench_version"] == __version__
    assert facts["tensorflow_version"].count(".") == 2
    assert facts["--model"] == "lenet"
    assert facts["--num_batches"] == "7"
    own = Params(model="lenet", num_batches=7, task_index=1, result_json="x", data_dir="/a")
    assert facts_to_agree_on(own.as_dict()) == facts
    assert facts_to_agree_on(own.replace(batch_size=3).as_dict()) != facts


def test_what_kinds_of_work_do():
    trains = {WorkKind.TRAINING, WorkKind.TRAINING_AND_EVALUATION}
    evaluates = {WorkKind.EVALUATION, WorkKind.TRAINING_AND_EVALUATION}
    assert {kind for kind in WorkKind if kind.trains} == trains
    assert {kind for kind in WorkKind if kind.evaluates} == evaluates
    assert {kind for kind in WorkKind if "validation" in kind.subsets} == evaluates
    assert {kind for kind in WorkKind if kind.subsets[0] != "train"} == {WorkKind.EVALUATION}


COORDINATED = {
    "variable_update": "parameter_server_strategy",
    **{"worker_hosts": "a:1", "ps_hosts": "b:1", "controller_host": "c:1"},
}


@pytest.mark.parametrize(
    ("flags", "cpus_usable", "threads"),
    [
        ({"data_dir": "folder"}, 2, 4),
        ({"data_dir": "folder"}, 8, 8),
        ({"data_dir": "folder", "num_inter_threads": 5}, 8, 5),
        ({}, 2, 0),
    ],
)
@pytest.mark.parametrize("task", ["worker", "ps", "controller"])
def test_processes_of_a_coordinator_that_feeds_files_have_threads_for_them(
    flags, cpus_usable, threads, task, cpus
):
    cpus(range(cpus_usable))
    params = Params(**COORDINATED, **flags, job_name=task, device="gpu")
    own = check_flags(params).process_flags
    assert own.num_inter_threads == threads
    # Only workers have towers.
    assert (own.device == "gpu") == (task == "worker")


@pytest.mark.parametrize(
    ("flags", "ended", "silent"),
    [
        ({"cross_replica_sync": False}, {"worker1"}, {"worker1"}),
        ({"cross_replica_sync": True}, set(), set()),
        (
            {
                "variable_update": "parameter_server_strategy",
                "job_name": "controller",
                "controller_host": "d:1",
            },
            {"worker0", "worker1"},
            set(),  # a worker that hangs keeps its part of the work
        ),
    ],
)
def test_a_job_goes_on_without_workers_that_nothing_waits_for(flags, ended, silent):
    job = {"job_name": "worker", "worker_hosts": "a:1,b:1", "ps_hosts": "c:1"}
    place = check_flags(Params(**{**job, **flags})).place
    tasks = [Task("worker", 0), Task("worker", 1), Task("ps", 0)]

    def without(state):
        return {f"{t.job}{t.index}" for t in tasks if place.tolerates_loss_of(t, state)}

    assert without(REFUSED) == ended
    assert without("no answer") == silent
