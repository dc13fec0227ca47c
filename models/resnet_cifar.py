"""ResNet for CIFAR-10: two 3 x 3 convolutions per block, shortcuts without weights.

Sources: He et al., arXiv:1512.03385, section 4.2 (v1), and arXiv:1603.05027 (v2).
"""

from __future__ import annotations

import functools
from typing import Literal

from cnnbench.models.model import Model
from cnnbench.models.network import Network, T
from cnnbench.models.registry import register_model
from cnnbench.models.resnet import PREACTIVATION
from cnnbench.models.spec import BatchNorm, LearningRateSpec

Version = Literal["v1", "v2"]

WIDTHS = (16, 32, 64)
DEPTHS = (20, 32, 44, 56, 110)


class ResNetCifar10(Model):
    """Three stages of (depth - 2) / 6 residual blocks.

    ``v1`` normalises after each convolution, ``v2`` before.
    """

    dataset = "cifar10"
    image_size = 32
    batch_size = 128
    batch_norm = BatchNorm(decay=0.9, epsilon=1e-5, scale=True)
    learning_rate = LearningRateSpec(
        0.1,
        boundaries_epochs=(82.0, 123.0, 300.0),
        factors=(1.0, 0.1, 0.01, 0.002),
        whole_batches=True,
    )

    def __init__(self, depth: int, version: Version) -> None:
        self.name = f"resnet{depth}" if version == "v1" else f"resnet{depth}_{version}"
        self.blocks = (depth - 2) // 6
        self.version = version

    def build(self, net: Network[T], images: T) -> T:
        """Stem, three stages of blocks, mean over the image, logits."""
        preactivated = self.version == "v2"
        block = self._preactivated_block if preactivated else self._block
        # No ReLU after the stem of v1, as in tf_cnn_benchmarks; the paper has one.
        x = net.conv(images, 16, 3, batch_norm=True, activation="relu" if preactivated else None)
        for stage, width in enumerate(WIDTHS):
            for index in range(self.blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                with net.scope(f"stage{stage}"), net.scope(f"block{index}"):
                    x = block(net, x, width, stride)
        if preactivated:
            x = net.batch_norm(x, activation="relu", settings=PREACTIVATION)
        return net.logits(net.global_avg_pool(x))

    def _block(self, net: Network[T], x: T, width: int, stride: int) -> T:
        y = net.conv(x, width, 3, stride, batch_norm=True)
        y = net.conv(y, width, 3, batch_norm=True, activation=None)
        return net.relu(net.add(self._shortcut(net, x, width, stride), y))

    def _preactivated_block(self, net: Network[T], x: T, width: int, stride: int) -> T:
        y = net.batch_norm(x, activation="relu", settings=PREACTIVATION)
        y = net.conv(y, width, 3, stride, batch_norm=True)
        y = net.conv(y, width, 3, activation=None, bias=None)
        return net.add(self._shortcut(net, x, width, stride), y)

    @staticmethod
    def _shortcut(net: Network[T], x: T, width: int, stride: int) -> T:
        missing = width - net.shape(x)[2]
        if missing == 0:
            return x
        x = net.avg_pool(x, 1, stride)
        return net.pad_channels(x, missing // 2, missing - missing // 2)


_VERSIONS: tuple[Version, ...] = ("v1", "v2")

for _depth in DEPTHS:
    for _version in _VERSIONS:
        _factory = functools.partial(ResNetCifar10, _depth, _version)
        register_model(_factory().name, "cifar10", _factory)
