"""A network whose gradients follow its weights, some of them beyond 1, in elements enough to round.

`free` has no weight decay; no loss but the L2 loss depends on `detached`.
"""

from cnnbench.models import Initializer, LearningRateSpec, Model, register_model

TARGETS = (0.3, -2.7, 1.9, 0.01, 5.3, -0.7, 0.9, 3.1)


class Curved(Model):
    name, dataset, image_size, batch_size = "curved", "imagenet", 2, 2
    learning_rate = LearningRateSpec(0.0625)

    def build(self, net, images):
        import tensorflow as tf

        net.variable("detached", (2,), Initializer.constant(1.7))
        weights = net.variable("weights", (5,), Initializer.truncated_normal(0.9))
        free = net.variable("free", (3,), Initializer.constant(0.6), weight_decay=False)

        def logits(x, weights, free):
            steepness = 1.0 + tf.reduce_mean(x, axis=(1, 2, 3))
            rows = steepness[:, None] * tf.concat([weights, free], axis=0)
            return tf.pad(rows, [[0, 0], [0, net.num_classes - len(TARGETS)]])

        return net.apply(logits, images, weights, free, shape=(net.num_classes,))

    def loss(self, logits, labels):
        import tensorflow as tf

        errors = tf.cast(logits[:, : len(TARGETS)], tf.float32) - tf.constant(TARGETS)
        return tf.reduce_sum(tf.square(errors), axis=1) / 3.0


register_model("curved", "imagenet", Curved)
