"""One facade, N variables, behaviour by context."""

from __future__ import annotations

import contextlib

import pytest
import tensorflow as tf

from cnnbench.variable_mgr.tower_variable import TowerVariable, tower_context


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


def test_reads_are_local_in_a_tower_and_of_copy_0_outside(facade):
    assert float(facade.read_value()[0]) == 0.0
    for tower in range(3):
        with tower_context(tower):
            assert float(facade.read_value()[0]) == float(tower)
    assert float(facade.read_value()[0]) == 0.0


def test_it_stands_for_a_tensor(facade):
    with tower_context(2):
        assert tf.add(facade, 1.0).numpy().tolist() == [3.0, 3.0]
        assert tf.convert_to_tensor(facade, dtype=tf.float32).numpy().tolist() == [2.0, 2.0]
    assert tf.stack([facade, facade]).numpy().tolist() == [[0.0, 0.0]] * 2


def test_traced_reads_are_ops_on_the_copys_device(facade, cpu_devices):
    @tf.function(autograph=False)
    def step():
        tensors = []
        for tower in range(3):
            with tf.device(cpu_devices[7]), tower_context(tower):
                tensors.append(facade.read_value())
        return tensors

    function = step.get_concrete_function()
    reads = [op for op in function.graph.get_operations() if op.type == "ReadVariableOp"]
    assert [op.device for op in reads] == list(cpu_devices[:3])
    assert [float(t[0]) for t in function()] == [0.0, 1.0, 2.0]


def test_contexts_reach_into_control_flow(facade):
    @tf.function(autograph=False)
    def step(take):
        with tower_context(1):
            return tf.cond(take, lambda: facade.read_value() + 10.0, facade.read_value)

    assert float(step(tf.constant(True))[0]) == 11.0
    assert float(step(tf.constant(False))[0]) == 1.0


def test_contexts_nest_and_survive_errors(facade):
    with tower_context(1):
        with contextlib.suppress(RuntimeError), tower_context(2):
            assert float(facade.read_value()[0]) == 2.0
            raise RuntimeError
        assert float(facade.read_value()[0]) == 1.0
    assert float(facade.read_value()[0]) == 0.0


@pytest.mark.parametrize(
    ("method", "outside", "inside"),
    [
        ("assign", [5.0, 5.0, 5.0], [0.0, 5.0, 2.0]),
        ("assign_add", [5.0, 6.0, 7.0], [0.0, 6.0, 2.0]),
        ("assign_sub", [-5.0, -4.0, -3.0], [0.0, -4.0, 2.0]),
    ],
)
@pytest.mark.parametrize("traced", [True, False])
def test_writes_reach_all_copies_outside_and_one_inside(
    method, outside, inside, traced, cpu_devices
):
    first, second = make(cpu_devices[:3]), make(cpu_devices[:3])

    def everywhere():
        assert getattr(first, method)(tf.constant([5.0, 5.0])) is None

    def in_tower_1():
        with tower_context(1):
            assert getattr(second, method)(tf.constant([5.0, 5.0])) is None

    for function in (everywhere, in_tower_1):
        (tf.function(function, autograph=False) if traced else function)()
    assert values(first) == outside
    assert values(second) == inside


def test_an_earlier_read_keeps_the_old_value(facade):
    @tf.function(autograph=False)
    def step():
        with tower_context(2):
            before = facade.read_value()
            facade.assign([7.0, 7.0])
            return before, facade.read_value()

    before, after = step()
    assert (float(before[0]), float(after[0])) == (2.0, 7.0)


def test_broadcast_copies_number_0(facade):
    facade.broadcast()
    assert values(facade) == [0.0] * 3
    with tower_context(1):
        facade.assign([4.0, 4.0])
    assert values(facade) == [0.0, 4.0, 0.0], "copies are separate again after a broadcast"


def test_a_shared_variable_is_every_towers_copy(cpu_devices):
    facade = make(cpu_devices[:1], [3.0])
    with tower_context(6):
        assert float(facade.read_value()[0]) == 3.0
        facade.assign([1.0, 1.0])
    facade.broadcast()
    assert values(facade) == [1.0]
    assert facade.copy(5) is facade.primary


def test_properties_come_from_copy_0(facade):
    assert facade.primary is facade.copies[0]
    assert (facade.name, facade.shape, facade.dtype) == ("layer/kernel", [2], tf.float32)


@pytest.mark.parametrize("tower", [-1, 3])
def test_no_such_copy(facade, tower):
    with pytest.raises(IndexError, match="3 copies"):
        facade.copy(tower)


def test_reading_a_tower_without_copy_is_an_error(facade):
    with tower_context(3), pytest.raises(IndexError, match="no copy 3"):
        facade.read_value()


def test_negative_towers_are_refused():
    with pytest.raises(ValueError, match="numbered from 0"), tower_context(-1):
        pass


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
