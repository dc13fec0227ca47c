from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from towers import ByTower

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.pipeline import SmallGradients


def stage(devices, max_bytes=64, max_group=10):
    return ByTower(SmallGradients(max_bytes, max_group, tuple(devices)))


def lengths(tensors):
    return [t.shape.num_elements() for t in tensors]


@pytest.mark.parametrize(("elements", "joined"), [(15, True), (16, True), (17, False)])
def test_small_means_up_to_max_bytes(elements, joined, cpu_devices, place):
    tensors = place([[np.ones(elements), np.ones(elements)]])
    sent, _ = stage(cpu_devices[:1], max_bytes=64)(tensors)
    assert lengths(sent[0]) == ([2 * elements] if joined else [elements] * 2)


@pytest.mark.parametrize(
    ("count", "group"), [(0, 3), (1, 1), (2, 3), (3, 3), (4, 3), (10, 10), (11, 10), (21, 10)]
)
def test_a_run_is_cut_after_exactly_max_group(count, group, cpu_devices, place):
    tensors = place([[np.ones(1)] * count])
    sent, _ = stage(cpu_devices[:1], max_group=group)(tensors)
    expected = [group] * (count // group) + [count % group] * (count % group > 0)
    assert lengths(sent[0]) == expected


def test_only_consecutive_ones_are_joined_where_the_first_stood(cpu_devices, place):
    sizes = [1, 2, 100, 3, 200, 4, 5, 6]
    tensors = place([[np.full(n, float(n)) for n in sizes]])
    sent, inverse = stage(cpu_devices[:1])(tensors)
    assert lengths(sent[0]) == [3, 100, 3, 200, 15]
    np.testing.assert_array_equal(sent[0][0], [1, 2, 2])
    assert lengths(inverse(sent)[0]) == sizes


def test_what_stands_alone_passes_untouched(cpu_devices, place):
    tensors = place([[np.ones(n) for n in (1, 100, 1, 1)]])
    sent, inverse = stage(cpu_devices[:1])(tensors)
    assert sent[0][:2] == tensors[0][:2]
    back = inverse(sent)
    assert back[0][:2] == tensors[0][:2]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_other_dtypes_are_never_joined_and_end_a_run(dtype, cpu_devices):
    one, other = tf.ones([2]), tf.ones([2], dtype)
    sent, _ = stage(cpu_devices[:1])([[other, other, one, one, other, one, one]])
    assert [t.dtype for t in sent[0]] == [dtype, dtype, tf.float32, dtype, tf.float32]
    assert lengths(sent[0]) == [2, 2, 4, 2, 4]


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 6), max_size=3).map(tuple), max_size=12),
    halves=st.sets(st.integers(0, 11)),
    towers=st.integers(1, 3),
    max_bytes=st.integers(1, 200),
    max_group=st.integers(1, 5),
)
def test_the_inverse_restores_everything(shapes, halves, towers, max_bytes, max_group, cpu_devices):
    rng = np.random.default_rng(7)
    tensors = [
        [
            tf.cast(rng.integers(-99, 99, size=shape), tf.float16 if i in halves else tf.float32)
            for i, shape in enumerate(shapes)
        ]
        for _ in range(towers)
    ]
    sent, inverse = stage(cpu_devices[:towers], max_bytes, max_group)(tensors)
    assert len({tuple(lengths(own)) for own in sent}) == 1
    for before, after in zip(tensors, inverse(sent), strict=True):
        assert [(t.shape, t.dtype) for t in before] == [(t.shape, t.dtype) for t in after]
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_ops_are_on_the_towers_device(cpu_devices, trace):
    devices = cpu_devices[:3]
    joining = stage(devices)

    def there_and_back(tensors):
        sent, inverse = joining(tensors)
        return inverse(sent)

    operations = trace(there_and_back, [((2, 2), tf.float32)] * 4, 3)
    for device in devices:
        kinds = sorted(op.type for op in operations if op.device == device)
        assert kinds == ["ConcatV2", *["Reshape"] * 8, "SplitV"]
    assert len(operations) == 30


@pytest.mark.parametrize(
    ("limits", "message"),
    [((0, 10), "--agg_small_grads_max_bytes=0"), ((64, 0), "--agg_small_grads_max_group=0")],
)
def test_limits_must_be_positive(limits, message):
    with pytest.raises(FlagError, match=message):
        SmallGradients(*limits, ("a",))


def test_shapes_must_be_known(cpu_devices):
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 2])])
    def step(tensor):
        return stage(cpu_devices[:1])([[tensor]])[0]

    with pytest.raises(ValueError, match=r"gradient 0 of tower 0 .* unknown shape \(None, 2\)"):
        step(tf.ones([1, 2]))
