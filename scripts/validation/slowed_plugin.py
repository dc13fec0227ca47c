"""LeNet after a matrix product with EXTRA_ROWS rows; none if that is 0.

The first convolution depends on the product, so that its time adds to the step's; results,
variables, FLOPs and flags of the model do not change.
"""

from __future__ import annotations

import os
from typing import Any

from cnnbench.models import Model, Network, T, register_model
from cnnbench.models.networks.lenet import LeNet

NAME = "slowed_lenet"
VARIABLE = "EXTRA_ROWS"
WIDTH = 512


class SlowedLeNet(LeNet):
    """LeNet behind a delay of pure arithmetic."""

    name = NAME

    def build(self, net: Network[T], images: T) -> T:
        """The logits of LeNet."""
        rows = int(os.environ.get(VARIABLE, "0"))
        if rows:
            images = net.apply(lambda x: _delayed(x, rows), images)
        return super().build(net, images)


def _delayed(images: Any, rows: int) -> Any:
    """The images, after a product of [rows, WIDTH] with [WIDTH, WIDTH]."""
    import tensorflow as tf

    # Made of the images, so that it is neither folded into a constant nor started earlier.
    seed = tf.cast(tf.reshape(images, [-1])[0], tf.float32)
    product = tf.matmul(tf.fill([rows, WIDTH], seed), tf.fill([WIDTH, WIDTH], seed))
    nothing = tf.stop_gradient(tf.reduce_sum(product) * 1e-30)
    return images + tf.cast(nothing, images.dtype)


def make() -> Model:
    """The model."""
    return SlowedLeNet()


register_model(NAME, "imagenet", make)
