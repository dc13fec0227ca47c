"""DenseNet for CIFAR-10: each layer uses the outputs of all earlier layers in its block.

Source: Huang et al., arXiv:1608.06993, the networks without bottlenecks and compression. As in
tf_cnn_benchmarks, convolutions have biases and a ReLU follows the 1 x 1 convolution between blocks.
"""

from __future__ import annotations

import math

from cnnbench.models import BatchNorm, LearningRateSpec, Model, Network, T
from cnnbench.models.model import LARGEST_IMAGE
from cnnbench.models.registry import register_variants

BLOCKS = 3


class DenseNetCifar10(Model):
    """DenseNet: three blocks of (depth - 4) / 3 layers. Each layer adds `growth` channels."""

    dataset = "cifar10"
    image_size = 32
    image_sizes = range(4, LARGEST_IMAGE + 1)
    batch_size = 64
    batch_norm = BatchNorm(decay=0.9, epsilon=1e-5, scale=True)
    learning_rate = LearningRateSpec(
        0.1,
        boundaries_epochs=(150.0, 225.0, 300.0),
        factors=(1.0, 0.1, 0.01, 0.001),
        whole_batches=True,
    )

    def __init__(self, depth: int, growth: int) -> None:
        self.name = f"densenet{depth}_k{growth}"
        self.layers = (depth - BLOCKS - 1) // BLOCKS
        self.growth = growth

    def build(self, net: Network[T], images: T) -> T:
        """Builds the stem, three blocks with transitions, global average pooling and logits."""
        x = net.conv(images, 16, 3, activation=None)
        for block in range(BLOCKS):
            with net.scope(f"block{block}"):
                if block > 0:
                    # A transition between blocks halves the image, and outputs 2 * growth channels.
                    y = self._layer(net, x, 2 * self.growth, 1)
                    x = net.avg_pool(net.relu(y), 2, 2)
                for _ in range(self.layers):
                    x = net.block(
                        lambda net, x: net.concat([x, self._layer(net, x, self.growth, 3)]), x
                    )
        x = net.batch_norm(x, activation="relu")
        return net.logits(net.global_avg_pool(x))

    @staticmethod
    def _layer(net: Network[T], x: T, filters: int, kernel: int) -> T:
        # 1 x 1 kernels get the same initial standard deviation as 3 x 3 kernels.
        stddev = math.sqrt(2 / 9 / filters)
        y = net.batch_norm(x, activation="relu")
        return net.conv(y, filters, kernel, activation=None, stddev=stddev)


register_variants(DenseNetCifar10, ((40, 12), (100, 12), (100, 24)))
