"""VGG: stacks of 3 x 3 convolutions, separated by pooling.

Source: Simonyan and Zisserman, arXiv:1409.1556, configurations A (11), D (16), E (19) of table 1.
"""

from __future__ import annotations

from cnnbench.models import LearningRateSpec, Model, Network, T
from cnnbench.models.model import LARGEST_IMAGE
from cnnbench.models.registry import register_variants

FILTERS = (64, 128, 256, 512, 512)
CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class Vgg(Model):
    """VGG: five stages of convolutions, then two affine layers with dropout."""

    dataset = "imagenet"
    image_size = 224
    image_sizes = range(32, LARGEST_IMAGE + 1)
    batch_size = 64
    learning_rate = LearningRateSpec(0.005)

    def __init__(self, depth: int) -> None:
        self.name = f"vgg{depth}"
        self.convolutions = CONVOLUTIONS[depth]

    def build(self, net: Network[T], images: T) -> T:
        """Builds five stages that each halve the image, then two layers of 4096 units."""
        x = images
        for filters, count in zip(FILTERS, self.convolutions, strict=True):
            for _ in range(count):
                x = net.conv(x, filters, 3)
            x = net.max_pool(x, 2, 2)
        x = net.flatten(x)
        for _ in range(2):
            x = net.dropout(net.affine(x, 4096))
        return net.logits(x)


register_variants(Vgg, [(depth,) for depth in CONVOLUTIONS])
