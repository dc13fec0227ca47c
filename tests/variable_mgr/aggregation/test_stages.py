"""Every stage alone: what it sends, its inverse, and where operations run."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from towers import ByTower, run_through

from cnnbench.lab.predict import workload
from cnnbench.variable_mgr.aggregation.flat_buffers import FlatLayout
from cnnbench.variable_mgr.aggregation.pipeline import (
    Buckets,
    CompactTransfer,
    Repacking,
    Scale,
    SmallGradients,
    make_stages,
)
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec, Packing
from cnnbench.variable_mgr.all_reduce import ReduceContext, single
from cnnbench.variable_mgr.all_reduce.reducer import Reducer
from cnnbench.variable_mgr.sizes import buckets_of, buffer_sizes

VECTOR = ((64,), tf.float32)


def lengths(tensors):
    return [t.shape.num_elements() for t in tensors]


def ones(*sizes):
    return [tf.ones([size]) for size in sizes]


def in_float32(tensor):
    return np.asarray(tf.cast(tensor, tf.float32))


def there_and_back(stage):
    def both(tensors):
        sent, inverse = ByTower(stage)(tensors)
        return inverse(sent)

    return both


JOINING = {
    "small": lambda most, count, devices: SmallGradients(most, count, devices),
    "buckets": lambda most, count, devices: Buckets(most, devices),
    "packs": lambda most, count, devices: Repacking(count, devices),
}


@pytest.mark.parametrize("kind", JOINING)
@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(
        st.lists(st.one_of(st.integers(0, 7), st.sampled_from([16, 17])), max_size=3).map(tuple),
        max_size=10,
    ),
    dtypes=st.lists(st.sampled_from(["float32", "float16", "bfloat16"]), min_size=1, max_size=2),
    towers=st.integers(1, 3),
    most=st.integers(1, 200),
    count=st.integers(1, 9),
)
def test_what_is_joined_comes_apart_again(kind, shapes, dtypes, towers, most, count, cpu_devices):
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
    sent, inverse = ByTower(JOINING[kind](most, count, cpu_devices[:towers]))(tensors)
    for own, values in zip(sent, tensors, strict=True):
        # Every element once, and no padding.
        elements = [
            sorted(element for tensor in part for element in in_float32(tensor).ravel())
            for part in (own, values)
        ]
        assert elements[0] == elements[1]
    if kind == "packs" and shapes:
        line = 64 // tf.as_dtype(dtypes[0]).size
        assert lengths(sent[0]) == buffer_sizes(sum(lengths(tensors[0])), count, line)
    for before, after in zip(tensors, inverse(sent), strict=True):
        for a, b in zip(before, after, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(in_float32(a), in_float32(b), strict=True)


# Flat buffers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elements", "buffers", "expected"),
    [
        (10, 3, [3, 3, 4]),  # below a line: exact floor, remainder in the last
        (48, 3, [16, 16, 16]),
        (47, 3, [15, 15, 17]),
        (100, 3, [32, 32, 36]),  # floor is 33: down to whole lines of 16
        (160_000, 4, [40_000] * 4),
        (3, 5, [0, 0, 0, 0, 3]),
        (0, 2, [0, 0]),
        (7, 1, [7]),
    ],
)
def test_sizes_of_buffers(elements, buffers, expected):
    assert buffer_sizes(elements, buffers, 16) == expected


@pytest.mark.parametrize("traced", [False, True])
def test_tensors_of_whole_lines_are_views_of_the_buffer(traced, address):
    shapes = [(3, 16), (5,), (0, 4), (32,), (), (4, 4, 4)]
    flat = FlatLayout([tf.TensorShape(shape) for shape in shapes], tf.float32)
    (buffer,) = flat.join([tf.zeros(shape) for shape in shapes])
    split = tf.function(flat.split, autograph=False) if traced else flat.split
    parts = split([buffer])
    offsets = [address(parts[i]) - address(buffer) for i in (0, 3, 5)]
    assert offsets == [0, 48 * 4, 80 * 4]


def test_lines_are_counted_in_bytes(address):
    # 16 elements of two bytes are half a line, so they come after all others.
    tensors = [tf.cast(tf.fill([size], size), tf.bfloat16) for size in (16, 32, 64)]
    flat = FlatLayout([tensor.shape for tensor in tensors], tf.bfloat16)
    (buffer,) = flat.join(tensors)
    assert buffer.numpy()[[0, -1]].tolist() == [32, 16]
    first, second = (tf.bitcast(t, tf.uint16) for t in flat.split([buffer])[1:])
    assert address(second) - address(first) == 64


def test_cuts_of_a_tensor_over_buffers_are_views_too(address):
    tensor = tf.random.normal([160])
    buffers = FlatLayout([tensor.shape], tf.float32, 3).join([tensor])
    assert lengths(buffers) == [48, 48, 64]
    assert [address(b) - address(tensor) for b in buffers] == [0, 192, 384]


def test_shapes_must_be_known(cpu_devices):
    specs = [[tf.TensorSpec([2])], [tf.TensorSpec([None])]]
    step = tf.function(SmallGradients(64, 10, cpu_devices[:1]), autograph=False)
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
    found, inverse = ByTower(SmallGradients(64, 10, cpu_devices[:1]))(tensors)
    assert lengths(found[0]) == sent
    alone = [tensor for tensor in tensors[0] if any(tensor is other for other in found[0])]
    assert lengths(alone) == untouched
    restored = inverse(found)[0]
    assert all(any(tensor is other for other in restored) for tensor in alone)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_other_dtypes_are_never_joined_and_end_a_run(dtype, cpu_devices):
    one, other = tf.ones([2]), tf.ones([2], dtype)
    stage = ByTower(SmallGradients(64, 10, cpu_devices[:1]))
    sent, _ = stage([[other, other, one, one, other, one, one]])
    assert [t.dtype for t in sent[0]] == [dtype, dtype, tf.float32, dtype, tf.float32]
    assert lengths(sent[0]) == [2, 2, 4, 2, 4]


def test_small_gradients_are_joined_on_their_tower(cpu_devices, operations_of):
    devices = cpu_devices[:3]
    forms = [((2, 2), tf.float32)] * 4
    operations = operations_of(there_and_back(SmallGradients(64, 10, devices)), forms, 3)
    for device in devices:
        kinds = sorted(op.type for op in operations if op.device == device)
        assert kinds == ["ConcatV2", *["Reshape"] * 8, "SplitV"]
    assert len(operations) == 30


# Buckets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([], 10, []),
        ([4, 4, 4, 4, 4], 8, [[0], [1, 2], [3, 4]]),
        ([4, 4, 4], 12, [[0, 1, 2]]),
        ([4, 4, 4], 11, [[0], [1, 2]]),
        ([4, 20, 4, 4], 12, [[0], [1], [2, 3]]),
        ([20], 1, [[0]]),
        ([0, 8, 0, 8], 8, [[0, 1], [2, 3]]),
    ],
)
def test_buckets_are_filled_from_the_last_tensor_on(sizes, most, expected):
    assert buckets_of([("float32", size) for size in sizes], most) == expected


def test_gradients_of_two_dtypes_meet_in_the_one_that_is_sent(cpu_devices):
    tensors = [[tf.ones([4], tf.bfloat16), tf.ones([4]), tf.ones([4], tf.bfloat16)]]
    sent, _ = ByTower(Buckets(99, cpu_devices[:1], "bfloat16"))(tensors)
    assert [(t.dtype, t.shape[0]) for t in sent[0]] == [(tf.bfloat16, 12)]
    parted, _ = ByTower(Buckets(99, cpu_devices[:1]))(tensors)
    assert [t.dtype for t in parted[0]] == [tf.bfloat16, tf.float32, tf.bfloat16]


def test_predictions_join_the_same(cpu_devices):
    sizes = (5, 1, 30, 2, 2, 9)
    sent, _ = ByTower(Buckets(50, cpu_devices[:1]))([ones(*sizes)])
    packing = Packing(gradient_bucket_bytes=50)
    predicted = workload.sent(packing, [workload.Tensor(n) for n in sizes])
    assert [tensor.elements for tensor in predicted] == lengths(sent[0])


# Packs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("packs", "towers"), [(1, 2), (3, 3), (7, 2)])
def test_packed_sums_are_the_unpacked_ones_bit_for_bit(packs, towers, cpu_devices):
    devices = cpu_devices[:towers]
    rng = np.random.default_rng(packs)
    shapes = [(3, 3, 2, 8), (8,), (8, 5), (5,), (), (0,), (64,)]
    tensors = [[tf.constant(rng.normal(size=s), tf.float32) for s in shapes]] * towers
    reducer = Reducer(single("copy"), ReduceContext(devices=devices), [devices])
    packed = run_through([Repacking(packs, devices)], tensors, reducer)
    for own, other in zip(packed, ByTower(reducer)(tensors), strict=True):
        for a, b in zip(own, other, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_packs_of_another_dtype_hold_tensors_of_all(cpu_devices):
    tensors = [[tf.ones([5]), tf.cast(tf.fill([3], 2.0), tf.bfloat16)]]
    packed, inverse = ByTower(Repacking(2, cpu_devices[:1], "bfloat16"))(tensors)
    assert [pack.dtype for pack in packed[0]] == [tf.bfloat16] * 2
    wide = [[tf.cast(pack, tf.float32) for pack in packed[0]]]
    restored = inverse(wide)[0]
    np.testing.assert_array_equal(restored[0], np.ones(5, np.float32))
    np.testing.assert_array_equal(restored[1], np.full(3, 2.0, np.float32))


def test_each_device_takes_apart_what_it_is_given(cpu_devices, operations_of):
    devices = cpu_devices[:3]

    def with_shared_sums(tensors):
        sent, inverse = ByTower(Repacking(2, devices))(tensors)
        return inverse([sent[0]] * 3)

    operations = operations_of(with_shared_sums, [VECTOR] * 4, 3)
    for device in devices:
        kinds = sorted(op.type for op in operations if op.device == device)
        assert kinds == ["ConcatV2", "ConcatV2", "SplitV", "SplitV"]
    assert len(operations) == 12


def test_a_pack_depends_on_its_own_tensors_only(cpu_devices, operations_of):
    operations = operations_of(
        lambda tensors: Repacking(2, cpu_devices[:1])([[t] for t in tensors[0]])[0],
        [VECTOR] * 4,
        1,
    )
    packs = [op for op in operations if op.type == "ConcatV2"]
    inputs = [[i.op.name for i in op.inputs if i.op.type == "Snapshot"] for op in packs]
    assert [len(names) for names in inputs] == [2, 2]
    assert not {*inputs[0]} & {*inputs[1]}


def test_many_tensors_cost_few_ops(cpu_devices, operations_of):
    devices = cpu_devices[:2]
    reducer = Reducer(single("copy"), ReduceContext(devices=devices), [devices])
    for stages, most in (([], 100), ([Repacking(8, devices)], 9 * 8)):
        # Per pack: a concat and a split on both devices, an addition, and a cut of a
        # tensor that straddles two packs, which is joined again.
        made = operations_of(
            lambda t, s=stages: run_through(s, t, reducer), [((1024,), tf.float32)] * 100, 2
        )
        assert len(made) <= most


# Scaling and 16 bits --------------------------------------------------------------------------


def test_a_shared_sum_is_multiplied_once_where_it_was_made(cpu_devices, operations_of):
    devices = cpu_devices[:3]
    shared = []

    def mean(tensors):
        sent, inverse = ByTower(Scale(1 / 3, devices))(tensors)
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


def test_what_is_sent_is_multiplied_on_its_tower(cpu_devices):
    tensors = [[tf.constant(np.arange(4) + tower, tf.float16)] for tower in range(2)]
    sent, inverse = ByTower(Scale(1.0, cpu_devices[:2], sent=0.25))(tensors)
    for tower, (own,) in enumerate(sent):
        assert (own.dtype, own.device) == (tf.float16, cpu_devices[tower])
        np.testing.assert_array_equal(own, (np.arange(4) + tower) / 4)
    assert all(back is own for (back,), (own,) in zip(inverse(sent), sent, strict=True))


@pytest.mark.parametrize("towers", [2, 3, 4, 5, 7, 8, 49, 1000])
def test_float16_is_divided_by_a_power_of_two_as_large_as_the_number_of_towers(towers):
    scale = 1 / towers
    (stage, _) = make_stages(AggregationSpec(compact_dtype="float16"), (), scale)
    assert towers * stage.sent <= 1 < 2 * towers * stage.sent
    assert np.log2(stage.sent) == round(np.log2(stage.sent))
    assert stage.sent * stage.factor == scale
    (stage, _) = make_stages(AggregationSpec(compact_dtype="bfloat16"), (), scale)
    assert stage == Scale(scale, ())


def test_values_are_rounded_to_the_wire(cpu_devices):
    half = tf.ones([3], tf.bfloat16)
    sent, inverse = ByTower(CompactTransfer("bfloat16", cpu_devices[:1]))(
        [[tf.constant([257.0, 1 + 2**-12]), half]]
    )
    assert sent[0][1] is half
    (rounded, widened) = inverse(sent)[0]
    np.testing.assert_array_equal(rounded, [256.0, 1.0])
    assert rounded.dtype == widened.dtype == tf.float32


def test_narrowed_on_the_sender_and_widened_on_the_receiver(cpu_devices, operations_of):
    devices = cpu_devices[:3]

    def summed(tensors):
        sent, inverse = ByTower(CompactTransfer("float16", devices))(tensors)
        with tf.device(devices[2]):
            total = tf.add_n([own[0] for own in sent])
        return inverse([[total]] * 3)

    operations = operations_of(summed, [((4,), tf.float32)], 3)
    casts = [op.device for op in operations if op.type == "Cast"]
    assert casts == [*devices, *devices]
