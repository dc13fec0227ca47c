"""Ways of clipping, on gradients of several elements: on one, most of them are the same."""

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.run.step.update import CLIPPINGS

GRADIENTS = ([3.0, -4.0, 0.25], [[0.5, -2.5]])
BOUND = 2.0
CLIPPED = {"gradient_clip": ([2.0, -2.0, 0.25], [[0.5, -2.0]])}


def test_every_way_of_clipping_has_a_case():
    assert CLIPPED.keys() == CLIPPINGS.keys()


@pytest.mark.parametrize("flag", CLIPPED)
def test_gradients_of_several_elements(flag):
    gradients = [tf.constant(gradient) for gradient in GRADIENTS]
    found = CLIPPINGS[flag](gradients, ["CPU:0"] * len(gradients), BOUND)
    for clipped, expected in zip(found, CLIPPED[flag], strict=True):
        np.testing.assert_allclose(clipped, expected)
