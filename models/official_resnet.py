"""ResNet as TensorFlow's official models had it (official/r1/resnet of tensorflow/models).

It strides in a block's first 3 x 3 convolution. The first block of every stage has a projection,
also where the number of channels stays. v2 normalises nothing before its first pooling. Those
models were trained with ``--weight_decay=1e-4``.

Sources: as for `cnnbench.models.resnet`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from cnnbench.models.network import Network, T
from cnnbench.models.registry import register_model
from cnnbench.models.resnet import BLOCKS, EXPANSION, Layer, ResNet
from cnnbench.models.spec import BatchNorm, LearningRateSpec

BOTTLENECK_BLOCKS = {**BLOCKS, 200: (3, 24, 36, 3)}
BASIC_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}  # of two 3 x 3 convolutions


class OfficialResNet(ResNet):
    """Basic blocks up to 34 layers, bottlenecks from 50 on."""

    batch_norm = BatchNorm(decay=0.997, epsilon=1e-5, scale=True)
    preactivation = batch_norm
    learning_rate = LearningRateSpec(
        0.1,
        base_batch=256,
        boundaries_epochs=(30.0, 60.0, 80.0, 90.0),
        factors=(1.0, 0.1, 0.01, 0.001, 0.0001),
    )

    def __init__(self, depth: int, version: Literal["v1", "v2"]) -> None:
        self.name = f"official_resnet{depth}{'_v2' if version == 'v2' else ''}"
        self.batch_size = 128 if depth == 50 else 32
        self.basic = depth in BASIC_BLOCKS
        self.blocks = (BASIC_BLOCKS if self.basic else BOTTLENECK_BLOCKS)[depth]
        self.version = version

    def _stem(self, net: Network[T], images: T) -> T:
        if self.version == "v2":
            return net.conv(images, 64, 7, 2, "SAME_RESNET", activation=None, bias=None)
        return super()._stem(net, images)

    def _layers(self, width: int, stride: int) -> Sequence[Layer]:
        if self.basic:
            return (width, 3, stride), (width, 3, 1)
        return (width, 1, 1), (width, 3, stride), (EXPANSION * width, 1, 1)


_VERSIONS: tuple[Literal["v1", "v2"], ...] = ("v1", "v2")

for _depth in (*BASIC_BLOCKS, *BOTTLENECK_BLOCKS):
    for _version in _VERSIONS:
        _factory = functools.partial(OfficialResNet, _depth, _version)
        register_model(_factory().name, "imagenet", _factory)
