"""A network whose gradients, but not its loss, are spoilt by the labels NAN and INFINITY.

The loss does not depend on the labels. An example with the label NAN makes every
gradient NaN; one with the label INFINITY makes that of `lever` infinite and leaves all
others as they are. `detached` is a weight that no loss but the L2 loss depends on.
"""

import math

from cnnbench.models import Initializer, LearningRateSpec, Model, register_model

NAN, INFINITY = 13, 14


class Poison(Model):
    name = "poison"
    dataset = "imagenet"
    image_size = 2
    batch_size = 2
    learning_rate = LearningRateSpec(base=0.0625)

    def build(self, net, images):
        import tensorflow as tf

        net.variable("detached", (3,), Initializer.constant(2.0))
        lever = net.variable("lever", (), Initializer.constant(0.5))

        def with_lever(x, lever):
            """Puts the lever in place of the first logit."""
            return tf.concat([tf.fill([tf.shape(x)[0], 1], lever), x[:, 1:]], axis=1)

        x = net.conv(images, 3, 2, stddev=0.5, batch_norm=True)
        x = net.logits(net.flatten(x), stddev=0.5)
        return net.apply(with_lever, x, lever, shape=(net.num_classes,))

    def loss(self, logits, labels):
        import tensorflow as tf

        squares = tf.reduce_mean(tf.square(logits[:, 1:8] - 1.0), axis=1)
        losses = squares + _spoilt(logits[:, 0], labels, INFINITY, math.inf)
        return _spoilt(losses, labels, NAN, math.nan)


def _spoilt(values, labels, label, factor):
    """The unchanged values; gradients of the examples with `label` are multiplied by `factor`."""
    import tensorflow as tf

    @tf.custom_gradient
    def identity(values):
        def gradient(upstream):
            return upstream * tf.where(labels == label, factor, tf.ones_like(upstream))

        return tf.identity(values), gradient

    return identity(values)


register_model("poison", "imagenet", Poison)
