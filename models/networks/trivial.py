"""A network with hardly any work, whose step time shows the overhead of the harness."""

from __future__ import annotations

from cnnbench.models import LearningRateSpec, Model, Network, T, register_model


class Trivial(Model):
    """A network with hardly any work: an affine layer with 1 unit, and one with 4096 units."""

    name = "trivial"
    dataset = "imagenet"
    image_size = 227
    batch_size = 32
    learning_rate = LearningRateSpec(0.005)

    def build(self, net: Network[T], images: T) -> T:
        """Builds affine layers with 1 unit and 4096 units for the flattened image, and logits."""
        x = net.affine(net.flatten(images), 1)
        return net.logits(net.affine(x, 4096))


class TrivialCifar10(Trivial):
    """The network of `Trivial` for 32 x 32 images."""

    dataset = "cifar10"
    image_size = 32


register_model("trivial", "imagenet", Trivial)
register_model("trivial", "cifar10", TrivialCifar10)
