"""All stages together; around every algorithm they are in ../all_reduce/test_oracle.py."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from towers import run_through

from cnnbench.variable_mgr.aggregation.pipeline import (
    CompactTransfer,
    Deferral,
    Repacking,
    Scale,
    SmallGradients,
    make_stages,
)
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce import ReduceContext, single
from cnnbench.variable_mgr.all_reduce.reducer import Reducer

SHAPES = ((3, 3, 2, 4), (4,), (4,), (5, 3), (), (0, 2), (96,))


def reducer(devices):
    return Reducer(single("copy"), ReduceContext(devices=devices), [devices])


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


def test_what_is_off_is_left_out():
    # A group size alone joins nothing, and no limit on a group is needed without one.
    assert make_stages(AggregationSpec(agg_small_grads_max_group=0), ("a",), None) == ()


@pytest.mark.parametrize("relaxed", [False, True])
def test_nan_of_one_tower_reaches_all_and_is_gone_in_the_next_step(relaxed, cpu_devices):
    devices = cpu_devices[:3]
    spec = AggregationSpec(
        agg_small_grads_max_bytes=64,
        gradient_repacking=2,
        compact_dtype="bfloat16",
        variable_consistency="relaxed" if relaxed else "strong",
    )
    stages = make_stages(spec, devices, 1 / 3)
    step = tf.function(
        lambda tensors: run_through(stages, tensors, reducer(devices)), autograph=False
    )
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


def test_many_tensors_are_scaled_and_narrowed_as_one(cpu_devices, operations_of):
    devices = cpu_devices[:2]
    forms = [((16,), tf.float32)] * 300
    spec = AggregationSpec(
        gradient_repacking=1, compact_dtype="bfloat16", variable_consistency="relaxed"
    )
    stages = make_stages(spec, devices, 0.5)
    operations = operations_of(
        lambda tensors: run_through(stages, tensors, reducer(devices)), forms, 2
    )
    kinds = sorted(op.type for op in operations)
    assert kinds == sorted(
        # Each device widens and scales what it gets; only the sum is made once.
        ["AddN", *["Mul"] * 2, *["Cast"] * 4]
        + ["ConcatV2", "SplitV", "ReadVariableOp", "AssignVariableOp"] * 2
    )


def test_all_stages_keep_to_the_towers_devices(cpu_devices, operations_of):
    devices = cpu_devices[:3]
    spec = AggregationSpec(
        agg_small_grads_max_bytes=64, gradient_repacking=2, variable_consistency="relaxed"
    )
    stages = make_stages(spec, devices, None)
    # Without a reduction nothing needs to leave its tower.
    operations = operations_of(
        lambda tensors: run_through(stages, tensors, lambda sent: sent),
        [(shape, tf.float32) for shape in SHAPES],
        3,
    )
    assert {op.device for op in operations} == {*devices}
    per_tower = [sorted(op.type for op in operations if op.device == d) for d in devices]
    assert per_tower[0] == per_tower[1] == per_tower[2]
