"""Steps of several passes; test_variable_update_oracle.py has their losses in every mode.

Tests cnnbench/run/step/accumulation.py.
"""

import numpy as np
import pytest
import short_runs
import tensorflow as tf
from covering import slow_if
from data_sets import WEATHER
from short_runs import RATE

from cnnbench.data.synthetic import draw_synthetic_rows
from cnnbench.variable_mgr.towers import read

pytestmark = pytest.mark.usefixtures("quick_start")

PASSES = 3
HARMLESS, NAN = 0, 13


def build(passes=PASSES, **flags):
    return short_runs.build(**{"batch_size": 2, "gradient_accumulation_steps": passes, **flags})


def state(built):
    facades = {**built.manager.savable_variables(), **built.slots}
    return {name: facade.primary.numpy() for name, facade in facades.items()}


def averages(built):
    return {name: value for name, value in state(built).items() if name.endswith(("mean", "var"))}


@pytest.mark.slow
def test_every_pass_has_images_of_its_own_and_is_traced_once(cpu_devices):
    built = build(num_gpus=2, variable_update="replicated")
    spec = built.inputs.spec
    rows = draw_synthetic_rows(tf.range(2 * PASSES * 2), spec.seed, spec.examples)["image"].numpy()
    parts = []
    for _ in range(PASSES):
        batches = built.inputs.next()
        parts.append([built.inputs.get_tower_batch(t, batches).features.numpy() for t in range(2)])
    of_towers = [np.concatenate(of_tower) for of_tower in zip(*parts, strict=True)]
    np.testing.assert_array_equal(np.concatenate(of_towers), rows)
    # The next step begins again.
    again = built.inputs.get_tower_batch(0, built.inputs.next()).features.numpy()
    np.testing.assert_array_equal(again, parts[0][0])
    assert built.step._earlier.traces == 1


@pytest.mark.slow
def test_moving_averages_follow_one_pass_after_the_other():
    together, apart = build(num_gpus=1), build(passes=1, num_gpus=1)
    images = together.inputs._towers[0][0].numpy()
    for number in range(2 * PASSES):
        apart.inputs._towers[0][0].assign(np.split(images, PASSES)[number % PASSES])
        apart.step(0.0)
    for _ in range(2):
        together.step(0.0)
    expected, found = averages(apart), averages(together)
    assert expected
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def address(variable):
    """The address of a variable's buffer, which a read on a CPU shares."""
    return np.asarray(memoryview(read(variable))).__array_interface__["data"][0]


def test_sums_of_gradients_are_cleared_in_their_own_buffers():
    built = build(model="trivial", data_name="cifar10", num_gpus=1)
    sums = built.step._sums._sums[0]
    before = [address(total) for total in sums]
    for _ in range(2):
        built.step(RATE)
        assert [address(total) for total in sums] == before
        assert not any(total.numpy().any() for total in sums)


def test_a_pass_that_is_not_finite_skips_the_whole_update():
    built = build(
        num_gpus=2,
        variable_update="replicated",
        optimizer="momentum",
        precision="fp16",
        fp16_enable_auto_loss_scale=True,
        fp16_loss_scale=64.0,
    )
    labels = built.inputs._towers[1][1]
    for poisoned in (0, PASSES - 1):
        one_bad = np.full(2 * PASSES, HARMLESS)
        one_bad[2 * poisoned] = NAN
        before = state(built)
        labels.assign(one_bad)
        assert bool(built.step(RATE).skipped.numpy())
        for name, value in state(built).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
        # Nothing of the skipped passes is left.
        labels.assign(np.full(2 * PASSES, HARMLESS))
        assert not bool(built.step(RATE).skipped.numpy())
        changed = [n for n, value in state(built).items() if (value != before[n]).any()]
        assert {"lever", *averages(built)} <= {*changed}
        assert all(np.isfinite(value).all() for value in state(built).values())


def test_dropout_differs_in_each_pass():
    """Seeds of passes are consecutive numbers, so that no two passes of a run draw the same."""
    built = build(num_gpus=1)
    step, seeds = built.step, []

    @tf.function(autograph=False)
    def draw(number):
        step._pass = number
        return step._build_seed(0, None)

    for _ in range(2):
        seeds += [draw(tf.constant(number, tf.int64)).numpy().tolist() for number in range(PASSES)]
        step._counter.assign_add(1)
    assert [number for _, number in seeds] == [*range(2 * PASSES)]


# The weather has gradients of look-ups.
WITHOUT_BATCH_NORM = [
    {"model": "trivial", "data_name": "cifar10"},
    {"model": "lenet", "data_name": "imagenet"},
    WEATHER,
]


@pytest.mark.parametrize(
    "flags",
    slow_if(lambda flags: flags["model"] != "forecast", WITHOUT_BATCH_NORM),
    ids=lambda flags: flags["model"],
)
def test_networks_without_batch_norm_train_as_with_one_larger_batch(flags):
    flags = {**flags, "num_warmup_batches": 0, "num_batches": 3}
    flags |= {"num_gpus": 1, "optimizer": "momentum", "init_learning_rate": 0.01}
    together = short_runs.run(**flags, batch_size=6).record.losses
    passes = short_runs.run(**flags, batch_size=2, gradient_accumulation_steps=3).record.losses
    assert together[0] != together[-1]
    np.testing.assert_allclose(passes, together, rtol=1e-5)
