"""MobileNet v2 (Sandler et al., arXiv:1801.04381)."""

from __future__ import annotations

from cnnbench.models.blocks import inverted_residual
from cnnbench.models.model import Model
from cnnbench.models.network import Network, T
from cnnbench.models.registry import register_model
from cnnbench.models.spec import BatchNorm, LearningRateSpec


class MobileNetV2(Model):
    """Inverted residuals between two convolutions.

    Attributes:
      stages: expansion, channels, blocks, and stride of the first block.
    """

    name = "mobilenet"
    dataset = "imagenet"
    image_size = 224
    batch_size = 32
    batch_norm = BatchNorm(decay=0.997, epsilon=1e-3)
    learning_rate = LearningRateSpec(0.005)
    stages: tuple[tuple[int, int, int, int], ...] = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def build(self, net: Network[T], images: T) -> T:
        """32 filters, the stages, 1280 filters, mean over the image, logits."""
        x = net.conv(images, 32, 3, 2, batch_norm=True, activation="relu6")
        for stage, (expansion, filters, blocks, stride) in enumerate(self.stages):
            for block in range(blocks):
                with net.scope(f"stage{stage}"), net.scope(f"block{block}"):
                    first = stride if block == 0 else 1
                    x = inverted_residual(net, x, filters, 3, first, expansion, activation="relu6")
        x = net.conv(x, 1280, 1, batch_norm=True, activation="relu6")
        return net.logits(net.dropout(net.global_avg_pool(x), keep=0.8))


register_model("mobilenet", "imagenet", MobileNetV2)
