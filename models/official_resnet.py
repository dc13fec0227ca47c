"""ResNet as in TensorFlow's former official models (official/r1/resnet of tensorflow/models).

It strides in a block's first 3 x 3 convolution. The first block of every stage has a projection,
also where the number of channels stays. v2 normalises nothing before its first pooling. Those
models were trained with ``--weight_decay=1e-4``. Sources: as for `cnnbench.models.resnet`.
"""

from __future__ import annotations

import functools
from typing import Literal

from cnnbench.models.network import Network, T
from cnnbench.models.registry import register_model
from cnnbench.models.resnet import BASIC_BLOCKS, BLOCKS, ResNet
from cnnbench.models.spec import BatchNorm, LearningRateSpec

OFFICIAL_BLOCKS = {**BLOCKS, 200: (3, 24, 36, 3)}


class OfficialResNet(ResNet):
    """The networks of `ResNet`, with other batch norm and schedule."""

    batch_norm = BatchNorm(decay=0.997, epsilon=1e-5, scale=True)
    preactivation = batch_norm
    strides_inside = always_projects = True
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
        self.blocks = OFFICIAL_BLOCKS[depth]
        self.version = version

    def _stem(self, net: Network[T], images: T) -> T:
        if self.version == "v2":
            return net.conv(images, 64, 7, 2, "SAME_RESNET", activation=None, bias=None)
        return super()._stem(net, images)


_VERSIONS: tuple[Literal["v1", "v2"], ...] = ("v1", "v2")

for _depth in OFFICIAL_BLOCKS:
    for _version in _VERSIONS:
        _factory = functools.partial(OfficialResNet, _depth, _version)
        register_model(_factory().name, "imagenet", _factory)
