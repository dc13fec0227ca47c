"""EfficientNet B0 to B7, and V2-S, which begins with full convolutions in place of depthwise ones.

Sources: Tan and Le, arXiv:1905.11946 (B0 to B7) and arXiv:2104.00298 (V2-S).
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from cnnbench.models.blocks import inverted_residual, round_channels, with_shortcut
from cnnbench.models.model import Model
from cnnbench.models.network import Network, T
from cnnbench.models.registry import register_model
from cnnbench.models.spec import BatchNorm, LearningRateSpec

KEEP_LAST_BRANCH = 0.8  # decreases linearly from 1 at the first block


class BlockStage(NamedTuple):
    """A stage of blocks with a depthwise or, if `fused`, a full convolution of side `kernel`.

    The full one also replaces the first 1 x 1 convolution and has no squeeze and excitation.
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

# Image size, factors of width and depth, share kept by the dropout, batch per device.
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


class EfficientNet(Model):
    """Stages of inverted residuals with squeeze and excitation.

    `width` is a factor on channels, `depth` on blocks per stage.
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

    stages: tuple[BlockStage, ...]

    def __init__(self, version: int) -> None:
        self.name = f"efficientnet_b{version}"
        self.image_size, self.width, self.depth, self.keep, self.batch_size = SCALES[version]
        self.stages, self.stem = B0, 32

    def build(self, net: Network[T], images: T) -> T:
        """Stem, stages, 1280 channels (times the factor), mean over the image, logits."""
        x = self._conv(net, images, self.stem, 3, 2)
        counts = [math.ceil(stage.blocks * self.depth) for stage in self.stages]
        done, total = 0, sum(counts)
        for index, (stage, count) in enumerate(zip(self.stages, counts, strict=True)):
            for block in range(count):
                keep = 1.0 - (1.0 - KEEP_LAST_BRANCH) * done / total
                stride = stage.stride if block == 0 else 1
                with net.scope(f"stage{index}"), net.scope(f"block{block}"):
                    x = self._block(net, x, stage, stride, keep)
                done += 1
        x = self._conv(net, x, 1280, 1, 1)
        return net.logits(net.dropout(net.global_avg_pool(x), self.keep))

    def _conv(self, net: Network[T], x: T, channels: int, kernel: int, stride: int) -> T:
        filters = round_channels(channels * self.width)
        return net.conv(x, filters, kernel, stride, batch_norm=True, activation="swish")

    def _block(self, net: Network[T], x: T, stage: BlockStage, stride: int, keep: float) -> T:
        filters = round_channels(stage.channels * self.width)
        if stage.fused:
            return self._fused_block(net, x, filters, stage, stride, keep)
        return inverted_residual(
            net,
            x,
            filters,
            stage.kernel,
            stride,
            stage.expansion,
            activation="swish",
            squeeze=0.25,
            keep=keep,
        )

    @staticmethod
    def _fused_block(
        net: Network[T], x: T, filters: int, stage: BlockStage, stride: int, keep: float
    ) -> T:
        channels = net.shape(x)[2]
        wide = channels * stage.expansion if stage.expansion != 1 else filters
        y = net.conv(x, wide, stage.kernel, stride, batch_norm=True, activation="swish")
        if stage.expansion != 1:
            y = net.conv(y, filters, 1, batch_norm=True, activation=None)
        return with_shortcut(net, x, y, keep) if stride == 1 and filters == channels else y


class EfficientNetV2S(EfficientNet):
    """The small network of the second version, at the size that it is evaluated with."""

    name = "efficientnetv2_s"
    image_size = 384
    batch_size = 32

    def __init__(self) -> None:
        self.stages, self.stem = V2_S, 24
        self.width, self.depth, self.keep = 1.0, 1.0, 0.8


for _version in SCALES:
    _factory = functools.partial(EfficientNet, _version)
    register_model(_factory().name, "imagenet", _factory)
register_model("efficientnetv2_s", "imagenet", EfficientNetV2S)
