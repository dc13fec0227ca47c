"""Ways of clipping, on gradients of several elements: on one, most of them are the same."""

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from short_runs import EVERYDAY_MODES, MODES, RATE, build

from cnnbench.optimizers.clipping import CLIPPINGS, ClippedVariable, Clipping

GRADIENTS = ([3.0, -4.0, 0.25], [[0.5, -2.5]])
BOUND = 2.0
CLIPPED = {"gradient_clip": ([2.0, -2.0, 0.25], [[0.5, -2.0]])}


def test_every_way_of_clipping_has_a_case():
    assert CLIPPED.keys() == CLIPPINGS.keys()


@pytest.mark.parametrize("flag", CLIPPED)
def test_gradients_of_several_elements(flag):
    gradients = [tf.constant(gradient) for gradient in GRADIENTS]
    variables = [ClippedVariable(name, "CPU:0") for name in ("conv0/kernel", "conv0/bias")]
    found = CLIPPINGS[flag].clip(gradients, variables, BOUND)
    for clipped, expected in zip(found, CLIPPED[flag], strict=True):
        np.testing.assert_allclose(clipped, expected)


def is_slow(mode):
    return mode.values[0]["variable_update"] not in EVERYDAY_MODES


@pytest.mark.usefixtures("quick_start")
@pytest.mark.parametrize("mode", slow_if(is_slow, MODES))
def test_a_variable_has_its_declared_name_in_every_mode(mode, monkeypatch):
    """Here weight A of the network `oracle` is not updated, and B is."""

    def without_a(gradients, variables, bound):
        shares = {"A": 0.0, "B": bound}
        return [g * shares[v.name] for g, v in zip(gradients, variables, strict=True)]

    monkeypatch.setitem(CLIPPINGS, "gradient_clip", Clipping("", without_a))
    built = build("oracle", optimizer="sgd", num_gpus=2, gradient_clip=1.0, **mode)
    variables = built.manager.savable_variables()

    def values(name):
        return [copy.numpy() for copy in variables[name].copies]

    before = {name: values(name) for name in "AB"}
    built.step(RATE).loss.numpy()
    assert values("A") == before["A"]
    assert not {*values("B")} & {*before["B"]}
