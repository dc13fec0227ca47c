"""AlexNet: the variant of 2014 for ImageNet, and a small variant for CIFAR-10.

Sources: Krizhevsky, arXiv:1404.5997; for CIFAR-10, TensorFlow's tutorial, which is based on
  cuda-convnet.
"""

from __future__ import annotations

from cnnbench.models import LearningRateSpec, Model, Network, T, register_model
from cnnbench.models.model import LARGEST_IMAGE


class AlexNet(Model):
    """AlexNet with five convolutions and two affine layers with dropout."""

    name = "alexnet"
    dataset = "imagenet"
    image_size = 227  # 224 would need padding in the first layer.
    image_sizes = range(67, LARGEST_IMAGE + 1)
    batch_size = 512
    learning_rate = LearningRateSpec(0.005)

    def build(self, net: Network[T], images: T) -> T:
        """Builds convolutions with 64, 192, 384, 384, 256 filters, and two layers of 4096 units."""
        x = net.conv(images, 64, 11, 4, "VALID")
        x = net.max_pool(x, 3, 2)
        x = net.conv(x, 192, 5)
        x = net.max_pool(x, 3, 2)
        for filters in (384, 384, 256):
            x = net.conv(x, filters, 3)
        x = net.flatten(net.max_pool(x, 3, 2))
        for _ in range(2):
            x = net.dropout(net.affine(x, 4096))
        return net.logits(x)


class AlexNetCifar10(Model):
    """Small AlexNet for CIFAR-10: two convolutions with normalisation, and two affine layers."""

    name = "alexnet"
    dataset = "cifar10"
    image_size = 32
    batch_size = 128
    learning_rate = LearningRateSpec(0.1, decay_epochs=100.0, decay_factor=0.1)

    def build(self, net: Network[T], images: T) -> T:
        """Builds two 5 x 5 convolutions with 64 filters, then layers of 384 and 192 units."""
        x = net.conv(images, 64, 5, stddev=0.05)
        x = self._lrn(net, net.max_pool(x, 3, 2, "SAME"))
        x = self._lrn(net, net.conv(x, 64, 5, bias=0.1, stddev=0.05))
        x = net.flatten(net.max_pool(x, 3, 2, "SAME"))
        x = net.affine(x, 384, bias=0.1, stddev=0.04)
        return net.logits(net.affine(x, 192, bias=0.1, stddev=0.04))

    @staticmethod
    def _lrn(net: Network[T], x: T) -> T:
        return net.lrn(x, radius=4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)


register_model("alexnet", "imagenet", AlexNet)
register_model("alexnet", "cifar10", AlexNetCifar10)
