"""ConvNeXt: depthwise 7 x 7 convolutions, layer norm and GELU (Liu et al., arXiv:2201.03545)."""

from __future__ import annotations

from cnnbench.models import Initializer, LearningRateSpec, Model, Network, T
from cnnbench.models.model import LARGEST_IMAGE
from cnnbench.models.registry import register_variants
from cnnbench.models.shared_blocks import STDDEV, add_residual_branch

# For each variant: blocks per stage, channels per stage, and the probability with which the last
# block is kept.
VARIANTS = {
    "tiny": ((3, 3, 9, 3), (96, 192, 384, 768), 0.9),
    "base": ((3, 3, 27, 3), (128, 256, 512, 1024), 0.5),
}

BRANCH_SCALE = 1e-6
"""Initial scale of a block's branch, with which a block hardly changes its input."""


class ConvNeXt(Model):
    """ConvNeXt: four stages of residual blocks with depthwise 7 x 7 convolutions."""

    dataset = "imagenet"
    image_size = 224
    image_sizes = range(32, LARGEST_IMAGE + 1)
    learning_rate = LearningRateSpec.cosine(0.00025, base_batch=256, epochs=300, warmup_epochs=20.0)

    def __init__(self, variant: str) -> None:
        self.name = f"convnext_{variant}"
        self.batch_size = 64 if variant == "tiny" else 32
        self.blocks, self.widths, self.keep_last = VARIANTS[variant]

    def build(self, net: Network[T], images: T) -> T:
        """Builds 4 x 4 patches, stages that each halve the image, average pooling and logits."""
        x = net.layer_norm(self._conv_patches(net, images, self.widths[0], 4))
        done, last = 0, sum(self.blocks) - 1
        for stage, (count, channels) in enumerate(zip(self.blocks, self.widths, strict=True)):
            with net.scope(f"stage{stage}"):
                if stage > 0:
                    x = self._conv_patches(net, net.layer_norm(x), channels, 2)
                for block in range(count):
                    with net.scope(f"block{block}"):
                        keep = 1.0 - (1.0 - self.keep_last) * done / last
                        x = net.block(self._block, x, keep=keep)
                    done += 1
        return net.logits(net.layer_norm(net.global_avg_pool(x)), stddev=STDDEV)

    @staticmethod
    def _conv_patches(net: Network[T], x: T, channels: int, side: int) -> T:
        return net.conv(x, channels, side, side, "VALID", activation=None, stddev=STDDEV)

    @staticmethod
    def _block(net: Network[T], x: T, keep: float) -> T:
        channels = net.shape(x)[2]
        y = net.depthwise_conv(x, 7, activation=None, stddev=STDDEV)
        y = net.conv(net.layer_norm(y), 4 * channels, 1, activation="gelu", stddev=STDDEV)
        y = net.conv(y, channels, 1, activation=None, stddev=STDDEV)
        first = Initializer.constant(BRANCH_SCALE)
        scale = net.variable("scale", (channels,), first, weight_decay=False)
        return add_residual_branch(net, x, net.multiply(y, scale), keep)


register_variants(ConvNeXt, [(variant,) for variant in VARIANTS])
