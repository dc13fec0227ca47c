"""A network whose gradients, but not its loss, can be made NaN or infinite by its labels.

The loss does not depend on the labels. An example with the label `NAN` or `INFINITY`
multiplies what flows back from it by that. `detached` is a weight that no loss but the
L2 loss depends on.
"""

import numpy as np

from cnnbench.models import Initializer, LearningRateSpec, Model, register_model

NAN, INFINITY = 13, 14


class Poison(Model):
    name = "poison"
    dataset = "imagenet"
    image_size = 2
    batch_size = 2
    learning_rate = LearningRateSpec(base=0.0625)

    def build(self, net, images):
        net.variable("detached", (3,), Initializer.constant(2.0))
        x = net.conv(images, 3, 2, stddev=0.5, batch_norm=True)
        x = net.affine(net.flatten(x), 4)
        return net.logits(x, stddev=0.5)

    def loss(self, logits, labels):
        import tensorflow as tf

        @tf.custom_gradient
        def poisoned(losses):
            def gradient(upstream):
                factors = tf.where(labels == NAN, np.nan, tf.ones_like(losses))
                return upstream * tf.where(labels == INFINITY, np.inf, factors)

            return tf.identity(losses), gradient

        return poisoned(tf.reduce_mean(tf.square(logits[:, :8] - 1.0), axis=1))


register_model("poison", "imagenet", Poison)
