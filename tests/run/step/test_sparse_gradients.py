"""The gradient of an embedding: slices up to the reduction, then what a dense one would be.

Tests cnnbench/run/step/update.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import short_runs
import tensorflow as tf
from covering import slow_if
from data_sets import WEATHER, own_forecast
from short_runs import MODES, RATE

from cnnbench.run.step.update import Updater

pytestmark = pytest.mark.usefixtures("quick_start")

ROWS, WIDTH, BATCH = 50, 8, 3


def build(**flags):
    return short_runs.build(**{**WEATHER, "batch_size": BATCH, "num_gpus": 2, **flags})


def tables(built):
    return [c.numpy() for c in built.manager.savable_variables()["embedding0/table"].copies]


CLIPPED = {"optimizer": "momentum", "gradient_clip": 0.01}
SCALED = {
    "precision": "fp16",
    "fp16_loss_scale": 64.0,
    "fp16_enable_auto_loss_scale": True,
    "optimizer": "adam",
}


@pytest.mark.parametrize(
    ("mode", "flags"),
    slow_if(
        lambda case: "replicated-clip" not in case.id,
        [
            pytest.param(*MODES[number].values, flags, id=f"{MODES[number].id}-{name}")
            for number, name, flags in (
                *((1, "clip", CLIPPED), (3, "clip", CLIPPED), (5, "scaled", SCALED)),
            )
        ],
    ),
)
def test_slices_reach_the_manager_and_the_update_is_the_dense_one(mode, flags, monkeypatch):
    seen: list[Any] = []
    before_reduction = Updater.prepare_for_reduction

    def recorded(self, column):
        made = before_reduction(self, column)
        if column.variables[0].shape == (ROWS, WIDTH):
            seen.extend(made.gradients)
        return made

    monkeypatch.setattr(Updater, "prepare_for_reduction", recorded)
    updated = []
    for dense in (False, True):
        built = build(**mode, **flags, sparse_to_dense_grads=dense)
        before = tables(built)
        for _ in range(3):
            built.step(RATE).loss.numpy()
        updated.append(tables(built))
        batches = [built.inputs.get_tower_batch(t, ()) for t in range(2)]
    assert len(seen) == 4
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in seen)
    assert {tuple(gradient.values.shape) for gradient in seen} == {(BATCH, WIDTH)}
    assert {gradient.dtype for gradient in seen} == (
        {tf.float16 if "precision" in flags else tf.float32}
    )
    for sparse, dense in zip(*updated, strict=True):
        np.testing.assert_allclose(sparse, dense, rtol=1e-4, atol=1e-6)
    if "gradient_clip" in flags:
        named = {int(i) for batch in batches for i in batch.features["station"]}
        moved = {int(i) for i in np.flatnonzero((updated[0][0] != before[0]).any(axis=1))}
        alone = {int(i) for i in batches[0].features["station"]}
        assert moved == (alone if mode["variable_update"] == "independent" else named)


def crossing(built):
    """What operations hand to another device, weights that are read left out."""
    return [
        tensor
        for operation in built.step.graph.get_operations()
        for tensor in operation.inputs
        if operation.device and tensor.device and operation.device != tensor.device
        if tensor.op.type not in ("ReadVariableOp", "Identity") and tensor.dtype != tf.resource
    ]


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param({"variable_update": "parameter_server"}, id="ps"),
        pytest.param(
            {"variable_update": "replicated", "all_reduce_spec": "xring"},
            marks=pytest.mark.slow,
            id="xring",
        ),
    ],
)
def test_rows_travel_instead_of_the_table(mode):
    sent = [tuple(tensor.shape) for tensor in crossing(build(**mode))]
    assert (BATCH, WIDTH) in sent
    assert (ROWS, WIDTH) not in sent
    dense = crossing(build(**mode, sparse_to_dense_grads=True))
    whole = [tuple(tensor.shape) for tensor in dense]
    assert (BATCH, WIDTH) not in whole
    assert max(np.prod(shape) for shape in whole) >= ROWS * WIDTH


TABLE = """
    def build(self, net, features):
        import tensorflow as tf
        table = net.variable("table", (50, 8), Initializer.constant(2.0))
        look_up = lambda ids, table: tf.gather(table, ids)
        x = net.apply(look_up, features["station"], table, shape=(8,))
        return {"rain": net.logits(x), "degrees": net.affine(x, 1, None)}
"""


@pytest.mark.slow
def test_weight_decay_of_a_table_is_added_to_its_rows(tmp_path):
    """A table of a model's own decays everywhere, its gradient comes in slices."""
    flags = own_forecast(tmp_path, TABLE)
    for mode, more in (
        ("parameter_server", {}),
        ("independent", {}),
        ("replicated", {"variable_consistency": "relaxed"}),
    ):
        built = build(**flags, weight_decay=0.5, variable_update=mode, **more)
        for _ in range(2 if more else 1):  # relaxed updates wait for the next step
            built.step(RATE).loss.numpy()
        table = built.manager.savable_variables()["table"]
        for tower, copy in enumerate(table.copies):
            of_towers = [built.inputs.get_tower_batch(t, ()).features["station"] for t in range(2)]
            own = of_towers[tower : tower + 1] if mode == "independent" else of_towers
            named = {int(i) for ids in own for i in ids}
            others = [row for row in range(ROWS) if row not in named]
            np.testing.assert_allclose(copy.numpy()[others], 2.0 - RATE * 0.5 * 2.0, rtol=1e-6)
            assert np.abs(copy.numpy()[sorted(named)] - (2.0 - RATE)).max() > 1e-4
