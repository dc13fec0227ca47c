"""ResNet for CIFAR-10: two 3 x 3 convolutions per block, shortcuts without weights.

Sources: He et al., arXiv:1512.03385, section 4.2 (v1), and arXiv:1603.05027 (v2).
"""

from __future__ import annotations

import itertools

from cnnbench.models.network import Activation, Network, T
from cnnbench.models.networks.resnet import ResNet, Version
from cnnbench.models.registry import register_variants
from cnnbench.models.spec import LearningRateSpec

DEPTHS = (20, 32, 44, 56, 110)


class ResNetCifar10(ResNet):
    """Three stages of (depth - 2) / 6 residual blocks."""

    dataset = "cifar10"
    image_size = 32
    widths = (16, 32, 64)
    strides = (1, 2, 2)
    padding = "SAME"
    learning_rate = LearningRateSpec(
        0.1,
        boundaries_epochs=(82.0, 123.0, 300.0),
        factors=(1.0, 0.1, 0.01, 0.002),
        whole_batches=True,
    )

    def __init__(self, depth: int, version: Version) -> None:
        self.name = f"resnet{depth}" if version == "v1" else f"resnet{depth}_{version}"
        self.batch_size = 128
        self.basic = True
        self.blocks = ((depth - 2) // 6,) * 3
        self.version = version

    def _stem(self, net: Network[T], images: T) -> T:
        # No ReLU after the stem of v1, as in tf_cnn_benchmarks; the paper has one.
        activation: Activation = "relu" if self.version == "v2" else None
        return net.conv(images, 16, 3, batch_norm=True, activation=activation)

    def _shortcut(
        self, net: Network[T], x: T, active: T, filters: int, stride: int, project: bool
    ) -> T:
        missing = filters - net.shape(x)[2]
        if missing == 0:
            return x
        x = net.avg_pool(x, 1, stride)
        return net.pad_channels(x, missing // 2, missing - missing // 2)


register_variants(ResNetCifar10, itertools.product(DEPTHS, ("v1", "v2")))
