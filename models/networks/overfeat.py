"""OverFeat, fast variant (Sermanet et al., arXiv:1312.6229, table 1)."""

from __future__ import annotations

from cnnbench.models import LearningRateSpec, Model, Network, T, register_model
from cnnbench.models.model import LARGEST_IMAGE


class OverFeat(Model):
    """OverFeat: five convolutions and two affine layers with dropout."""

    name = "overfeat"
    dataset = "imagenet"
    image_size = 231
    image_sizes = range(71, LARGEST_IMAGE + 1)
    batch_size = 32
    learning_rate = LearningRateSpec(0.005)

    def build(self, net: Network[T], images: T) -> T:
        """Builds convolutions with 96, 256, 512, 1024, 1024 filters, then 3072 and 4096 units."""
        x = net.max_pool(net.conv(images, 96, 11, 4, "VALID"), 2, 2)
        x = net.max_pool(net.conv(x, 256, 5, padding="VALID"), 2, 2)
        for filters in (512, 1024, 1024):
            x = net.conv(x, filters, 3)
        x = net.flatten(net.max_pool(x, 2, 2))
        for units in (3072, 4096):
            x = net.dropout(net.affine(x, units))
        return net.logits(x)


register_model("overfeat", "imagenet", OverFeat)
