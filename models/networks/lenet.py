"""LeNet (LeCun et al., 1998) for 28 x 28 colour images, as in TensorFlow's MNIST tutorial."""

from __future__ import annotations

from cnnbench.models import LearningRateSpec, Model, Network, T, register_model
from cnnbench.models.model import LARGEST_IMAGE


class LeNet(Model):
    """LeNet: two 5 x 5 convolutions with pooling, then a layer of 512 units."""

    name = "lenet"
    dataset = "imagenet"
    image_size = 28
    image_sizes = range(4, LARGEST_IMAGE + 1)
    batch_size = 32
    learning_rate = LearningRateSpec(0.005)

    def build(self, net: Network[T], images: T) -> T:
        """Builds two convolutions (32 and 64 filters) with pooling, 512 units, and logits."""
        x = net.max_pool(net.conv(images, 32, 5), 2, 2)
        x = net.max_pool(net.conv(x, 64, 5), 2, 2)
        return net.logits(net.affine(net.flatten(x), 512))


register_model("lenet", "imagenet", LeNet)
