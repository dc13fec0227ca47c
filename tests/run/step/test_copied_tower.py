"""A copy of the first tower is what a trace of the tower would be.

Tests cnnbench/run/step/tower.py and cnnbench/run/step/tower_copier.py.
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import short_runs
import tensorflow as tf
from covering import slow_if
from data_sets import WEATHER

from cnnbench.models import LearningRateSpec, Model, register_model
from cnnbench.run.step import train_step
from cnnbench.run.step.tower import Tower
from cnnbench.run.step.tower_copier import TowerCopier

ROOT = Path(__file__).parents[3]
POISON = {"model": "poison"}


class Drawing(Model):
    """Batch norm, and numbers that are drawn."""

    name, dataset, image_size, batch_size = "drawing", "imagenet", 8, 2
    learning_rate = LearningRateSpec(1.0)

    def build(self, net, images):
        x = net.conv(images, 4, 3, 2, batch_norm=True)
        x = net.add(x, net.drop_path(net.conv(x, 4, 3, batch_norm=True), 0.5))
        return net.logits(net.dropout(net.flatten(x), 0.5))


register_model("drawing", "imagenet", Drawing)


@pytest.mark.usefixtures("quick_start")
@pytest.mark.parametrize(
    "flags",
    slow_if(
        lambda flags: flags["model"] != "drawing",
        [
            {"model": "drawing", "variable_update": "independent", "precision": "bf16"},
            {**POISON, "variable_update": "parameter_server", "fp16_vars": True, "use_fp16": True},
            {
                **POISON,
                "variable_update": "mirrored_strategy",
                "cross_device_ops": "reduction_to_one_device",
                "loss_type_to_report": "base_loss",
            },
            {**POISON, "variable_update": "independent", "forward_only": True},
            # Slices, several inputs.
            {**WEATHER, "variable_update": "independent"},
        ],
    ),
    ids=lambda flags: "-".join(map(str, flags.values())).replace(f"{ROOT}/", ""),
)
def test_a_step_of_copies_is_the_step_that_would_be_traced(flags, monkeypatch):
    flags = {"num_gpus": 2, "batch_size": 2, **flags}
    traced = []
    trace = Tower.__call__

    def counted(tower, *args):
        traced.append(tower)
        return trace(tower, *args)

    monkeypatch.setattr(Tower, "__call__", counted)
    copied = short_runs.build(**flags)
    assert len(traced) == 1
    monkeypatch.setattr(train_step, "TowerCopier", lambda first, tell: None)
    whole = short_runs.build(**flags)
    assert len(traced) == 3
    assert names(copied) == names(whole)
    for found, expected in zip(results(copied), results(whole), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def names(built):
    """The operations that compute, which roofline and --profile_json know by their names."""
    return Counter(
        (re.sub(r"(_\d+)+$", "", o.name), o.type, o.device)
        for o in built.step.graph.get_operations()
        if o.type not in ("Placeholder", "ReadVariableOp", "Cast")  # of values read, in any scope
        and any(x.dtype.is_floating and x.shape.rank != 0 for x in o.outputs)
    )


def results(built):
    """The losses of two steps, and every copy of every variable after them."""
    losses = [built.step(0.125).loss.numpy() for _ in range(2)]
    variables = built.manager.savable_variables().values()
    return [*losses, *(copy.numpy() for variable in variables for copy in variable.copies)]


def uniform(read, given):
    return tf.random.uniform([9]) + given


def on_two_devices(read, given):
    with tf.device("CPU:3"):
        beside = tf.sin(given)
    return tf.exp(beside)


def in_a_loop(read, given):
    """TensorFlow has the tower's device in the body of the loop, which a copy would share."""
    return tf.while_loop(lambda x: x[0] < 9.0, lambda x: [2.0 * x], [given + 1.5])[0]


def plain(read, given):
    return tf.exp(given)


def made_for_three_towers(trace):
    """What three towers compute, and how many of them were traced."""
    traced = []

    @tf.function(autograph=False)
    def step():
        def counted(read, given):
            traced.append(given)
            return trace(read, given)

        copied = TowerCopier(counted, pytest.fail)
        made = []
        for tower in range(3):
            with tf.device(f"CPU:{tower}"), tf.name_scope(f"tower_{tower}"):
                made.append(copied(lambda spec, dtype: None, tf.fill([9], float(tower))))
        return made

    return [tensor.numpy() for tensor in step()], len(traced)


@pytest.mark.parametrize(
    ("trace", "times"), [(uniform, 3), (on_two_devices, 3), (in_a_loop, 3), (plain, 1)]
)
def test_what_a_copy_could_not_know_is_traced_each_time(trace, times):
    """A copied tf.random.uniform would draw the numbers of the first tower."""
    results, traced = made_for_three_towers(trace)
    assert traced == times
    assert not np.allclose(results[0], results[1])
    assert not np.allclose(results[1], results[2])


def another_version(*args, **options):
    raise TypeError("import_graph_def() got an unexpected keyword argument 'name'\nand more")


@pytest.mark.slow
def test_towers_are_traced_where_tensorflow_takes_no_copy_and_one_notice_says_so(
    monkeypatch, quick_start
):
    flags = {"num_gpus": 2, "eval_during_training_every_n_steps": 2}
    copied = short_runs.run(**flags, num_batches=2, num_eval_batches=1).record
    for owner, name, replacement in (
        (tf.graph_util, "import_graph_def", another_version),
        (tf.Operation, "node_def", property(another_version)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, replacement)
            traced, _, notices = short_runs.run(**flags, num_batches=2, num_eval_batches=1)
        assert traced.losses == pytest.approx(copied.losses)
        assert notices.count("every tower is traced") == 1
        reason = "TypeError: import_graph_def() got an unexpected keyword argument 'name'"
        assert f": {reason}" in notices
