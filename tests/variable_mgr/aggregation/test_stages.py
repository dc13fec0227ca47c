"""Stages: what they send, their inverses, and where operations run.

Around every algorithm they are in ../all_reduce/test_oracle.py. Tests variable_mgr/packing.py,
variable_mgr/buffers.py and variable_mgr/stages.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from towers import ByTower, run_through

from cnnbench.variable_mgr.all_reduce import ReduceContext, single
from cnnbench.variable_mgr.all_reduce.reducer import AllReducer
from cnnbench.variable_mgr.buffers import FlatBufferLayout
from cnnbench.variable_mgr.packing import AggregationSpec, buffer_sizes
from cnnbench.variable_mgr.stages import make_stages, split_scale

VECTOR = ((64,), tf.float32)


def stage_of(devices, scale=None, **options):
    """The only stage that those options make."""
    (stage,) = make_stages(AggregationSpec(**options), devices, scale)
    return ByTower(stage)


def reducer(devices):
    return AllReducer(single("copy"), ReduceContext(devices=devices), [devices])


def lengths(tensors):
    return [t.shape.num_elements() for t in tensors]


def ones(*sizes):
    return [tf.ones([size]) for size in sizes]


def in_float32(tensor):
    return np.asarray(tf.cast(tensor, tf.float32))


JOINING = {
    "small": lambda n: {"agg_small_grads_max_bytes": n, "agg_small_grads_max_group": 1 + n // 25},
    "buckets": lambda n: {"gradient_bucket_bytes": n},
    "packs": lambda n: {"gradient_repacking": 1 + n // 25},
}


@pytest.mark.parametrize("kind", JOINING)
@settings(max_examples=15, deadline=None)
@given(
    shapes=st.lists(
        st.lists(st.one_of(st.integers(0, 7), st.sampled_from([16, 17])), max_size=3).map(tuple),
        max_size=10,
    ),
    dtypes=st.lists(st.sampled_from(["float32", "float16", "bfloat16"]), min_size=1, max_size=2),
    towers=st.integers(1, 3),
    number=st.integers(1, 200),
)
def test_what_is_joined_comes_apart_again(kind, shapes, dtypes, towers, number, cpu_devices):
    if kind == "packs":
        dtypes = dtypes[:1]
    rng = np.random.default_rng(7)
    tensors = [
        [
            tf.cast(rng.integers(-99, 99, size=shape), dtypes[i % len(dtypes)])
            for i, shape in enumerate(shapes)
        ]
        for _ in range(towers)
    ]
    sent, inverse = stage_of(cpu_devices[:towers], **JOINING[kind](number))(tensors)
    for own, values in zip(sent, tensors, strict=True):
        # Every element once, and no padding.
        elements = [
            sorted(element for tensor in part for element in in_float32(tensor).ravel())
            for part in (own, values)
        ]
        assert elements[0] == elements[1]
    if kind == "packs" and shapes:
        line = 64 // tf.as_dtype(dtypes[0]).size
        packs = 1 + number // 25
        assert lengths(sent[0]) == buffer_sizes(sum(lengths(tensors[0])), packs, line)
    for before, after in zip(tensors, inverse(sent), strict=True):
        for a, b in zip(before, after, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(in_float32(a), in_float32(b), strict=True)


def test_what_is_off_is_left_out():
    # A group size alone joins nothing, and no limit on a group is needed without one.
    assert make_stages(AggregationSpec(agg_small_grads_max_group=0), ("a",), None) == ()


# Flat buffers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("traced", [False, True])
def test_tensors_of_whole_lines_are_views_of_the_buffer(traced, address):
    shapes = [(3, 16), (5,), (0, 4), (32,), (), (4, 4, 4)]
    flat = FlatBufferLayout([tf.TensorShape(shape) for shape in shapes], tf.float32)
    (buffer,) = flat.join([tf.zeros(shape) for shape in shapes])
    split = tf.function(flat.split, autograph=False) if traced else flat.split
    parts = split([buffer])
    offsets = [address(parts[i]) - address(buffer) for i in (0, 3, 5)]
    assert offsets == [0, 48 * 4, 80 * 4]


def test_lines_are_counted_in_bytes(address):
    # 16 elements of two bytes are half a line, so they come after all others.
    tensors = [tf.cast(tf.fill([size], size), tf.bfloat16) for size in (16, 32, 64)]
    flat = FlatBufferLayout([tensor.shape for tensor in tensors], tf.bfloat16)
    (buffer,) = flat.join(tensors)
    assert buffer.numpy()[[0, -1]].tolist() == [32, 16]
    first, second = (tf.bitcast(t, tf.uint16) for t in flat.split([buffer])[1:])
    assert address(second) - address(first) == 64


def test_cuts_of_a_tensor_over_buffers_are_views_too(address):
    tensor = tf.random.normal([160])
    buffers = FlatBufferLayout([tensor.shape], tf.float32, 3).join([tensor])
    assert lengths(buffers) == [48, 48, 64]
    assert [address(b) - address(tensor) for b in buffers] == [0, 192, 384]


def test_shapes_must_be_known(cpu_devices):
    specs = [[tf.TensorSpec([2]), tf.TensorSpec([None])]]
    stage = stage_of(cpu_devices[:1], agg_small_grads_max_bytes=64)
    step = tf.function(lambda tensors: stage(tensors)[0], autograph=False)
    with pytest.raises(ValueError, match=r"gradient 1 has the unknown shape \(None,\)"):
        step.get_concrete_function(specs)


# Small gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "sent", "untouched"),
    [
        ([15, 15], [30], []),
        ([16, 16], [32], []),
        ([17, 17], [17, 17], [17, 17]),  # 64 bytes are small, 68 are not
        ([1, 2, 100, 3, 200, 4, 5, 6], [3, 100, 3, 200, 15], [100, 3, 200]),
        ([], [], []),
        ([1] * 10, [10], []),
        ([1] * 21, [10, 10, 1], [1]),
    ],
)
def test_runs_of_small_gradients_are_joined_in_groups(sizes, sent, untouched, cpu_devices):
    tensors = [ones(*sizes)]
    found, inverse = stage_of(cpu_devices[:1], agg_small_grads_max_bytes=64)(tensors)
    assert lengths(found[0]) == sent
    alone = [tensor for tensor in tensors[0] if any(tensor is other for other in found[0])]
    assert lengths(alone) == untouched
    restored = inverse(found)[0]
    assert all(any(tensor is other for other in restored) for tensor in alone)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_other_dtypes_are_never_joined_and_end_a_run(dtype, cpu_devices):
    one, other = tf.ones([2]), tf.ones([2], dtype)
    stage = stage_of(cpu_devices[:1], agg_small_grads_max_bytes=64)
    sent, _ = stage([[other, other, one, one, other, one, one]])
    assert [t.dtype for t in sent[0]] == [dtype, dtype, tf.float32, dtype, tf.float32]
    assert lengths(sent[0]) == [2, 2, 4, 2, 4]


# Buckets --------------------------------------------------------------------------------------


def test_gradients_of_two_dtypes_meet_in_the_one_that_is_sent(cpu_devices):
    tensors = [[tf.ones([4], tf.bfloat16), tf.ones([4]), tf.ones([4], tf.bfloat16)]]
    packing = AggregationSpec(gradient_bucket_bytes=99, compact_dtype="bfloat16")
    sent, _ = ByTower(make_stages(packing, cpu_devices[:1], None)[0])(tensors)
    assert [(t.dtype, t.shape[0]) for t in sent[0]] == [(tf.bfloat16, 12)]
    parted, _ = stage_of(cpu_devices[:1], gradient_bucket_bytes=99)(tensors)
    assert [t.dtype for t in parted[0]] == [tf.bfloat16, tf.float32, tf.bfloat16]


# Scaling and 16 bits --------------------------------------------------------------------------


@pytest.mark.parametrize("towers", [2, 3, 4, 5, 7, 8, 49, 1000])
def test_float16_is_divided_by_a_power_of_two_as_large_as_the_number_of_towers(towers):
    scale = 1 / towers
    sent, received = split_scale(scale, "float16")
    assert towers * sent <= 1 < 2 * towers * sent
    assert np.log2(sent) == round(np.log2(sent))
    assert sent * received == scale
    assert split_scale(scale, "bfloat16") == (1.0, scale)


def test_values_are_rounded_to_the_wire(cpu_devices):
    half = tf.ones([3], tf.bfloat16)
    sent, inverse = stage_of(cpu_devices[:1], compact_dtype="bfloat16")(
        [[tf.constant([257.0, 1 + 2**-12]), half]]
    )
    assert sent[0][1] is half
    (rounded, widened) = inverse(sent)[0]
    np.testing.assert_array_equal(rounded, [256.0, 1.0])
    assert rounded.dtype == widened.dtype == tf.float32


def test_a_shared_sum_is_multiplied_once_where_it_was_made(cpu_devices, operations_of):
    devices = cpu_devices[:3]
    shared = []

    def mean(tensors):
        sent, inverse = stage_of(devices, scale=1 / 3)(tensors)
        assert sent == tensors
        with tf.device(devices[1]):
            total = tf.add_n([own[0] for own in tensors])
        result = inverse([[total, own[1]] for own in tensors])
        shared.append(result[0][0] is result[1][0] is result[2][0])
        return result

    operations = operations_of(mean, [((4,), tf.float32)] * 2, 3)
    products = [op.device for op in operations if op.type == "Mul"]
    assert sorted(products) == sorted([devices[1], *devices])
    assert shared == [True]


# All together ---------------------------------------------------------------------------------


def test_nan_of_one_tower_reaches_all_and_is_gone_in_the_next_step(cpu_devices):
    devices = cpu_devices[:3]
    shapes = ((3, 3, 2, 4), (4,), (4,), (5, 3), (), (0, 2), (96,))
    spec = AggregationSpec(
        agg_small_grads_max_bytes=64,
        gradient_repacking=2,
        compact_dtype="bfloat16",
        variable_consistency="relaxed",
    )
    stages = make_stages(spec, devices, 1 / 3)
    step = tf.function(
        lambda tensors: run_through(stages, tensors, reducer(devices)), autograph=False
    )
    good = [[tf.ones(shape) for shape in shapes] for _ in devices]
    bad = [list(own) for own in good]
    bad[1][3] = tf.tensor_scatter_nd_update(bad[1][3], [[2, 1]], [np.nan])
    _, hit, after = step(bad), step(good), step(good)
    for own in hit:
        for i, tensor in enumerate(own):
            expected = np.zeros(shapes[i], bool)
            if i == 3:
                expected[2, 1] = True
            np.testing.assert_array_equal(np.isnan(tensor), expected)
    for own in after:
        assert not any(np.isnan(tensor).any() for tensor in own)


def test_many_tensors_are_scaled_narrowed_and_kept_as_one(cpu_devices, operations_of):
    devices = cpu_devices[:2]
    spec = AggregationSpec(
        gradient_repacking=1, compact_dtype="bfloat16", variable_consistency="relaxed"
    )
    stages = make_stages(spec, devices, 0.5)
    operations = operations_of(
        lambda tensors: run_through(stages, tensors, reducer(devices)),
        [((16,), tf.float32)] * 300,
        2,
    )
    # Each device widens and scales what it gets; only the sum is made once.
    of_each = ["AssignVariableOp", "Cast", "Cast", "ConcatV2", "Mul", "ReadVariableOp", "SplitV"]
    (addition,) = [op for op in operations if op.type == "AddN"]
    operations.remove(addition)
    for device in devices:
        assert sorted(op.type for op in operations if op.device == device) == of_each
    assert len(operations) == 2 * len(of_each)
    assert {(v.dtype, *v.shape) for v in stages[-1].variables} == {(tf.bfloat16, 4800)}


def test_stages_keep_to_the_towers_devices(cpu_devices, operations_of):
    devices = cpu_devices[:3]
    spec = AggregationSpec(
        agg_small_grads_max_bytes=64,
        gradient_repacking=2,
        compact_dtype="float16",
        variable_consistency="relaxed",
    )
    stages = make_stages(spec, devices, 1 / 3)
    # Without a reduction nothing needs to leave its tower.
    operations = operations_of(
        lambda tensors: run_through(stages, tensors, lambda sent: sent),
        [((3, 3, 2, 4), tf.float32), *[((2, 2), tf.float32)] * 4, ((5, 3), tf.bfloat16)],
        3,
    )
    assert {op.device for op in operations} == {*devices}
    per_tower = [sorted(op.type for op in operations if op.device == d) for d in devices]
    assert per_tower[0] == per_tower[1] == per_tower[2]
    assert per_tower[0].count("Mul") == 2 * 2  # before and after, of two packs


def test_a_pack_depends_on_its_own_tensors_only(cpu_devices, operations_of):
    operations = operations_of(
        lambda tensors: stage_of(cpu_devices[:1], gradient_repacking=2)(tensors)[0],
        [VECTOR] * 4,
        1,
    )
    packs = [op for op in operations if op.type == "ConcatV2"]
    inputs = [[i.op.name for i in op.inputs if i.op.type == "Snapshot"] for op in packs]
    assert [len(names) for names in inputs] == [2, 2]
    assert not {*inputs[0]} & {*inputs[1]}
