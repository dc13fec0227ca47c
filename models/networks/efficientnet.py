"""MobileNet v2, EfficientNet B0 to B7 and EfficientNet V2-S: stages of inverted residuals.

Sources: Sandler et al., arXiv:1801.04381 (MobileNet); Tan and Le, arXiv:1905.11946 (B0 to B7) and
arXiv:2104.00298 (V2-S, which has full instead of depthwise convolutions in the first stages).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cnnbench.models import BatchNorm, LearningRateSpec, Model, Network, T
from cnnbench.models.network import Activation
from cnnbench.models.registry import register_variants
from cnnbench.models.shared_blocks import add_residual_branch, squeeze_excite


class BlockStage(NamedTuple):
    """A stage of inverted residual blocks, with depthwise or (if `fused`) full convolutions.

    `kernel` is the height and width of the convolution's kernel. In a `fused` block, the full
    convolution also replaces the first 1 x 1 convolution, and there is no squeeze and excitation.
    """

    blocks: int
    channels: int
    kernel: int
    stride: int
    expansion: int
    fused: bool = False


B0 = (
    BlockStage(1, 16, 3, 1, 1),
    BlockStage(2, 24, 3, 2, 6),
    BlockStage(2, 40, 5, 2, 6),
    BlockStage(3, 80, 3, 2, 6),
    BlockStage(3, 112, 5, 1, 6),
    BlockStage(4, 192, 5, 2, 6),
    BlockStage(1, 320, 3, 1, 6),
)

V2_S = (
    BlockStage(2, 24, 3, 1, 1, fused=True),
    BlockStage(4, 48, 3, 2, 4, fused=True),
    BlockStage(4, 64, 3, 2, 4, fused=True),
    BlockStage(6, 128, 3, 2, 4),
    BlockStage(9, 160, 3, 1, 6),
    BlockStage(15, 256, 3, 2, 6),
)

MOBILE = (
    BlockStage(1, 16, 3, 1, 1),
    BlockStage(2, 24, 3, 2, 6),
    BlockStage(3, 32, 3, 2, 6),
    BlockStage(4, 64, 3, 2, 6),
    BlockStage(3, 96, 3, 1, 6),
    BlockStage(3, 160, 3, 2, 6),
    BlockStage(1, 320, 3, 1, 6),
)

# By version: image size, width factor, depth factor, keep probability of dropout, batch size.
SCALES = {
    0: (224, 1.0, 1.0, 0.8, 64),
    1: (240, 1.0, 1.1, 0.8, 64),
    2: (260, 1.1, 1.2, 0.7, 64),
    3: (300, 1.2, 1.4, 0.7, 32),
    4: (380, 1.4, 1.8, 0.6, 32),
    5: (456, 1.6, 2.2, 0.6, 16),
    6: (528, 1.8, 2.6, 0.5, 16),
    7: (600, 2.0, 3.1, 0.5, 8),
}

_PERIOD, _EPOCHS = 2.4, 350
_DECAYS = round(_EPOCHS / _PERIOD)


def round_channels(channels: float) -> int:
    """Rounds to the nearest multiple of 8 that is at least nine tenths of ``channels``."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


class EfficientNet(Model):
    """Base class of MobileNet v2 and both versions of EfficientNet: stages of inverted residuals.

    Attributes:
      stem: number of filters of the first convolution.
      width, depth: factors for channels, and for blocks per stage.
      keep: keep probability of the dropout before the logits.
      keep_last: keep probability of drop path for the last block. The probability decreases
        linearly from 1 at the first block.
      squeeze: units of squeeze and excitation per channel; 0 for no squeeze and excitation.
    """

    dataset = "imagenet"
    batch_norm = BatchNorm(decay=0.99, epsilon=1e-3)
    learning_rate = LearningRateSpec(
        0.016,
        base_batch=256,
        boundaries_epochs=tuple(_PERIOD * k for k in range(1, _DECAYS)),
        factors=tuple(0.97**k for k in range(_DECAYS)),
        warmup_epochs=5.0,
    )
    stages: Sequence[BlockStage] = B0
    stem = 32
    width, depth = 1.0, 1.0
    keep, keep_last = 0.8, 0.8
    activation: Activation = "swish"
    squeeze = 0.25

    def build(self, net: Network[T], images: T) -> T:
        """Builds the stem, the stages, a 1 x 1 convolution, global average pooling and logits."""
        x = self._conv(net, images, round_channels(self.stem * self.width), 3, 2)
        counts = [math.ceil(stage.blocks * self.depth) for stage in self.stages]
        done, total = 0, sum(counts)
        for index, (stage, count) in enumerate(zip(self.stages, counts, strict=True)):
            for block in range(count):
                keep = 1.0 - (1.0 - self.keep_last) * done / total
                stride = stage.stride if block == 0 else 1
                with net.scope(f"stage{index}"), net.scope(f"block{block}"):
                    x = net.block(self._block, x, stage=stage, stride=stride, keep=keep)
                done += 1
        x = self._conv(net, x, round_channels(1280 * self.width))
        return net.logits(net.dropout(net.global_avg_pool(x), self.keep))

    def _conv(self, net: Network[T], x: T, filters: int, kernel: int = 1, stride: int = 1) -> T:
        return net.conv(x, filters, kernel, stride, batch_norm=True, activation=self.activation)

    def _block(self, net: Network[T], x: T, stage: BlockStage, stride: int, keep: float) -> T:
        """Builds an inverted residual block: expansion, depthwise convolution, projection.

        If the block has a shortcut, drop path omits the block with probability 1 - `keep`.
        """
        channels, filters = net.shape(x)[2], round_channels(stage.channels * self.width)
        wide, expands = channels * stage.expansion, stage.expansion != 1
        y = x
        if stage.fused:
            y = self._conv(net, y, wide if expands else filters, stage.kernel, stride)
        else:
            if expands:
                y = self._conv(net, y, wide)
            y = net.depthwise_conv(
                y, stage.kernel, stride, batch_norm=True, activation=self.activation
            )
            if self.squeeze:
                units = max(1, int(channels * self.squeeze))
                y = squeeze_excite(net, y, units, self.activation)
        if expands or not stage.fused:
            y = net.conv(y, filters, 1, batch_norm=True, activation=None)
        return add_residual_branch(net, x, y, keep) if stride == 1 and filters == channels else y


class EfficientNetB(EfficientNet):
    """EfficientNet B0 to B7: one network in eight sizes."""

    def __init__(self, version: int) -> None:
        self.name = f"efficientnet_b{version}"
        self.image_size, self.width, self.depth, self.keep, self.batch_size = SCALES[version]


class EfficientNetV2S(EfficientNet):
    """EfficientNet V2-S, with the image size that the paper uses for evaluation."""

    name = "efficientnetv2_s"
    image_size = 384
    batch_size = 32
    stages = V2_S
    stem = 24


class MobileNetV2(EfficientNet):
    """MobileNet v2, the network that introduced inverted residuals."""

    name = "mobilenet"
    image_size = 224
    batch_size = 32
    batch_norm = BatchNorm(decay=0.997, epsilon=1e-3)
    learning_rate = LearningRateSpec(0.005)
    stages = MOBILE
    keep_last = 1.0
    activation = "relu6"
    squeeze = 0.0


register_variants(EfficientNetB, [(version,) for version in SCALES])
register_variants(EfficientNetV2S, [()])
register_variants(MobileNetV2, [()])
