"""Every task, tower and device of a job; tests/cli/test_refusals.py has what is refused.

Tests cnnbench/base/job.py.
"""

from __future__ import annotations

import pytest

from cnnbench.base.job import (
    Job,
    Task,
    cpu_of_device,
    host_and_port,
    is_address,
    is_cpu,
    split_hosts,
)
from cnnbench.errors import FlagError

LOCAL = "/job:localhost/replica:0/task:0/device:"
W0, W1 = "/job:worker/replica:0/task:0/device:", "/job:worker/replica:0/task:1/device:"
TWO = {"worker_addresses": ("a:1", "b:1"), "towers_per_worker": 2, "device": "cpu"}
FULL = {**TWO, "ps_addresses": ("a:2",), "controller_address": "c:1"}


def _job(job="worker", index=0, **fields):
    return Job(task=Task(job, index), **fields)


def test_one_process():
    job = Job(towers_per_worker=2, device="gpu")
    assert job.tower_devices == job.own_tower_devices == (LOCAL + "GPU:0", LOCAL + "GPU:1")
    assert job.cpu_devices == (job.cpu_device,) == (LOCAL + "CPU:0",)
    assert job.is_chief
    assert not job.in_cluster
    assert not job.is_server_only
    assert (job.peers, job.hosts_by_job) == ((), {})


def test_towers_on_other_devices():
    job = _job(**TWO).with_devices("gpu", (1, 0))
    assert job.tower_devices == (W0 + "GPU:1", W0 + "GPU:0", W1 + "GPU:1", W1 + "GPU:0")
    assert job.with_devices("cpu") == _job(**TWO)
    with pytest.raises(ValueError, match="order"):
        job.with_devices("gpu", (0, 2))


def test_towers_are_numbered_over_the_workers():
    job = _job(**TWO)
    assert job.tower_devices == (W0 + "CPU:0", W0 + "CPU:1", W1 + "CPU:0", W1 + "CPU:1")
    assert (job.num_workers, job.num_towers) == (2, 4)


@pytest.mark.parametrize(
    ("me", "fields", "own", "chief", "serves"),
    [
        (("worker", 0), TWO, range(4), True, False),
        (("worker", 1), TWO, range(0), False, True),
        (("worker", 0), {**TWO, "client_per_worker": True}, range(2), True, False),
        (("worker", 1), {**TWO, "client_per_worker": True}, range(2, 4), False, False),
        (("controller", 0), FULL, range(4), True, False),
        (("worker", 0), FULL, range(0), False, True),
        (("ps", 0), FULL, range(0), False, True),
        (("ps", 0), {**FULL, "client_per_worker": True}, range(0), False, True),
    ],
)
def test_who_does_what(me, fields, own, chief, serves):
    job = _job(*me, **fields)
    assert (job.own_towers, job.is_chief, job.is_server_only) == (own, chief, serves)
    assert [worker.index for worker in job.own_workers] == sorted({t // 2 for t in own})
    assert job.own_tower_devices == tuple(job.tower_devices[tower] for tower in own)


def test_tasks_and_their_addresses():
    job = _job("ps", **FULL)
    assert [str(task) for task in job.tasks] == ["controller:0", "worker:0", "worker:1", "ps:0"]
    assert [job.address(task) for task in job.tasks] == ["c:1", "a:1", "b:1", "a:2"]
    assert [str(task) for task in job.peers] == ["controller:0", "worker:0", "worker:1"]
    assert job.hosts_by_job == {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["a:2"]}
    assert job.cpu_device == "/job:ps/replica:0/task:0/device:CPU:0"
    # The only name that ParameterServerStrategy takes.
    assert job.chief.device("cpu") == "/job:chief/replica:0/task:0/device:CPU:0"
    assert job.cpu_devices == (W0 + "CPU:0", W1 + "CPU:0")
    assert job.ps_devices == ("/job:ps/replica:0/task:0/device:CPU:0",)
    assert _job(**TWO).ps_devices == ()


@pytest.mark.parametrize(
    "bad", ["a", "a:", ":1", "a:0", "a:65536", "a b:1", "http://a:1", "a:1:2", ""]
)
def test_what_is_no_address(bad):
    with pytest.raises(FlagError, match="host:port") as error:
        _job(worker_addresses=(bad,))
    assert error.value.flag == "worker_hosts"


def test_hosts_of_a_flag():
    assert split_hosts("a:1, b:2") == ("a:1", "b:2")
    assert split_hosts("a:1,") == ("a:1", "")
    assert split_hosts("") == split_hosts(None) == ()


def test_names_of_devices():
    assert [is_cpu(name) for name in ("CPU:0", "/device:cpu:1", W1 + "CPU:0", W1 + "GPU:0")] == [
        *(True, True, True, False)
    ]
    assert cpu_of_device(W1 + "GPU:3") == W1 + "CPU:0"
    assert cpu_of_device("GPU:1") == "/device:CPU:0"


def test_addresses():
    assert host_and_port("a:12") == ("a", 12)
    assert host_and_port("[::1]:80") == ("::1", 80)
    found = [is_address(text) for text in ("a:1", "a:65535", "a:65536", "a:0", "[::1]:80", "a")]
    assert found == [True, True, False, False, True, False]
