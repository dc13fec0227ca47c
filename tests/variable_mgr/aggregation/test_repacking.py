from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from towers import ByTower, run_through

from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.pipeline import Repacking
from cnnbench.variable_mgr.all_reduce import ReduceContext, single
from cnnbench.variable_mgr.all_reduce.reducer import Reducer

SHAPES = st.lists(
    st.lists(st.one_of(st.integers(0, 7), st.just(16)), max_size=3).map(tuple), max_size=8
)


@settings(max_examples=40, deadline=None)
@given(
    shapes=SHAPES,
    dtype=st.sampled_from([tf.float32, tf.float16, tf.bfloat16]),
    packs=st.integers(1, 9),
    towers=st.integers(1, 3),
)
def test_the_inverse_restores_everything(shapes, dtype, packs, towers, cpu_devices):
    rng = np.random.default_rng(3)
    tensors = [
        [tf.cast(rng.integers(-99, 99, size=shape), dtype) for shape in shapes]
        for _ in range(towers)
    ]
    sent, inverse = ByTower(Repacking(packs, cpu_devices[:towers]))(tensors)
    assert {len(own) for own in sent} == {packs if shapes else 0}
    for before, after in zip(tensors, inverse(sent), strict=True):
        assert [(t.shape, t.dtype) for t in before] == [(t.shape, t.dtype) for t in after]
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize(("packs", "towers"), [(1, 2), (3, 3), (7, 2)])
def test_packed_sums_are_the_unpacked_ones_bit_for_bit(packs, towers, cpu_devices, place):
    devices = cpu_devices[:towers]
    rng = np.random.default_rng(packs)
    shapes = [(3, 3, 2, 8), (8,), (8, 5), (5,), (), (0,), (64,)]
    tensors = place([[rng.normal(size=s).astype(np.float32) for s in shapes]] * towers)
    reducer = Reducer(single("copy"), ReduceContext(devices=devices), [devices])
    packed = run_through([Repacking(packs, devices)], tensors, reducer)
    for own, other in zip(packed, ByTower(reducer)(tensors), strict=True):
        for a, b in zip(own, other, strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_packs_are_equal_and_the_last_takes_the_rest(cpu_devices, place):
    tensors = place([[np.ones(1000), np.ones(37)]])
    sent, _ = ByTower(Repacking(4, cpu_devices[:1]))(tensors)
    # 1037 // 4 = 259, in whole lines of 16 floats.
    assert [t.shape[0] for t in sent[0]] == [256, 256, 256, 269]


def test_two_dtypes_are_refused(cpu_devices):
    tensors = [[tf.ones([2]), tf.ones([2]), tf.ones([2], tf.bfloat16)]]
    with pytest.raises(ValueError, match=r"gradient 0 is float32, gradient 2 is bfloat16"):
        ByTower(Repacking(1, cpu_devices[:1]))(tensors)


@pytest.mark.parametrize("packs", [0, -1, 501])
def test_packs_are_neither_none_nor_very_many(packs):
    with pytest.raises(FlagError, match=f"--gradient_repacking={packs}: must be 1 to 500 packs"):
        Repacking(packs, ("a",))


def test_each_device_takes_apart_what_it_is_given(cpu_devices, trace):
    devices = cpu_devices[:3]

    def there_and_back(tensors):
        sent, inverse = ByTower(Repacking(2, devices))(tensors)
        # As an algorithm that hands all devices the same sums.
        return inverse([sent[0]] * 3)

    operations = trace(there_and_back, [((64,), tf.float32)] * 4, 3)
    for device in devices:
        kinds = sorted(op.type for op in operations if op.device == device)
        assert kinds == ["ConcatV2", "ConcatV2", "SplitV", "SplitV"]
    assert len(operations) == 12


def test_a_pack_depends_on_its_own_tensors_only(cpu_devices):
    @tf.function(autograph=False, input_signature=[[tf.TensorSpec([64])] * 4])
    def step(tensors):
        sent, _ = ByTower(Repacking(2, cpu_devices[:1]))([tensors])
        return sent

    operations = step.get_concrete_function().graph.get_operations()
    packs = [op for op in operations if op.type == "ConcatV2"]
    inputs = [[i.op.name for i in op.inputs if i.op.type == "Placeholder"] for op in packs]
    assert [len(names) for names in inputs] == [2, 2]
    assert not {*inputs[0]} & {*inputs[1]}


@pytest.mark.parametrize("packs", [1, 8])
def test_many_tensors_cost_few_ops(packs, cpu_devices, trace):
    devices = cpu_devices[:2]

    def ops_of_a_mean(stages, forms):
        reducer = Reducer(single("copy"), ReduceContext(devices=devices), [devices])
        return len(trace(lambda t: run_through(stages, t, reducer), forms, 2))

    forms = [((1024,), tf.float32)] * 100
    assert ops_of_a_mean([], forms) == 100
    # Per pack: a concat and a split on both devices, an addition, and a cut of a
    # tensor that straddles two packs, which is joined again.
    assert ops_of_a_mean([Repacking(packs, devices)], forms) <= 9 * packs


def test_packs_of_another_dtype_hold_tensors_of_all(cpu_devices):
    tensors = [[tf.ones([5]), tf.cast(tf.fill([3], 2.0), tf.bfloat16)]]
    packed, inverse = ByTower(Repacking(2, cpu_devices[:1], "bfloat16"))(tensors)
    assert [pack.dtype for pack in packed[0]] == [tf.bfloat16] * 2
    wide = [[tf.cast(pack, tf.float32) for pack in packed[0]]]
    restored = inverse(wide)[0]
    np.testing.assert_array_equal(restored[0], np.ones(5, np.float32))
    np.testing.assert_array_equal(restored[1], np.full(3, 2.0, np.float32))
