"""Where strategies are made: what is refused, in one line, and before TensorFlow fails on it.

Tests variable_mgr/distribute.py.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from cnnbench.base.job import Job, Task
from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr import distribute
from cnnbench.variable_mgr.distribute import CrossDeviceSpec, alternatives_to_auto

SIMPLE = CrossDeviceSpec(ops="reduction_to_one_device")


def test_the_same_strategy_is_made_once(cpu_devices):
    assert distribute.make_mirrored_strategy(
        cpu_devices[:2], SIMPLE
    ) is distribute.make_mirrored_strategy(cpu_devices[:2], SIMPLE)
    assert distribute.make_mirrored_strategy(
        cpu_devices[:2], SIMPLE
    ) is not distribute.make_mirrored_strategy(cpu_devices[:3], SIMPLE)


@pytest.fixture
def no_collectives_yet(monkeypatch):
    """No collective has run in this process, which can run them on one set of devices only."""
    monkeypatch.setattr(distribute, "_collective_devices", None)


def test_collectives_over_other_devices_are_refused(cpu_devices, no_collectives_yet):
    made = distribute.make_mirrored_strategy(cpu_devices[:2], CrossDeviceSpec(ops="ring", packs=2))
    # Two strategies would number their collectives alike, and those of other shapes would fail.
    assert distribute.make_mirrored_strategy(cpu_devices[:2], CrossDeviceSpec(ops="auto")) is made
    distribute.make_mirrored_strategy(cpu_devices[:1], CrossDeviceSpec(ops="auto"))
    distribute.make_mirrored_strategy(cpu_devices[:4], CrossDeviceSpec(ops="hierarchical_copy"))
    with pytest.raises(UsageError, match="over 2 devices already") as error:
        distribute.make_mirrored_strategy(cpu_devices[:3], CrossDeviceSpec(ops="ring"))
    assert "\n" not in str(error.value)


def test_a_multi_worker_strategy_of_one_process(cpu_devices, no_collectives_yet):
    alone = Job(device="cpu")
    strategy = distribute.make_worker_strategy(alone)
    assert distribute.make_worker_strategy(alone) is strategy
    assert strategy.num_replicas_in_sync == 1
    assert distribute._collective_devices is None  # one tower has no collectives
    assert strategy.extended.worker_devices == (cpu_devices[0],)
    with pytest.raises(FlagError, match=r"^--num_gpus=2: "):
        distribute.make_worker_strategy(Job(device="cpu", towers_per_worker=2))


def test_operations_that_cannot_work_are_refused(cpu_devices):
    with pytest.raises(FlagError, match=r"^--cross_device_ops=nccl: "):
        distribute.make_mirrored_strategy(cpu_devices[:2], CrossDeviceSpec(ops="nccl"))


@pytest.mark.parametrize(
    ("ops", "kind", "implementation"),
    [
        ("auto", "gpu", "NCCL"),
        ("nccl", "gpu", "NCCL"),
        ("ring", "gpu", "RING"),
        ("auto", "cpu", "AUTO"),
        ("ring", "cpu", "RING"),
    ],
)
def test_what_a_strategy_is_asked_to_communicate_by(ops, kind, implementation):
    devices = [Task("worker", task).device(kind, 0) for task in range(2)]
    options = distribute.communication_options(CrossDeviceSpec(ops=ops, pack_bytes=9), devices)
    assert (options.implementation.name, options.bytes_per_pack) == (implementation, 9)


@pytest.mark.parametrize(
    ("ops", "shared", "on_gpu", "running"),
    [
        ("auto", False, False, "ring"),
        ("auto", False, True, "nccl"),
        ("auto", True, True, "ring"),
        ("ring", False, True, "ring"),
        ("nccl", True, True, "nccl"),
    ],
)
def test_what_runs(ops, shared, on_gpu, running):
    assert CrossDeviceSpec(ops=ops, shared_cards=shared).resolved_ops(on_gpu) == running


@pytest.mark.parametrize(
    ("on_gpu", "others"), [(False, set()), (True, {"ring"})], ids=["CPUs", "GPUs"]
)
def test_what_runs_otherwise_than_by_default(on_gpu, others):
    found = alternatives_to_auto(on_gpu=on_gpu)
    assert {*found} == {"reduction_to_one_device", "hierarchical_copy", *others}


@pytest.mark.parametrize(
    ("ops", "count", "how", "refused"),
    [
        ("nccl", 2, {"on_gpu": True}, False),
        ("nccl", 2, {"on_gpu": False}, True),
        ("nccl", 2, {"on_gpu": True, "shared_cards": True}, True),
        ("ring", 2, {"on_gpu": True, "shared_cards": True}, False),
        ("ring", 3, {"on_gpu": False}, False),
        *(("hierarchical_copy", count, {"on_gpu": True}, count in (3, 5)) for count in range(1, 6)),
    ],
)
def test_what_is_refused_for_some_devices(ops, count, how, refused):
    if not refused:
        distribute.refuse_devices(ops, count, **how)
        return
    with pytest.raises(FlagError, match=f"^--cross_device_ops={ops}: "):
        distribute.refuse_devices(ops, count, **how)


def on(task, kind, *numbers):
    return [Task("worker", task).device(kind, number) for number in numbers]


@pytest.mark.parametrize(
    ("devices", "refused"),
    [
        (on(0, "cpu", 0, 1), False),
        (on(0, "gpu", 0, 1), False),
        (on(0, "cpu", 0, 0), True),
        ([*on(0, "cpu", 0), *on(1, "cpu", 0)], True),
        ([*on(0, "cpu", 0), *on(0, "gpu", 0)], True),
    ],
)
def test_devices_of_a_strategy_are_different_of_one_kind_and_of_one_process(devices, refused):
    if not refused:
        distribute.refuse_wrong_devices(devices)
        return
    with pytest.raises(UsageError):
        distribute.refuse_wrong_devices(devices)


def test_gpus_of_a_worker_may_be_several():
    distribute.refuse_cpu_towers(Job(device="gpu", towers_per_worker=2))
    distribute.refuse_cpu_towers(Job(device="cpu"))
    with pytest.raises(FlagError, match=r"^--num_gpus=2: "):
        distribute.refuse_cpu_towers(Job(device="cpu", towers_per_worker=2))


@pytest.mark.parametrize(
    ("towers", "kind", "gpus"), [(3, "gpu", {"GPU": 3}), (1, "gpu", {"GPU": 1}), (1, "cpu", {})]
)
def test_strategies_of_jobs_know_their_hosts_and_their_own_task(
    towers, kind, gpus, monkeypatch, no_collectives_yet
):
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda **of: of)
    monkeypatch.setattr(tf.distribute, "ParameterServerStrategy", lambda resolver: resolver)
    hosts = {"worker_addresses": (f"a{towers}:1", f"{kind}:1")}
    job = Job(
        task=Task("worker", 1),
        device=kind,
        towers_per_worker=towers,
        client_per_worker=True,
        **hosts,
    )
    resolver = distribute.make_worker_strategy(job)["cluster_resolver"]
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.cluster_spec().as_dict() == {"worker": [*hosts["worker_addresses"]]}
    assert resolver._num_accelerators == gpus
    assert resolver.rpc_layer == "grpc"
    coordinator = Job(task=Task("controller"), controller_address="c:1", device=kind, **hosts)
    resolver = distribute.connect_ps_strategy(coordinator)
    assert (resolver.task_type, resolver.task_id, resolver._num_accelerators) == ("chief", 0, {})
    expected = {"worker": [*hosts["worker_addresses"]], "chief": ["c:1"]}
    assert resolver.cluster_spec().as_dict() == expected
