"""ResNet as in TensorFlow's former official models (official/r1/resnet of tensorflow/models).

It strides in a block's first 3 x 3 convolution. The first block of every stage has a projection,
also where the number of channels stays. v2 normalises nothing before its first pooling. Those
models were trained with ``--weight_decay=1e-4``. Sources: as for `cnnbench.models.networks.resnet`.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Literal

from cnnbench.models.networks.resnet import BLOCKS, ResNet
from cnnbench.models.registry import register_variants
from cnnbench.models.spec import BatchNorm


class OfficialResNet(ResNet):
    """The networks of `ResNet`, with other batch norm and schedule."""

    batch_norm = BatchNorm(decay=0.997, epsilon=1e-5, scale=True)
    preactivation = batch_norm
    always_projects = True
    learning_rate = dataclasses.replace(ResNet.learning_rate, base=0.1, warmup_epochs=0.0)

    def __init__(self, depth: int, version: Literal["v1", "v2"]) -> None:
        super().__init__(depth, version)
        self.name = f"official_{self.name}"
        self.batch_size = 128 if depth == 50 else 32
        self.strides_inside = True
        self.norms_stem = version == "v1"


register_variants(OfficialResNet, itertools.product(BLOCKS, ("v1", "v2")))
