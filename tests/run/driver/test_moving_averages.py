"""--ema_decay: averages of weights by their formula, in evaluations, checkpoints and exports.

Tests cnnbench/run/driver/checkpoints.py and cnnbench/run/driver/evaluation.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from short_runs import KINDS, build, run

from cnnbench.errors import BenchmarkError
from cnnbench.run.driver.checkpoints import Checkpoints, select_moving_averages
from cnnbench.variable_mgr.towers import read

DECAY = 0.75
RATE = 0.0625

pytestmark = pytest.mark.usefixtures("quick_start")


def weights(built):
    """Trained variables by name, as arrays."""
    found = built.manager.savable_variables().items()
    return {n: v.primary.numpy() for n, v in found if v.primary.trainable}


def averages(built):
    return {
        name: slot.primary.numpy() for name, slot in select_moving_averages(built.slots).items()
    }


# Updates in each mode, and of each number of slots.
CASES = {"adamw": [KINDS[0], *KINDS[2:]], "sgd": KINDS[1:2]}


@pytest.mark.parametrize(
    ("flags", "optimizer"),
    slow_if(
        lambda case: case.id not in ("adamw-ps", "adamw-mirrored"),
        [
            pytest.param(*mode.values, optimizer, id=f"{optimizer}-{mode.id}")
            for optimizer, modes in CASES.items()
            for mode in modes
        ],
    ),
)
def test_averages_follow_their_formula(flags, optimizer):
    own = {"num_gpus": 2, "optimizer": optimizer, "weight_decay": 0.01}
    built = build("oracle_of_matrices", ema_decay=DECAY, **own, **flags)
    expected = weights(built)
    for step in range(3):
        for name, value in averages(built).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-6, atol=1e-7)
        tf.nest.map_structure(lambda value: value.numpy(), built.step(RATE).loss)
        after = weights(built)
        assert step or any((after[name] != expected[name]).any() for name in after)
        expected = {n: DECAY * expected[n] + (1 - DECAY) * w for n, w in after.items()}
    for slot in select_moving_averages(built.slots).values():
        if built.manager.replicas_in_sync:
            assert all(np.array_equal(read(copy), read(slot.primary)) for copy in slot.copies)


def trained(folder, steps, **flags):
    own = {"train_dir": str(folder), "num_batches": steps, "num_warmup_batches": 0}
    return run(**own, **flags, print_training_accuracy=True)


def values_in(folder, part, end=""):
    path = tf.train.latest_checkpoint(str(folder))
    reader = tf.train.load_checkpoint(path)
    names = reader.get_variable_to_shape_map()
    return {n: reader.get_tensor(n) for n in sorted(names) if n.startswith(part) and end in n}


@pytest.mark.slow
def test_a_resumed_run_has_the_averages_of_one_run(tmp_path):
    once, twice = tmp_path / "once", tmp_path / "twice"
    trained(once, 4, ema_decay=DECAY)
    trained(twice, 2, ema_decay=DECAY)
    trained(twice, 4, ema_decay=DECAY)
    expected = values_in(once, "slots", "moving_average")
    found = values_in(twice, "slots", "moving_average")
    assert expected.keys() == found.keys() != set()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_averages_start_from_the_weights_of_a_checkpoint_without_them(tmp_path):
    made = build("oracle", optimizer="momentum")
    made.step(RATE).loss.numpy()
    prefix = Checkpoints(made.manager, made.slots, optimizer_name="momentum").save(str(tmp_path), 1)
    other = build("oracle", optimizer="momentum", ema_decay=DECAY)
    restored = Checkpoints(other.manager, other.slots, optimizer_name="momentum").restore(prefix)
    assert restored.notices[0].endswith("has no moving averages; they start from its weights")
    momenta = [n for n in other.slots if n in made.slots]
    assert momenta
    for name in momenta:
        np.testing.assert_array_equal(other.slots[name].primary, made.slots[name].primary)
    for name, value in averages(other).items():
        np.testing.assert_array_equal(value, weights(made)[name])
    with pytest.raises(BenchmarkError, match="no moving averages: it was written without"):
        Checkpoints(other.manager, averaged=True).restore(prefix)


def test_evaluations_use_the_averages(tmp_path):
    """With a decay near 1, averages are the first weights, and training changes no evaluation."""
    flags = {"init_learning_rate": 0.5, "num_eval_batches": 2, "ema_decay": 1 - 1e-7}
    record = trained(tmp_path, 4, eval_during_training_every_n_steps=2, **flags).record
    first, last = (evaluation.loss for evaluation in record.evaluations)
    again = run(eval=True, train_dir=str(tmp_path), **flags).record
    assert again.evaluations[-1].loss == pytest.approx(last, rel=1e-6)
    assert first == pytest.approx(last, rel=1e-4)
    weights = run(eval=True, train_dir=str(tmp_path), **{**flags, "ema_decay": 0}).record
    assert weights.evaluations[-1].loss != pytest.approx(last, rel=1e-4)
