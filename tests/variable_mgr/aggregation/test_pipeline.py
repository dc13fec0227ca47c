"""All stages together; around every algorithm they are in ../all_reduce/test_oracle.py."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from towers import run_through

from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.aggregation.pipeline import (
    CompactTransfer,
    Deferral,
    Repacking,
    Scale,
    SmallGradients,
    make_stages,
)
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce.reducer import Reducer

SHAPES = ((3, 3, 2, 4), (4,), (4,), (5, 3), (), (0, 2), (96,))


def context(devices):
    return all_reduce.ReduceContext(
        devices=devices, cpu_devices=devices, cpu_device=None, network_topology="dgx1"
    )


def reducer(name, devices):
    return Reducer(all_reduce.single(name), context(devices), [devices])


def aggregation(stages, reduce, towers, shapes=SHAPES):
    specs = [[tf.TensorSpec(shape) for shape in shapes]] * towers

    @tf.function(autograph=False, input_signature=[specs])
    def step(tensors):
        return run_through(stages, tensors, reduce)

    return step


def test_stages_are_in_the_one_order(cpu_devices):
    devices = cpu_devices[:2]
    spec = AggregationSpec(
        agg_small_grads_max_bytes=100,
        agg_small_grads_max_group=7,
        gradient_repacking=3,
        compact_dtype="float16",
        variable_consistency="relaxed",
    )
    *stages, deferral = make_stages(spec, devices, 0.5)
    assert stages == [
        SmallGradients(100, 7, devices),
        Repacking(3, devices, "float16"),
        Scale(1.0, devices, sent=0.5),
        CompactTransfer("float16", devices),
    ]
    assert isinstance(deferral, Deferral)


def test_what_is_off_is_left_out(cpu_devices):
    assert make_stages(AggregationSpec(), cpu_devices[:2], None) == ()
    # A group size alone joins nothing, and no limit on a group is needed without one.
    assert make_stages(AggregationSpec(agg_small_grads_max_group=0), ("a",), None) == ()


def test_deferral_keeps_packs_of_sixteen_bits(cpu_devices):
    devices = cpu_devices[:2]
    spec = AggregationSpec(
        gradient_repacking=2, compact_dtype="bfloat16", variable_consistency="relaxed"
    )
    stages = make_stages(spec, devices, 0.5)
    aggregation(stages, reducer("copy", devices), 2).get_concrete_function()
    kept = stages[-1].variables
    assert len(kept) == 4
    assert {v.dtype for v in kept} == {tf.bfloat16}
    elements = sum(int(np.prod(shape)) for shape in SHAPES)
    assert sum(v.shape[0] for v in kept) == 2 * elements


def test_the_mean_is_taken_in_float32(cpu_devices):
    devices = cpu_devices[:3]
    stages = make_stages(AggregationSpec(compact_dtype="bfloat16"), devices, 1 / 3)
    step = aggregation(stages, reducer("copy", devices), 3, [(1,)])
    for (mean,) in step([[tf.constant([1.0])], [tf.constant([2.0])], [tf.constant([2.0])]]):
        assert mean.numpy()[0] == np.float32(5) * np.float32(1 / 3)


@pytest.mark.parametrize("relaxed", [False, True])
def test_nan_of_one_tower_reaches_all_and_is_gone_in_the_next_step(relaxed, cpu_devices):
    devices = cpu_devices[:3]
    spec = AggregationSpec(
        agg_small_grads_max_bytes=64,
        gradient_repacking=2,
        compact_dtype="bfloat16",
        variable_consistency="relaxed" if relaxed else "strong",
    )
    step = aggregation(make_stages(spec, devices, 1 / 3), reducer("copy", devices), 3)
    good = [[tf.ones(shape) for shape in SHAPES] for _ in devices]
    bad = [list(own) for own in good]
    bad[1][3] = tf.tensor_scatter_nd_update(bad[1][3], [[2, 1]], [np.nan])
    results = [step(bad), step(good), step(good)]
    hit = results[1 if relaxed else 0]
    for own in hit:
        for i, tensor in enumerate(own):
            expected = np.zeros(SHAPES[i], bool)
            if i == 3:
                expected[2, 1] = True
            np.testing.assert_array_equal(np.isnan(tensor), expected)
    for own in results[2]:
        assert not any(np.isnan(tensor).any() for tensor in own)


def test_many_tensors_are_scaled_and_narrowed_as_one(cpu_devices, trace):
    devices = cpu_devices[:2]
    forms = [((16,), tf.float32)] * 300
    spec = AggregationSpec(
        gradient_repacking=1, compact_dtype="bfloat16", variable_consistency="relaxed"
    )
    stages = make_stages(spec, devices, 0.5)
    operations = trace(
        lambda tensors: run_through(stages, tensors, reducer("copy", devices)), forms, 2
    )
    kinds = sorted(op.type for op in operations)
    assert kinds == sorted(
        # Each device widens and scales what it gets; only the sum is made once.
        ["AddN", *["Mul"] * 2, *["Cast"] * 4]
        + ["ConcatV2", "SplitV", "ReadVariableOp", "AssignVariableOp"] * 2
    )


def test_all_stages_keep_to_the_towers_devices(cpu_devices, trace):
    devices = cpu_devices[:3]
    spec = AggregationSpec(
        agg_small_grads_max_bytes=64, gradient_repacking=2, variable_consistency="relaxed"
    )
    stages = make_stages(spec, devices, None)
    # Without a reduction nothing needs to leave its tower.
    operations = trace(
        lambda tensors: run_through(stages, tensors, lambda sent: sent),
        [(shape, tf.float32) for shape in SHAPES],
        3,
    )
    assert {op.device for op in operations} == {*devices}
    per_tower = [sorted(op.type for op in operations if op.device == d) for d in devices]
    assert per_tower[0] == per_tower[1] == per_tower[2]


def test_towers_must_fit_the_devices(cpu_devices):
    stages = make_stages(AggregationSpec(gradient_repacking=1), cpu_devices[:2], None)
    with pytest.raises(ValueError):
        run_through(stages, [[tf.ones([2])]], lambda sent: sent)
