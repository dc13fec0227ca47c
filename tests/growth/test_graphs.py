"""CPU time of building networks, steps, checkpoints and profiles, by their number of layers, towers
and variables.
"""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf
from growth import check_growth
from networks import forward, model_of
from short_runs import build
from step_profiles import CONV, Profiles, Row

from cnnbench.judge.explain import explain
from cnnbench.models import Initializer, register_model
from cnnbench.models.declaration import declare
from cnnbench.records.profiles import FORWARD, TO_KERNEL, ProfiledLayer, StepPartKey

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_start", "own_registry")]


def deep(count):
    """A network of so many convolutions with batch norm."""

    def body(net, images):
        x = images
        for _ in range(count):
            x = net.conv(x, 2, 1, batch_norm=True)
        return net.logits(net.global_avg_pool(x))

    return model_of(body)


def test_declaring_layers():
    check_growth(lambda count: lambda: declare(deep(count), 10), 250)


def test_tracing_layers():
    def prepare(count):
        model = deep(count)
        shapes = {one.name: one.shape for one in declare(model, 10).variables}

        def trace():
            def outputs(images):
                def read(spec, dtype):
                    return tf.zeros(shapes[spec.name], dtype)

                return forward(model, 10, images, read, training=True).outputs

            tf.function(outputs, autograph=False).get_concrete_function(
                tf.TensorSpec((2, 8, 8, 3), tf.float32)
            )

        return trace

    check_growth(prepare, 15)


@pytest.mark.parametrize("update", ["replicated", "parameter_server"])
def test_tracing_towers(update):
    def prepare(count):
        def trace():
            built = build("lenet", variable_update=update, num_gpus=count, batch_size=1)
            built.step(0.1).loss.numpy()

        return trace

    check_growth(prepare, 2)


def wide(count):
    """A network of so many variables, which nothing uses."""

    def body(net, images):
        for number in range(count):
            net.variable(f"spare{number}", (2,), Initializer.constant(1.0))
        return net.logits(net.flatten(images))

    return model_of(body)


def test_variables_of_a_checkpoint(tmp_path):
    tries = itertools.count()

    def prepare(count):
        name = f"wide{count}_{next(tries)}"  # A measurement may be repeated.
        model = wide(count)
        model.name = name
        register_model(name, "imagenet", lambda: model)
        folder = tmp_path / name
        built = build(name, batch_size=1, train_dir=str(folder))

        def save_and_restore():
            built.checkpoints.restore(built.checkpoints.save(str(folder), 1))

        return save_and_restore

    check_growth(prepare, 50)


def test_layers_of_an_explanation(runs):
    """Each side is a network in which one layer is not in the other."""

    def prepare(count):
        sides = []
        for own in (0, 1):
            names = [f"conv{number}" for number in range(own, count + own)]
            rows = {
                StepPartKey(name, CONV, direction): Row(1.0, 10**6, 10**4, {"Conv2D float32": 1})
                for name in names
                for direction in (FORWARD, TO_KERNEL)
            }
            layers = tuple(
                ProfiledLayer(
                    name=name,
                    kind="convolution 3x3",
                    shapes=((3, 3, 8, 8),),
                    parameters=576,
                    flops=10**6,
                )
                for name in names
            )
            make = Profiles(runs, seed=own)
            sides.append([make(rows, layers=layers) for _ in range(3)])
        return lambda: explain(*sides)

    check_growth(prepare, 15)
