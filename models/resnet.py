"""ResNet for ImageNet: bottleneck blocks in three versions, and the two small networks of v1.

``v1`` strides in the first 1 x 1 convolution of a block, ``v1.5`` in the 3 x 3 one; ``v2``
normalises before each convolution instead of after.

Sources: He et al., arXiv:1512.03385 (v1) and arXiv:1603.05027 (v2); Goyal et al.,
arXiv:1706.02677 (v1.5 and the warm-up of the learning rate).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from cnnbench.models.model import Model
from cnnbench.models.network import Network, T
from cnnbench.models.registry import register_model
from cnnbench.models.spec import BatchNorm, LearningRateSpec

Version = Literal["v1", "v1.5", "v2"]
Layer = tuple[int, int, int]  # a convolution's filters, kernel and stride

WIDTHS = (64, 128, 256, 512)  # filters of 3 x 3 convolutions; a block returns four times as many
EXPANSION = 4
BASIC_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}  # of two 3 x 3 convolutions
BLOCKS = {**BASIC_BLOCKS, 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}

# The norms of v2 that come before a block learn no gamma: a positive scale passes through the
# ReLU into the next kernel anyway. Those of tf_cnn_benchmarks have none either.
PREACTIVATION = BatchNorm(decay=0.9, epsilon=1e-5, scale=False)


class ResNet(Model):
    """Basic blocks up to 34 layers, bottlenecks from 50 on.

    Attributes:
      basic: whether blocks have two 3 x 3 convolutions instead of a bottleneck.
      always_projects: whether the first block of a stage has a projection even where it changes
        no shape, as basic blocks of the first stage do.
      strides_inside: whether a bottleneck strides in its 3 x 3 convolution.
    """

    dataset = "imagenet"
    image_size = 224
    batch_norm = BatchNorm(decay=0.9, epsilon=1e-5, scale=True)
    preactivation = PREACTIVATION
    always_projects = False
    learning_rate = LearningRateSpec(
        0.128,
        base_batch=256,
        boundaries_epochs=(30.0, 60.0, 80.0, 90.0),
        factors=(1.0, 0.1, 0.01, 0.001, 0.0001),
        warmup_epochs=5.0,
    )

    def __init__(self, depth: int, version: Version) -> None:
        self.name = f"resnet{depth}" if version == "v1" else f"resnet{depth}_{version}"
        self.batch_size = 64 if depth <= 50 else 32
        self.basic = depth in BASIC_BLOCKS
        self.blocks = BLOCKS[depth]
        self.version = version
        self.strides_inside = version == "v1.5"

    def build(self, net: Network[T], images: T) -> T:
        """Stem, four stages of blocks, mean over the image, logits."""
        x = self.stages(net, images)
        if self.version == "v2":
            x = net.batch_norm(x, activation="relu", settings=self.preactivation)
        return net.logits(net.global_avg_pool(x))

    def stages(self, net: Network[T], images: T, strides: Sequence[int] = (1, 2, 2, 2)) -> T:
        """Stem and stages of blocks, as many as ``strides``, one for each."""
        block = self._preactivated_block if self.version == "v2" else self._block
        x = net.max_pool(self._stem(net, images), 3, 2, "SAME")
        for stage, first in enumerate(strides):
            for index in range(self.blocks[stage]):
                stride = 1 if index else first
                with net.scope(f"stage{stage}"), net.scope(f"block{index}"):
                    layers = self._layers(WIDTHS[stage], stride)
                    reshapes = stride != 1 or net.shape(x)[2] != layers[-1][0]
                    projects = reshapes or (self.always_projects and index == 0)
                    x = block(net, x, layers, stride if projects else None)
        return x

    def _stem(self, net: Network[T], images: T) -> T:
        return net.conv(images, 64, 7, 2, "SAME_RESNET", batch_norm=True)

    def _layers(self, width: int, stride: int) -> Sequence[Layer]:
        if self.basic:
            return (width, 3, stride), (width, 3, 1)
        first, middle = (1, stride) if self.strides_inside else (stride, 1)
        return (width, 1, first), (width, 3, middle), (EXPANSION * width, 1, 1)

    def _block(self, net: Network[T], x: T, layers: Sequence[Layer], projection: int | None) -> T:
        """Layers and a shortcut, a convolution of stride ``projection`` or the identity."""
        *inner, last = layers
        shortcut = x
        if projection:
            shortcut = net.conv(x, last[0], 1, projection, batch_norm=True, activation=None)
        for layer in inner:
            x = net.conv(x, *layer, "SAME_RESNET", batch_norm=True)
        x = net.conv(x, *last, "SAME_RESNET", batch_norm=True, activation=None)
        return net.relu(net.add(shortcut, x))

    def _preactivated_block(
        self, net: Network[T], x: T, layers: Sequence[Layer], projection: int | None
    ) -> T:
        *inner, last = layers
        y = net.batch_norm(x, activation="relu", settings=self.preactivation)
        shortcut = x
        if projection:
            shortcut = net.conv(y, last[0], 1, projection, activation=None, bias=None)
        for layer in inner:
            y = net.conv(y, *layer, "SAME_RESNET", batch_norm=True)
        y = net.conv(y, *last, "SAME_RESNET", activation=None, bias=None)
        return net.add(shortcut, y)


_VERSIONS: tuple[Version, ...] = ("v1", "v1.5", "v2")

for _depth in BLOCKS:
    for _version in _VERSIONS if _depth not in BASIC_BLOCKS else _VERSIONS[:1]:
        _factory = functools.partial(ResNet, _depth, _version)
        register_model(_factory().name, "imagenet", _factory)
