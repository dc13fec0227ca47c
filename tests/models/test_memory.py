"""Memory of activations, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from cnnbench.models import LearningRateSpec, Model
from cnnbench.models.declare import ShapeNetwork


class Small(Model):
    """Images of 8 x 8 x 3."""

    name = "small"
    dataset = "cifar10"
    image_size = 8
    batch_size = 4
    learning_rate = LearningRateSpec(base=0.1)


class Convolution(Small):
    def build(self, net: Any, images: Any) -> Any:
        x = net.conv(images, 4, 3)
        x = net.max_pool(x, 2, 2)
        return net.logits(net.flatten(x))


class Normalised(Small):
    def build(self, net: Any, images: Any) -> Any:
        x = net.conv(images, 4, 3, 2, "SAME_RESNET", batch_norm=True, activation=None)
        return net.logits(net.global_avg_pool(net.add(x, x)))


class Untouched(Small):
    def build(self, net: Any, images: Any) -> Any:
        flat = net.flatten(net.avg_pool(images, 2, 2))
        return net.logits(flat)


@pytest.mark.parametrize(
    ("model", "training", "forward"),
    [
        # At the ReLU: images and its output are kept, and its input and gradient lie there.
        (Convolution(), 192 + 256 + 2 * 256, 2 * 256),
        # The padded image is kept, and the gradients of it and of the convolution lie beside it.
        (Normalised(), 300 + 300 + 64, 192 + 300),
        # No gradient flows to the images: only what the matrix product reads is kept.
        (Untouched(), 192 + 48, 192 + 48),
    ],
    ids=["convolution", "padding and batch norm", "without a gradient"],
)
def test_what_a_backward_pass_needs_is_kept(model: Model, training: int, forward: int) -> None:
    assert ShapeNetwork(model, 10, training=True).peak == training
    assert ShapeNetwork(model, 10, training=False).peak == forward
