"""Columns of gradients in one form, and sums of sparse ones; test_modes.py has whole updates."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.variable_mgr.gradients import (
    VariableGradients,
    cast,
    check_towers_complete,
    complete_gradients,
    concat,
    map_on_devices,
    reduce_sparse,
    reduce_where_updated,
    slices_can_be_gathered,
    sum_tensors,
    to_dense,
    transpose_lists,
)
from cnnbench.variable_mgr.registry import find_mode
from cnnbench.variable_mgr.spec import VariableMgrSpec

ROWS, WIDTH = 5, 2


@pytest.fixture(scope="module")
def variables(cpu_devices):
    made = []
    for device in cpu_devices[:4]:
        with tf.device(device):
            made.append(tf.Variable(tf.zeros([ROWS, WIDTH])))
    return made


@pytest.fixture
def completed(variables, cpu_devices):
    """completed(gradients of the towers of one variable, **options): their column."""

    def call(*gradients, **options):
        count = len(gradients)
        column = VariableGradients([*gradients], variables[:count])
        return complete_gradients([column], cpu_devices[:count], **options)[0]

    return call


def slices(rows, first=0, dtype=tf.float32):
    values = np.arange(first, first + WIDTH * len(rows)).reshape(len(rows), WIDTH)
    return tf.IndexedSlices(tf.cast(values, dtype), tf.constant(rows, tf.int64))


def test_slices_that_are_kept_pass_untouched(completed, variables):
    half, one = slices([0, 1, 1], dtype=tf.bfloat16), slices([1])
    column = completed(half, one, keep_sparse=True)
    assert column.is_sparse
    assert column.gradients[0] is half
    assert column.gradients[1] is one
    assert column.variables == variables[:2]


def test_none_among_kept_slices_is_no_slices_on_its_tower(completed, cpu_devices):
    @tf.function(autograph=False)
    def step():
        nothing = completed(slices([0, 1], dtype=tf.bfloat16), None, keep_sparse=True).gradients[1]
        assert nothing.values.device == nothing.indices.device == cpu_devices[1]
        return nothing.values, nothing.indices

    values, indices = step()
    assert (values.dtype, values.shape) == (tf.bfloat16, [0, WIDTH])
    assert (indices.dtype, indices.shape) == (tf.int64, [0])


def test_slices_beside_a_dense_gradient_become_dense(completed):
    column = completed(slices([1, 1], 1), tf.ones([ROWS, WIDTH]), keep_sparse=True)
    assert not column.is_sparse
    np.testing.assert_array_equal(column.gradients[0], [[0, 0], [4, 6], *[[0, 0]] * 3])


def test_a_variable_without_gradients_is_left_out_when_slices_are_kept(variables, cpu_devices):
    columns = [VariableGradients([g], variables[:1]) for g in (None, tf.ones([ROWS, WIDTH]))]
    (column,) = complete_gradients(columns, cpu_devices[:1], keep_sparse=True)
    assert not column.is_sparse


def test_casts_and_zeros_are_on_the_towers_device(completed, cpu_devices):
    @tf.function(autograph=False)
    def step(first, second):
        return completed(first, second, None).gradients

    half = tf.TensorSpec([ROWS, WIDTH], tf.bfloat16)
    graph = step.get_concrete_function(half, half).graph
    casts = [op.device for op in graph.get_operations() if op.type == "Cast"]
    assert casts == list(cpu_devices[:2])
    assert graph.outputs[2].op.inputs[0].device == cpu_devices[2]


def test_a_dtype_that_towers_agree_on_can_be_kept(completed):
    half, whole = tf.ones([ROWS, WIDTH], tf.bfloat16), tf.ones([ROWS, WIDTH])
    kept = completed(half, None, keep_dtype=True).gradients
    assert kept[0] is half
    assert kept[1].dtype == tf.bfloat16
    for column in (completed(half, whole, keep_dtype=True), completed(half, None)):
        assert [gradient.dtype for gradient in column.gradients] == [tf.float32] * 2


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.one_of(st.none(), st.lists(st.integers(0, ROWS - 1), max_size=6)),
        min_size=1,
        max_size=4,
    ).filter(lambda towers: any(rows is not None for rows in towers)),
    mean=st.booleans(),
)
def test_the_update_does_not_depend_on_what_travels(rows, mean, variables, cpu_devices):
    count = len(rows)
    devices = cpu_devices[:count]
    grads = [None if r is None else slices(r, 10 * t) for t, r in enumerate(rows)]
    scale = 1 / count if mean else None
    columns = [VariableGradients(grads, variables[:count])]
    (kept,), (dense,) = (
        complete_gradients(columns, devices, keep_sparse=keep) for keep in (True, False)
    )
    assert (kept.is_sparse, dense.is_sparse) == (True, False)
    total = sum_tensors(dense.gradients) * (scale or 1)
    sums = reduce_sparse(kept, devices, scale)
    assert len(sums) == count
    for own in sums:
        np.testing.assert_array_equal(own, total.numpy(), strict=True)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_narrow_values_travel_narrow_and_are_added_in_float32_on_every_device(
    dtype, completed, cpu_devices
):
    devices = cpu_devices[:2]

    @tf.function(autograph=False)
    def step(values):
        narrow = [tf.IndexedSlices(tf.cast(v, dtype), tf.constant([1])) for v in values]
        return reduce_sparse(completed(*narrow, keep_sparse=True), devices, 0.5)

    values = [tf.constant([[2048.0, np.nan]]), tf.constant([[2.0, 1.0]])]
    for total in step(values):
        assert total.dtype == tf.float32
        np.testing.assert_array_equal(total[:2], [[0, 0], [1025, np.nan]])
    operations = step.get_concrete_function(values).graph.get_operations()
    joins = [op for op in operations if op.type == "ConcatV2" and op.inputs[0].dtype == dtype]
    assert [op.device for op in joins] == list(devices)
    for kind in ("UnsortedSegmentSum", "Mul"):
        assert [op.device for op in operations if op.type == kind] == list(devices)


def test_gradients_of_a_gather_whose_number_of_rows_is_not_known(completed, cpu_devices):
    devices = cpu_devices[:2]

    @tf.function(autograph=False, input_signature=[[tf.TensorSpec([None], tf.int32)] * 2])
    def step(rows):
        found = []
        for device, own in zip(devices, rows, strict=False):
            with tf.device(device), tf.GradientTape() as tape:
                table = tf.zeros([ROWS, WIDTH])
                tape.watch(table)
                loss = tf.reduce_sum(tf.gather(table, own))
            found.append(tape.gradient(loss, table))
        column = completed(*found, keep_sparse=True)
        assert column.is_sparse
        return reduce_sparse(column, devices, None)

    for total in step([tf.constant([0, 0, 3]), tf.constant([3])]):
        np.testing.assert_array_equal(total[:, 0], [2, 0, 0, 2, 0])


def test_one_tensor_is_passed_on_and_several_are_joined():
    one, other = tf.constant([1.0, 2.0]), tf.constant([4.0, 8.0])
    assert sum_tensors([one]) is concat([one]) is cast(one, tf.float32) is one
    assert sum_tensors([one, other, other]).numpy().tolist() == [9, 18]
    assert concat([one, other]).numpy().tolist() == [1, 2, 4, 8]
    assert cast(one, tf.bfloat16).dtype == tf.bfloat16
    assert transpose_lists([[1, 2, 3], [4, 5, 6]]) == [[1, 4], [2, 5], [3, 6]]


def test_slices_become_dense_with_rows_of_an_index_added(variables):
    gradient = slices([3, 0, 3], dtype=tf.float16)
    dense = to_dense(gradient, variables[0])
    assert (dense.dtype, dense.numpy().tolist()) == (
        tf.float32,
        [[2, 3], [0, 0], [0, 0], [4, 6], [0, 0]],
    )
    assert to_dense(gradient, variables[0], tf.float16).dtype == tf.float16
    whole = tf.ones([ROWS, WIDTH], tf.bfloat16)
    assert to_dense(whole, variables[0]).dtype == tf.float32
    assert to_dense(whole, variables[0], tf.bfloat16) is whole


@pytest.mark.parametrize(
    ("by_tower", "can"),
    [
        (([1, 2], [3, 4]), True),
        (([1, 2],), True),
        (([1, 2], [3]), False),
    ],
)
def test_slices_of_one_shape_can_be_gathered(by_tower, can, variables):
    column = VariableGradients([slices(rows) for rows in by_tower], variables[: len(by_tower)])
    assert slices_can_be_gathered(column) is can


@pytest.mark.parametrize("unknown", ["values", "indices"])
def test_slices_of_unknown_shape_cannot_be_gathered(unknown, variables):
    shapes = {
        "values": [2, WIDTH],
        "indices": [2],
        unknown: [None, WIDTH][: 2 - (unknown[0] == "i")],
    }
    found = []

    @tf.function(autograph=False)
    def look(values, indices):
        column = VariableGradients([tf.IndexedSlices(values, indices)] * 2, variables[:2])
        found.append(slices_can_be_gathered(column))

    look.get_concrete_function(
        tf.TensorSpec(shapes["values"]), tf.TensorSpec(shapes["indices"], tf.int64)
    )
    assert found == [False]


@pytest.mark.parametrize(("gradients", "copies", "devices"), [(1, 2, 2), (2, 1, 2), (2, 2, 1)])
def test_each_device_has_a_gradient_and_a_copy(gradients, copies, devices, variables, cpu_devices):
    column = VariableGradients([None] * gradients, variables[:copies])
    with pytest.raises(ValueError, match=f"gradients of {gradients} towers for {devices} devices"):
        check_towers_complete([column], cpu_devices[:devices])
    check_towers_complete([VariableGradients([None] * 2, variables[:2])], cpu_devices[:2])


def test_a_gather_replaces_what_other_processes_have(variables, cpu_devices):
    column = VariableGradients([slices([0]), slices([2], 10)], variables[:2])

    def gather(tensors):  # the other process has the same
        return [tf.concat([*tensors, *tensors], 0)] * 2

    for scale, factor in ((None, 1), (0.5, 0.5)):
        alone = reduce_sparse(column, cpu_devices[:2], scale)
        joined = reduce_sparse(column, cpu_devices[:2], scale, gather)
        rows = np.zeros((ROWS, WIDTH))
        rows[0], rows[2] = [0, 1], [10, 11]
        assert [total.device for total in joined] == list(cpu_devices[:2])
        for total in alone:
            np.testing.assert_array_equal(total, factor * rows)
        for total in joined:
            np.testing.assert_array_equal(total, 2 * factor * rows)


def test_functions_run_on_the_devices_of_their_values(cpu_devices):
    found = map_on_devices(cpu_devices[1:3], lambda value: tf.constant(value) + 1.0, [1.0, 2.0])
    assert [(float(one), one.device) for one in found] == [
        (2.0, cpu_devices[1]),
        (3.0, cpu_devices[2]),
    ]
    column = VariableGradients([None, tf.ones([1])], [1, 2])
    mapped = column.map_gradients(cpu_devices[:2], lambda gradient, variable: (gradient, variable))
    assert mapped.gradients[0] == (None, 1)
    assert mapped.gradients[1][1] == 2
    assert not column.is_sparse


@pytest.mark.parametrize(("reduction", "scale"), [("mean", 1 / 3), ("sum", 1.0)])
def test_reduced_where_the_updated_copy_is(variables, cpu_devices, reduction, scale):
    spec = VariableMgrSpec(
        mode=find_mode("parameter_server"),
        devices=tuple(cpu_devices[:3]),
        cpu_device=cpu_devices[0],
        reduction=reduction,
    )
    dense = [tf.fill([ROWS, WIDTH], value) for value in (1.0, 2.0, 6.0)]
    columns = [
        VariableGradients(gradients, variables[:3])
        for gradients in ([slices([0, 1], 1), None, slices([1])], [None] * 3, dense)
    ]
    found = reduce_where_updated(columns, spec, lambda column: column.variables[1])
    assert [column.variables for column in found] == [[variables[1]]] * 2
    totals = [total for column in found for total in column.gradients]
    assert {total.device for total in totals} == {variables[1].device}
    rows = [[1, 2], [3, 5], *[[0, 0]] * 3]
    np.testing.assert_allclose(totals[0], np.multiply(rows, scale), rtol=1e-6)
    np.testing.assert_allclose(totals[1], np.full([ROWS, WIDTH], 9 * scale), rtol=1e-6)
