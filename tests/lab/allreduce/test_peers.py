from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.base.jobs.devices import device_string
from cnnbench.lab.allreduce.peers import NAMES, Peer

SHAPES = ((), (3,), (2, 5), (1, 1))


def on_each_device(devices, shapes=SHAPES):
    """values[d][i]: 8^d times i + 1, so that a sum shows what is in it."""
    return [
        [np.full(shape, 8.0**d * (i + 1), np.float32) for i, shape in enumerate(shapes)]
        for d in range(len(devices))
    ]


def reduced(peer, values):
    devices = peer.devices
    given = []

    @tf.function(autograph=False)
    def step(values):
        towers = []
        for device, own in zip(devices, values, strict=True):
            with tf.device(device):
                towers.append([tf.identity(value) for value in own])
        given.extend(peer(towers))
        return given

    return step(values), given


@pytest.mark.parametrize(
    ("name", "count"), [(NAMES[0], 2), (NAMES[1], 2), (NAMES[0], 8), (NAMES[1], 4)]
)
def test_every_device_has_every_sum(name, count, cpu_devices):
    devices = cpu_devices[:count]
    values = on_each_device(devices)
    sums, traced = reduced(Peer(name, devices), values)
    for device, own, symbols in zip(devices, sums, traced, strict=True):
        assert {symbol.device for symbol in symbols} == {device}
        for number, total in enumerate(own):
            np.testing.assert_array_equal(total, sum(tower[number] for tower in values))


def test_an_odd_number_of_devices(cpu_devices):
    devices = cpu_devices[:3]
    values = on_each_device(devices)
    sums, _ = reduced(Peer("reduction_to_one_device", devices), values)
    np.testing.assert_array_equal(sums[2][1], [2.0 * (1 + 8 + 64)] * 3)


def test_a_chain_of_reductions_made_while_tracing(cpu_devices):
    devices = cpu_devices[:2]

    @tf.function(autograph=False)
    def step(values):
        for _ in range(3):
            values = Peer("reduction_to_one_device", devices)(values)
        return values

    for own in step([[tf.constant([1.0])], [tf.constant([2.0])]]):
        np.testing.assert_array_equal(own, [[12.0]])


def test_additions_are_where_tensorflow_puts_them(cpu_devices):
    """What is measured is their reduction, not one that the tracing turned into another."""
    devices = cpu_devices[1:3]
    _, given = reduced(Peer("reduction_to_one_device", devices), on_each_device(devices))
    adds = [op for op in given[0][0].graph.get_operations() if op.type == "AddN"]
    assert [op.device for op in adds] == [devices[0]] * len(SHAPES)
    _, given = reduced(Peer("hierarchical_copy_all_reduce", devices), on_each_device(devices))
    adds = [op for op in given[0][0].graph.get_operations() if op.type == "AddN"]
    assert [op.device for op in adds] == [devices[0]]


def test_no_tensors(cpu_devices):
    assert Peer("reduction_to_one_device", cpu_devices[:2])([[], []]) == [[], []]


@pytest.mark.parametrize(
    ("name", "devices", "words"),
    [
        ("nccl_all_reduce", [("localhost", 0), ("localhost", 0)], "GPUs only"),
        ("reduction_to_one_device", [("worker", 0), ("worker", 1)], "one process"),
        ("hierarchical_copy_all_reduce", [("localhost", 0)] * 3, "leaves out the last of 3"),
        ("warp", [("localhost", 0)] * 2, r"'warp'; must be one of reduction_to_one_device, "),
    ],
)
def test_what_a_peer_cannot_reduce_is_refused(name, devices, words):
    with pytest.raises(ValueError, match=words):
        Peer(name, [device_string(job, task, "cpu", i) for i, (job, task) in enumerate(devices)])


def test_names_can_be_asked_for_without_tensorflow():
    code = (
        "import sys; from cnnbench.lab.allreduce.peers import NAMES; "
        "print(len(NAMES), 'tensorflow' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["3", "False"]
