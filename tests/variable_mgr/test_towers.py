"""One variable of all towers: its copies, and what is read, assigned and sent."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.variable_mgr import towers
from cnnbench.variable_mgr.towers import TowerVariable


def copies_on(devices, shape=(2,), dtype=tf.float32):
    made = []
    for number, device in enumerate(devices):
        with tf.device(device):
            made.append(tf.Variable(tf.fill(shape, tf.cast(number, dtype))))
    return made


def test_copies_belong_to_towers_unless_there_is_only_one(cpu_devices):
    copies = copies_on(cpu_devices[:3])
    several, shared = TowerVariable("w", copies), TowerVariable("w", copies[:1])
    assert [several.copy(tower) for tower in range(3)] == copies
    assert several.primary is shared.primary is shared.copy(7) is copies[0]
    assert (several.name, several.shape, several.dtype) == ("w", tf.TensorShape([2]), tf.float32)
    for tower in (-1, 3):
        with pytest.raises(IndexError, match=f"w has 3 copies, no copy {tower}"):
            several.copy(tower)
    assert repr(several) == "<TowerVariable w (2,) copies=3>"


def test_values_reach_every_copy(cpu_devices):
    copies = copies_on(cpu_devices[:3])
    several = TowerVariable("w", copies)
    copies[0].assign([5.0, 6.0])
    several.broadcast()
    assert [copy.numpy().tolist() for copy in copies] == [[5, 6]] * 3
    several.assign([7.0, 8.0])
    assert [copy.numpy().tolist() for copy in copies] == [[7, 8]] * 3
    alone = TowerVariable("w", copies[2:])
    alone.broadcast()
    np.testing.assert_array_equal(copies[2].numpy(), [7, 8])


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([], "needs at least one copy"),
        ([((2,), tf.float32), "again"], "the same variable is given for two towers"),
        ([((2,), tf.float32), ((3,), tf.float32)], r"copies differ: \(2,\) float32 and \(3,\)"),
        ([((2,), tf.float32), ((2,), tf.float16)], r"copies differ: .* and \(2,\) float16"),
    ],
)
def test_copies_are_alike_and_distinct(others, message, cpu_devices):
    copies = []
    for one in others:
        copies += copies[:1] if one == "again" else copies_on(cpu_devices[:1], *one)
    with pytest.raises(ValueError, match=f"w: .*{message}|w: {message}"):
        TowerVariable("w", copies)


def test_operations_are_where_the_copies_are(cpu_devices):
    several = TowerVariable("w", copies_on(cpu_devices[1:3]))

    @tf.function(autograph=False)
    def step():
        with tf.device(cpu_devices[5]):
            several.broadcast()
            return towers.read(several.copy(1))

    operations = step.get_concrete_function().graph.get_operations()
    kinds = ("ReadVariableOp", "AssignVariableOp")
    found = [(op.type, op.device) for op in operations if op.type in kinds]
    read, assign = kinds
    assert found == [(read, cpu_devices[1]), (assign, cpu_devices[2]), (read, cpu_devices[2])]
