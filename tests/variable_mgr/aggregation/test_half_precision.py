from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from towers import ByTower

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.pipeline import CompactTransfer


@settings(max_examples=40, deadline=None)
@given(
    wire=st.sampled_from(["float16", "bfloat16"]),
    dtypes=st.lists(st.sampled_from(["float32", "float16", "bfloat16"]), max_size=6),
    towers=st.integers(1, 3),
)
def test_representable_values_come_back_as_float32(wire, dtypes, towers, cpu_devices):
    rng = np.random.default_rng(5)
    tensors = [
        [tf.cast(rng.integers(-128, 129, size=(3, 2)), dtype) for dtype in dtypes]
        for _ in range(towers)
    ]
    sent, inverse = ByTower(CompactTransfer(wire, cpu_devices[:towers]))(tensors)
    for own in sent:
        assert [t.dtype.name for t in own] == [wire] * len(dtypes)
    for before, after in zip(tensors, inverse(sent), strict=True):
        for a, b in zip(before, after, strict=True):
            assert b.dtype == tf.float32
            np.testing.assert_array_equal(a.numpy().astype(np.float32), b.numpy())


def test_others_are_rounded_to_the_wire(cpu_devices, place):
    tensors = place([[np.array([257.0, 1 + 2**-12])]])
    sent, inverse = ByTower(CompactTransfer("bfloat16", cpu_devices[:1]))(tensors)
    np.testing.assert_array_equal(inverse(sent)[0][0], [256.0, 1.0])


def test_narrowed_on_the_sender_and_widened_on_the_receiver(cpu_devices, trace):
    devices = cpu_devices[:3]

    def there_and_back(tensors):
        sent, inverse = ByTower(CompactTransfer("float16", devices))(tensors)
        with tf.device(devices[2]):
            total = tf.add_n([own[0] for own in sent])
        return inverse([[total]] * 3)

    operations = trace(there_and_back, [((4,), tf.float32)], 3)
    casts = [op.device for op in operations if op.type == "Cast"]
    assert casts == [*devices, *devices]


def test_what_has_sixteen_bits_already_goes_out_as_it_is(cpu_devices, place):
    tensors = place([[np.ones(3)]])
    half = [[tf.cast(tensors[0][0], tf.float16)]]
    sent, _ = ByTower(CompactTransfer("float16", cpu_devices[:1]))(half)
    assert sent[0][0] is half[0][0]


@pytest.mark.parametrize("dtype", ["float32", "int8", ""])
def test_other_wires_are_refused(dtype):
    with pytest.raises(FlagError, match="must send one of float16, bfloat16"):
        CompactTransfer(dtype, ("a",))
