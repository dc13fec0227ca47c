"""One logical variable of one copy or several."""

from __future__ import annotations

import pytest
import tensorflow as tf

from cnnbench.variable_mgr import tower_variable
from cnnbench.variable_mgr.tower_variable import TowerVariable


def make(devices, values=None):
    copies = []
    for index, device in enumerate(devices):
        with tf.device(device):
            copies.append(tf.Variable([float(index if values is None else values[index])] * 2))
    return TowerVariable("layer/kernel", copies)


def values(facade):
    return [float(copy.numpy()[0]) for copy in facade.copies]


@pytest.fixture
def facade(cpu_devices):
    return make(cpu_devices[:3])


def test_traced_reads_are_ops_on_the_copys_device(facade, cpu_devices):
    @tf.function(autograph=False)
    def step():
        with tf.device(cpu_devices[7]):
            return [tower_variable.read(facade.copy(tower)) for tower in range(3)]

    function = step.get_concrete_function()
    reads = [op for op in function.graph.get_operations() if op.type == "ReadVariableOp"]
    assert [op.device for op in reads] == list(cpu_devices[:3])
    assert [float(t[0]) for t in function()] == [0.0, 1.0, 2.0]


def test_broadcast_copies_number_0(facade):
    facade.broadcast()
    assert values(facade) == [0.0] * 3
    facade.copy(1).assign([4.0, 4.0])
    assert values(facade) == [0.0, 4.0, 0.0], "copies are separate again after a broadcast"


def test_a_shared_variable_is_every_towers_copy(cpu_devices):
    facade = make(cpu_devices[:1], [3.0])
    facade.broadcast()
    assert values(facade) == [3.0]
    assert facade.copy(5) is facade.primary


def test_properties_come_from_copy_0(facade):
    assert facade.primary is facade.copies[0]
    assert (facade.name, facade.shape, facade.dtype) == ("layer/kernel", [2], tf.float32)


@pytest.mark.parametrize("tower", [-1, 3])
def test_no_such_copy(facade, tower):
    with pytest.raises(IndexError, match="3 copies"):
        facade.copy(tower)


def test_copies_that_cannot_be_one_variable_are_refused(cpu_devices):
    with tf.device(cpu_devices[0]):
        one, long, whole = tf.Variable([1.0]), tf.Variable([1.0, 2.0]), tf.Variable([1])
    with pytest.raises(ValueError, match="at least one copy"):
        TowerVariable("w", [])
    with pytest.raises(ValueError, match="same variable is given for two towers"):
        TowerVariable("w", [one, one])
    with pytest.raises(ValueError, match="copies differ"):
        TowerVariable("w", [one, long])
    with pytest.raises(ValueError, match=r"float32 and .* int32"):
        TowerVariable("w", [one, whole])
