"""A network whose gradient the image gives: loss = mean(image) * sum(slopes * weights)."""

from cnnbench.models import Initializer, LearningRateSpec, Model, register_model

WEIGHTS = 60_000


class Drift(Model):
    """The weights of a single layer."""

    name, dataset, image_size, batch_size = "drift", "imagenet", 1, 2
    learning_rate = LearningRateSpec(0.005)

    def build(self, net, images):
        import tensorflow as tf

        weights = net.variable("weights", (WEIGHTS,), Initializer.constant(1.0))

        def product(x, weights):
            slopes = tf.sin(1.7 * tf.range(WEIGHTS, dtype=tf.float32))
            scale = tf.reduce_mean(x, axis=(1, 2, 3))
            logits = scale * tf.reduce_sum(slopes * tf.cast(weights, tf.float32))
            return tf.tile(logits[:, None], [1, net.num_classes])

        return net.apply(product, images, weights, shape=(net.num_classes,))

    def loss(self, logits, labels):
        return logits[:, 0]


register_model("drift", "imagenet", Drift)
