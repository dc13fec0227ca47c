"""ResNets for ImageNet and CIFAR-10: versions 1, 1.5 and 2, ResNet-D, and TensorFlow's variants.

In ``v1``, the first 1 x 1 convolution of a block has the stride. In ``v1.5``, the 3 x 3 convolution
has the stride. In ``v2``, batch norm is before each convolution instead of after it.

Sources: He et al., arXiv:1512.03385 (v1) and arXiv:1603.05027 (v2); Goyal et al.,
arXiv:1706.02677 (v1.5 and the warm-up of the learning rate).

Sources for CIFAR-10: He et al., arXiv:1512.03385, section 4.2 (v1), and arXiv:1603.05027 (v2).

In ResNet-D, a shortcut that halves the image averages 2 x 2 pixels before the 1 x 1 convolution.
With a stride, the convolution would ignore three quarters of the pixels.

Source: He et al., arXiv:1812.01187, section 4 (ResNet-D and, for the stem, ResNet-C).

In TensorFlow's former official models, the first 3 x 3 convolution of a block has the stride. The
first block of every stage has a projection, even if the number of channels does not change. In v2,
there is no batch norm before the first pooling. These models were trained with
``--weight_decay=1e-4``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

from cnnbench.models import BatchNorm, LearningRateSpec, Model, Network, T
from cnnbench.models.network import Activation, Padding
from cnnbench.models.registry import register_variants

# ResNet for ImageNet: 50 layers or more in three versions, and 18 and 34 layers in version 1.

Version = Literal["v1", "v1.5", "v2"]
Layer = tuple[int, int, int]  # Filters, kernel size and stride of a convolution.

EXPANSION = 4  # Output channels of a bottleneck block, divided by filters of its 3 x 3 convolution.
# By depth: number of basic blocks (with two 3 x 3 convolutions) in each stage.
BASIC_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
BLOCKS = {
    **BASIC_BLOCKS,
    **{50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)},
}

PREACTIVATION = BatchNorm(decay=0.9, epsilon=1e-5, scale=False)
"""Settings of the batch norm before a v2 block, which has no gamma, as in tf_cnn_benchmarks.

Gamma is not needed: scaling before a ReLU is equivalent to scaling the next kernel.
"""


class ResNet(Model):
    """ResNet for ImageNet: basic blocks up to 34 layers, bottlenecks from 50 layers.

    Attributes:
      blocks: number of blocks in each stage.
      widths: filters of the 3 x 3 convolutions of each stage.
      strides: stride of the first block of each stage.
      padding: padding of the convolutions of a block.
      basic: whether blocks have two 3 x 3 convolutions instead of a bottleneck.
      always_projects: whether the first block of a stage has a projection even if the shape does
        not change, as in basic blocks of the first stage.
      strides_inside: whether the 3 x 3 convolution of a bottleneck has the stride.
      norms_stem: whether the first convolution is followed by batch norm and ReLU.
    """

    dataset = "imagenet"
    image_size = 224
    batch_norm = BatchNorm(decay=0.9, epsilon=1e-5, scale=True)
    preactivation = PREACTIVATION
    widths: Sequence[int] = (64, 128, 256, 512)
    strides: Sequence[int] = (1, 2, 2, 2)
    padding: Padding = "SAME_RESNET"
    always_projects = False
    norms_stem = True
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
        self.blocks: Sequence[int] = BLOCKS[depth]
        self.version = version
        self.strides_inside = version == "v1.5"

    def build(self, net: Network[T], images: T) -> T:
        """Builds the stem, stages of residual blocks, global average pooling and logits."""
        x = self.stem_and_stages(net, images, self.strides)
        if self.version == "v2":
            x = net.batch_norm(x, activation="relu", settings=self.preactivation)
        return net.logits(net.global_avg_pool(x))

    def stem_and_stages(self, net: Network[T], images: T, strides: Sequence[int]) -> T:
        """Builds the stem, and one stage of residual blocks for each item in ``strides``."""
        x = self._stem(net, images)
        for stage, first in enumerate(strides):
            for index in range(self.blocks[stage]):
                stride = 1 if index else first
                project = self.always_projects and index == 0
                with net.scope(f"stage{stage}"), net.scope(f"block{index}"):
                    width = self.widths[stage]
                    x = net.block(self._block, x, width=width, stride=stride, project=project)
        return x

    def _stem(self, net: Network[T], images: T) -> T:
        if self.norms_stem:
            x = net.conv(images, 64, 7, 2, "SAME_RESNET", batch_norm=True)
        else:
            x = net.conv(images, 64, 7, 2, "SAME_RESNET", activation=None, bias=None)
        return net.max_pool(x, 3, 2, "SAME")

    def _layers(self, width: int, stride: int) -> Sequence[Layer]:
        if self.basic:
            return (width, 3, stride), (width, 3, 1)
        first, middle = (1, stride) if self.strides_inside else (stride, 1)
        return (width, 1, first), (width, 3, middle), (EXPANSION * width, 1, 1)

    def _block(self, net: Network[T], x: T, width: int, stride: int, project: bool) -> T:
        """Builds a residual block. In v2, batch norm comes before each convolution."""
        *inner, last = self._layers(width, stride)
        v2 = self.version == "v2"
        y = net.batch_norm(x, activation="relu", settings=self.preactivation) if v2 else x
        shortcut = self._shortcut(net, x, y, last[0], stride, project)
        for layer in inner:
            y = net.conv(y, *layer, self.padding, batch_norm=True)
        y = net.conv(y, *last, self.padding, batch_norm=not v2, activation=None, bias=None)
        total = net.add(shortcut, y)
        return total if v2 else net.relu(total)

    def _shortcut(
        self, net: Network[T], x: T, active: T, filters: int, stride: int, project: bool
    ) -> T:
        """Returns the block's input, or its projection if the shape changes or `project` is true.

        The projection is a 1 x 1 convolution of `active`, which is `x` after batch norm in v2.
        """
        if stride == 1 and net.shape(x)[2] == filters and not project:
            return x
        normed = self.version != "v2"
        return net.conv(active, filters, 1, stride, batch_norm=normed, activation=None, bias=None)


register_variants(ResNet, itertools.product(BASIC_BLOCKS, ["v1"]))
register_variants(ResNet, itertools.product((50, 101, 152), ("v1", "v1.5", "v2")))


# ResNet for CIFAR-10: blocks with two 3 x 3 convolutions, and shortcuts without weights.

DEPTHS = (20, 32, 44, 56, 110)


class ResNetCifar10(ResNet):
    """ResNet for CIFAR-10: three stages of (depth - 2) / 6 residual blocks."""

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
        # In tf_cnn_benchmarks, version 1 has no ReLU after the stem, although the paper has one.
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


# ResNet-D for ImageNet: v1.5 with a stem of three 3 x 3 convolutions and pooled shortcuts.


class ResNetD(ResNet):
    """ResNet-D: v1.5 with a stem of three 3 x 3 convolutions, and shortcuts with pooling."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth, "v1.5")
        self.name = f"resnet{depth}_d"

    def _stem(self, net: Network[T], images: T) -> T:
        x = images
        for filters, stride in ((32, 2), (32, 1), (64, 1)):
            x = net.conv(x, filters, 3, stride, "SAME_RESNET", batch_norm=True)
        return net.max_pool(x, 3, 2, "SAME")

    def _shortcut(
        self, net: Network[T], x: T, active: T, filters: int, stride: int, project: bool
    ) -> T:
        if stride > 1:
            active = net.avg_pool(active, stride, stride, "SAME")
        return super()._shortcut(net, x, active, filters, 1, project or stride > 1)


register_variants(ResNetD, [(50,), (101,), (152,)])


# ResNet as in TensorFlow's former official models (official/r1/resnet in tensorflow/models).


class OfficialResNet(ResNet):
    """ResNet as in TensorFlow's former official models, with their batch norm and learning rate."""

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
