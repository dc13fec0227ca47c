"""A small network with batch norm in a row and beside itself, with scale and without."""

from cnnbench.models import Initializer, LearningRateSpec, Model, register_model


class Normal(Model):
    name = "normal"
    dataset = "imagenet"
    image_size = 4
    batch_size = 4
    learning_rate = LearningRateSpec(base=0.0625)
    filters = 4

    def build(self, net, images):
        x = net.conv(images, self.filters, 3, batch_norm=True)
        left = net.conv(x, 4, 1, batch_norm=True)
        right = net.conv(x, 4, 3, batch_norm=True)
        x = net.affine(net.flatten(net.add(left, right)), 4)
        x = net.logits(x, stddev=0.2)
        spare = net.variable("spare", (3,), Initializer.constant(2.0))
        return net.apply(lambda x, v: x, x, spare, shape=(net.num_classes,))


class Odd(Normal):
    """With six channels, which TensorFlow's fused batch norm and ReLU for inference refuses."""

    name = "odd"
    filters = 6


register_model("normal", "imagenet", Normal)
register_model("odd", "imagenet", Odd)
