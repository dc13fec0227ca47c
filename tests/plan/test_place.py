"""What flags say about the job.

Tests cnnbench/flags/facts.py and cnnbench/plan/identity.py.
"""

from __future__ import annotations

import hashlib
import re

import pytest

from cnnbench.base.job import Job, Task
from cnnbench.flags import Params
from cnnbench.plan import WorkKind, check_flags
from cnnbench.plan.identity import digest_of_value, facts_to_agree_on, identity_on_this_machine
from cnnbench.plan.place import work_of
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


@pytest.mark.parametrize(
    ("flags", "work"),
    [
        ({}, WorkKind.TRAINING),
        ({"eval": True, "train_dir": "d"}, WorkKind.EVALUATION),
        ({"forward_only": True}, WorkKind.FORWARD),
        ({"input_only": True, "data_dir": "d"}, WorkKind.INPUT),
        ({"eval_during_training_every_n_steps": 3}, WorkKind.TRAINING_AND_EVALUATION),
        ({"eval_during_training_every_n_epochs": 1.5}, WorkKind.TRAINING_AND_EVALUATION),
        ({"eval_during_training_at_specified_steps": (2,)}, WorkKind.TRAINING_AND_EVALUATION),
        ({"eval_during_training_at_specified_epochs": (2.5,)}, WorkKind.TRAINING_AND_EVALUATION),
    ],
)
def test_the_flags_say_what_a_run_does(flags, work):
    assert work_of(Params(**flags)) is work
    only_forward = {kind for kind in WorkKind if kind.only_forward}
    assert only_forward == {WorkKind.EVALUATION, WorkKind.FORWARD}


WORKER = {"job_name": "worker", "task_index": 1, "worker_hosts": "a:1,b:1"}
WITH_PS = {**WORKER, "ps_hosts": "c:1"}
ALONE = {"task": Task("localhost", 0), "worker_addresses": ()}
OF_PS = {"ps_addresses": ("c:1",)}
ASYNCHRONOUS = {**WITH_PS, "cross_replica_sync": False}


@pytest.mark.parametrize(
    ("flags", "job", "asynchronous", "coordinated", "towers"),
    [
        ({}, ALONE, False, False, 2),
        ({"device": "gpu"}, {**ALONE, "device": "gpu"}, False, False, 2),
        ({"cross_replica_sync": False}, ALONE, False, False, 2),
        (WITH_PS, OF_PS, False, False, 4),
        (ASYNCHRONOUS, OF_PS, True, False, 2),
        ({**ASYNCHRONOUS, "forward_only": True}, OF_PS, False, False, 4),
        (
            {**WORKER, "variable_update": "collective_all_reduce"},
            *({"client_per_worker": True}, False, False, 4),
        ),
        (
            {
                **{**WITH_PS, "controller_host": "d:1", "num_gpus": 1},
                "variable_update": "parameter_server_strategy",
            },
            *({**OF_PS, "controller_address": "d:1", "towers_per_worker": 1}, True, True, 1),
        ),
    ],
)
def test_the_place_of_a_process(flags, job, asynchronous, coordinated, towers):
    place = check_flags(Params(**{"num_gpus": 2, **flags})).place
    usual = {"task": Task("worker", 1), "worker_addresses": ("a:1", "b:1"), "ps_addresses": ()}
    usual |= {"controller_address": None, "client_per_worker": False}
    assert place.job == Job(**{**usual, "towers_per_worker": 2, "device": "cpu", **job})
    assert (place.asynchronous, place.coordinated) == (asynchronous, coordinated)
    assert place.towers_per_step == towers


def test_paths_on_this_machine_are_absolute_and_plug_ins_have_digests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"data_dir": "d", "batch_size": 4, "result_json": "x"}
    own = {"data_dir": str(tmp_path / "d"), "batch_size": 4, "plugin": []}
    assert identity_on_this_machine(config) == own
    url = {**config, "data_dir": "gs://bucket/d"}
    assert identity_on_this_machine(url) == {**own, "data_dir": "gs://bucket/d"}
    path, found = str(tmp_path / "own.py"), []
    for text in ("a = 1", "a = 2", "a = 1"):
        (tmp_path / "own.py").write_text(text)
        found.append(identity_on_this_machine({**config, "plugin": ("own.py",)}))
    digests = [identity.pop(f"plugin digest {path}") for identity in found]
    assert found == [{**own, "plugin": [path]}] * 3
    assert digests[0] == digests[2] != digests[1]
    assert re.fullmatch("[0-9a-f]{12}", digests[0])
    missing = {**config, "plugin": ("none.py",)}
    assert identity_on_this_machine(missing) == {**own, "plugin": [str(tmp_path / "none.py")]}
    assert digest_of_value({"a": 1}) == hashlib.sha256(b"{'a': 1}").hexdigest()[:16]


COORDINATED = {
    "variable_update": "parameter_server_strategy",
    **{"worker_hosts": "a:1", "ps_hosts": "b:1", "controller_host": "c:1"},
}


@pytest.mark.parametrize(
    ("task", "flags", "cpus_usable", "threads"),
    [
        ("worker", {"data_dir": "folder"}, 2, 4),
        ("ps", {"data_dir": "folder"}, 8, 8),
        ("controller", {"data_dir": "folder", "num_inter_threads": 5}, 8, 5),
        ("worker", {}, 2, 0),
    ],
)
def test_processes_of_a_coordinator_that_feeds_files_have_threads_for_them(
    task, flags, cpus_usable, threads, cpus
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

    def without(has_ended):
        return {f"{t.job}{t.index}" for t in tasks if place.tolerates_loss_of(t, has_ended)}

    assert without(True) == ended
    assert without(False) == silent
