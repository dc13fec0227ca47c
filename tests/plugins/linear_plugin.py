"""A network whose gradient does not depend on its weight: loss = W mean(image)."""

from cnnbench.models import Initializer, LearningRateSpec, Model, register_model


class Linear(Model):
    """One scalar parameter."""

    name = "linear"
    dataset = "imagenet"
    image_size = 1
    batch_size = 2
    learning_rate = LearningRateSpec(base=0.25)

    def build(self, net, images):
        import tensorflow as tf

        weight = net.variable("W", (), Initializer.constant(1.0))

        def product(x, w):
            return tf.tile((w * tf.reduce_mean(x, axis=(1, 2, 3)))[:, None], [1, net.num_classes])

        return net.apply(product, images, weight, shape=(net.num_classes,))

    def loss(self, logits, labels):
        return logits[:, 0]


register_model("linear", "imagenet", Linear)
