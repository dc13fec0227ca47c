from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.compact import CompactTransfer, share_memory

CPU = "/job:localhost/replica:0/task:0/device:CPU:"


@settings(max_examples=40, deadline=None)
@given(
    wire=st.sampled_from(["float16", "bfloat16"]),
    dtypes=st.lists(st.sampled_from(["float32", "float64", "float16", "bfloat16"]), max_size=6),
    towers=st.integers(1, 3),
)
def test_dtypes_come_back_and_representable_values_with_them(wire, dtypes, towers, cpu_devices):
    rng = np.random.default_rng(5)
    tensors = [
        [tf.cast(rng.integers(-128, 129, size=(3, 2)), dtype) for dtype in dtypes]
        for _ in range(towers)
    ]
    sent, inverse = CompactTransfer(wire, cpu_devices[:towers])(tensors)
    for own in sent:
        assert [t.dtype.name for t in own] == [
            wire if dtype.endswith(("32", "64")) else dtype for dtype in dtypes
        ]
    for before, after in zip(tensors, inverse(sent), strict=True):
        for a, b in zip(before, after, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_others_are_rounded_to_the_wire(cpu_devices, place):
    tensors = place([[np.array([257.0, 1 + 2**-12])]])
    sent, inverse = CompactTransfer("bfloat16", cpu_devices[:1])(tensors)
    np.testing.assert_array_equal(inverse(sent)[0][0], [256.0, 1.0])


def test_narrowed_on_the_tower_and_widened_once_where_the_sum_is(cpu_devices, trace):
    devices = cpu_devices[:3]
    shared = []

    def there_and_back(tensors):
        sent, inverse = CompactTransfer("float16", devices)(tensors)
        with tf.device(devices[2]):
            total = tf.add_n([own[0] for own in sent])
        result = inverse([[total]] * 3)
        shared.append(result[0][0] is result[1][0] is result[2][0])
        return result

    operations = trace(there_and_back, [((4,), tf.float32)], 3)
    casts = [op.device for op in operations if op.type == "Cast"]
    assert casts == [*devices, devices[2]]
    assert shared == [True]


def test_sixteen_bits_travel_back_too_where_devices_have_memories_of_their_own(cpu_devices):
    # Eager CPU tensors, told to belong to other devices; only where casts go matters.
    devices = ("/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0")
    assert not share_memory(devices)
    graph = tf.Graph()
    with graph.as_default():
        tensors = [[tf.ones([4])], [tf.ones([4])]]
        sent, inverse = CompactTransfer("float16", devices)(tensors)
        (first,), (second,) = inverse([sent[0], sent[0]])
    tasks = [t.device.split("/device")[0] for t in (sent[0][0], sent[1][0], first, second)]
    assert tasks == ["/job:worker/task:0", "/job:worker/task:1"] * 2


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ((CPU + "0", CPU + "1"), True),
        ((CPU + "0",), True),
        ((CPU + "0", CPU.replace("task:0", "task:1") + "0"), False),
        ((CPU.replace("CPU", "GPU") + "0", CPU.replace("CPU", "GPU") + "1"), False),
        ((CPU + "0", CPU.replace("CPU", "GPU") + "0"), False),
    ],
)
def test_who_shares_a_memory(devices, expected):
    assert share_memory(devices) is expected


@pytest.mark.parametrize("dtype", ["float32", "int8", ""])
def test_other_wires_are_refused(dtype):
    with pytest.raises(FlagError, match="must send one of float16, bfloat16"):
        CompactTransfer(dtype, ("a",))
