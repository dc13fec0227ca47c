"""What workers exchange, by two threads in place of processes; ../test_workers.py has real ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.variable_mgr import workers
from cnnbench.variable_mgr.workers import WorkerGroup

SECONDS = 60.0


class Exchange:
    """Collective operations of two workers: what each gives, in the order of their devices."""

    def __init__(self, devices):
        self.devices = devices
        self.meeting = threading.Barrier(len(devices))
        self.given = {}
        self.built = []

    def all_of(self, device, value):
        self.given[device] = value
        self.meeting.wait(SECONDS)
        found = [self.given[device] for device in self.devices]
        self.meeting.wait(SECONDS)
        return found

    def build(self, device, tensor, join, shape):
        """The operation of a device in the graph that is being traced."""
        self.built.append((device, tensor.dtype.name, tuple(tensor.shape)))
        result = tf.numpy_function(
            lambda value: join(self.all_of(device, value)), [tensor], tensor.dtype
        )
        return tf.ensure_shape(result, shape)


@pytest.fixture
def exchange(cpu_devices, monkeypatch):
    """The operations of two workers, without those of TensorFlow."""
    made = Exchange(cpu_devices[:2])

    class Collective:
        def __init__(self, context):
            (self.own,) = context.own_devices
            assert context.devices == made.devices

        def __call__(self, tensors, index):
            (tensor,) = tensors
            return [made.build(self.own, tensor, lambda all_of: sum(all_of), tensor.shape)]

        def gather(self, tensors):
            (tensor,) = tensors
            rows, *rest = tensor.shape
            return [made.build(self.own, tensor, np.concatenate, [2 * rows, *rest])]

    current = threading.local()

    def build_collective_ops(op, devices, tensors, key):
        (current.device,), (current.tensor,), current.key = devices, tensors, key
        assert key == workers.collective_group_key(made.devices)
        return [op(current.tensor, 7)]

    def broadcast(sends, of):
        numbers = of["group_size"], of["group_key"], of["instance_key"]
        assert numbers == (2, current.key, 7)
        assert sends == (current.device == made.devices[0])
        shape = current.tensor.shape
        assert of["shape"] == shape
        return made.build(current.device, current.tensor, lambda all_of: all_of[0], shape)

    def send(input, **of):
        return broadcast(True, of)

    def receive(T, **of):
        assert current.tensor.dtype == T
        return broadcast(False, of)

    monkeypatch.setattr(tf.raw_ops, "CollectiveBcastSend", send)
    monkeypatch.setattr(tf.raw_ops, "CollectiveBcastRecv", receive)
    monkeypatch.setattr(workers, "Collective", Collective)
    monkeypatch.setattr(workers, "build_collective_ops", build_collective_ops)
    return made


@pytest.fixture
def together(exchange):
    """together(FUNCTION, VALUE, VALUE): what a function of a group and a value gives to each."""
    groups = [WorkerGroup(exchange.devices, own) for own in exchange.devices]

    def call(function, *values):
        with ThreadPoolExecutor(2) as threads:
            return [*threads.map(function, groups, values)]

    return call


def test_the_first_is_the_chief(together):
    assert together(lambda group, _: (group.is_chief, group.size), 0, 0) == [(True, 2), (False, 2)]


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_arrays_are_added_up(together, dtype):
    first, second = np.array([[1, 2], [3, 4]], dtype), np.array([[50, 60], [70, 2**40]], dtype)
    for found in together(WorkerGroup.sum_over_workers, first, second):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, first + second)


@pytest.mark.parametrize("values", [(True, True), (True, False), (False, True), (False, False)])
def test_the_chief_decides(together, values):
    assert together(WorkerGroup.broadcast_chief_bool, *values) == [values[0]] * 2


def test_tensors_of_the_chief_are_those_of_all(together):
    def tensors(factor):
        shapes = ((2, 3), (), (4,), (1, 1), ())
        dtypes = ("float32", "int64", "float32", "bfloat16", "float32")
        return [
            tf.cast(factor * np.arange(number, number + np.prod(shape)).reshape(shape), dtype)
            for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True), start=1)
        ]

    own, other = tensors(1.0), tensors(-7.0)
    for found in together(WorkerGroup.broadcast_chief_tensors, own, other):
        for one, expected in zip(found, own, strict=True):
            assert (one.dtype, one.shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(tf.cast(one, tf.float64), tf.cast(expected, tf.float64))


@pytest.mark.parametrize(
    "data",
    [(b"", b""), (b"a", b""), (b"", b"\0\xff"), (bytes(range(8)), b"x" * 9), (b"y" * 16,) * 2],
)
def test_bytes_of_all_arrive_in_their_order(together, data):
    assert together(WorkerGroup.gather_bytes, *data) == [list(data)] * 2


def test_values_are_traced_once_for_a_dtype_and_a_shape(together, exchange):
    for value in (np.zeros(2), np.ones(2), np.zeros(3), np.zeros(2, np.int64), np.ones(3)):
        together(WorkerGroup.sum_over_workers, value, value)
    assert sorted(exchange.built) == sorted(
        (device, *form)
        for device in exchange.devices
        for form in (("float64", (2,)), ("float64", (3,)), ("int64", (2,)))
    )


def test_tensors_are_gathered_and_added_within_a_step(together):
    def step(group, value):
        @tf.function(autograph=False)
        def traced(tensor, other):
            joined = group.gather_in_step(tensor)
            return [joined, *group.sum_in_step([tensor, other])]

        rows = tf.fill([2, 3], float(value))
        return [part.numpy() for part in traced(rows, tf.constant(10.0 * value))]

    for joined, rows, number in together(step, 1, 5):
        np.testing.assert_array_equal(joined, [[1.0] * 3] * 2 + [[5.0] * 3] * 2)
        np.testing.assert_array_equal(rows, np.full((2, 3), 6.0))
        assert number == 60.0
