"""RegNetY: networks with grouped convolutions whose width increases linearly with depth.

Source: Radosavovic et al., arXiv:2003.13678; parameters are from its tables 4 and 10 (and from
  pycls).
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from cnnbench.models import LearningRateSpec, Model, Network, T
from cnnbench.models.registry import register_variants
from cnnbench.models.shared_blocks import squeeze_excite


class WidthParameters(NamedTuple):
    """Parameters that determine the width (number of channels) of each block of a RegNet.

    Attributes:
      initial: width of the first block.
      slope: increase of the width from one block to the next, before rounding.
      factor: each width is rounded to ``initial`` times a power of this factor.
    """

    depth: int
    initial: int
    slope: float
    factor: float
    group: int
    batch: int


VARIANTS = {
    "400mf": WidthParameters(16, 48, 27.89, 2.09, 8, 128),
    "800mf": WidthParameters(14, 56, 38.84, 2.4, 16, 128),
    "1.6gf": WidthParameters(27, 48, 20.71, 2.65, 24, 64),
    "3.2gf": WidthParameters(21, 80, 42.63, 2.66, 24, 64),
    "8gf": WidthParameters(17, 192, 76.82, 2.19, 56, 32),
    "16gf": WidthParameters(18, 200, 106.23, 2.48, 112, 32),
    "32gf": WidthParameters(20, 232, 115.89, 2.53, 232, 16),
}


def stage_depths_and_widths(parameters: WidthParameters) -> tuple[tuple[int, int], ...]:
    """Returns the number of blocks and the width (number of channels) of each RegNet stage.

    As in the paper's tables, widths are rounded to the nearest multiple of the group width. If two
    multiples are equally near, the even one is used. torchvision rounds differently: its 800mf and
    8gf are wider.
    """
    widths = []
    for block in range(parameters.depth):
        width = parameters.initial + parameters.slope * block
        power = round(math.log(width / parameters.initial) / math.log(parameters.factor))
        widths.append(8 * round(parameters.initial * parameters.factor**power / 8))
    return tuple(
        (len(list(blocks)), parameters.group * max(1, round(width / parameters.group)))
        for width, blocks in itertools.groupby(widths)
    )


class RegNetY(Model):
    """RegNetY: four stages of residual blocks with a grouped 3 x 3 convolution."""

    dataset = "imagenet"
    image_size = 224
    learning_rate = LearningRateSpec.cosine(0.2, base_batch=256, epochs=100, warmup_epochs=5.0)

    def __init__(self, variant: str) -> None:
        self.name = f"regnety_{variant}"
        self.line = VARIANTS[variant]
        self.batch_size = self.line.batch

    def build(self, net: Network[T], images: T) -> T:
        """Builds a stem, stages that each halve the image, global average pooling and logits."""
        x = net.conv(images, 32, 3, 2, "SAME_RESNET", batch_norm=True)
        for stage, (count, width) in enumerate(stage_depths_and_widths(self.line)):
            for block in range(count):
                with net.scope(f"stage{stage}"), net.scope(f"block{block}"):
                    stride = 2 if block == 0 else 1
                    x = net.block(self._block, x, width=width, stride=stride)
        return net.logits(net.global_avg_pool(x))

    def _block(self, net: Network[T], x: T, width: int, stride: int) -> T:
        channels = net.shape(x)[2]
        shortcut = x
        if stride != 1 or channels != width:
            shortcut = net.conv(x, width, 1, stride, batch_norm=True, activation=None)
        groups = width // min(self.line.group, width)
        y = net.conv(x, width, 1, batch_norm=True)
        y = net.conv(y, width, 3, stride, "SAME_RESNET", groups=groups, batch_norm=True)
        y = squeeze_excite(net, y, round(channels / 4), "relu")
        y = net.conv(y, width, 1, batch_norm=True, activation=None)
        return net.relu(net.add(shortcut, y))


register_variants(RegNetY, [(variant,) for variant in VARIANTS])
