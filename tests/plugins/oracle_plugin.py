"""A network small enough to do by hand: loss = (4 mean(image) + 1) * A * B."""

from cnnbench.models import Initializer, LearningRateSpec, Model, register_model


class Oracle(Model):
    """Two scalar parameters; the image decides how steep their product is."""

    name = "oracle"
    dataset = "imagenet"
    image_size = 1
    batch_size = 2
    learning_rate = LearningRateSpec(base=0.0625)

    def build(self, net, images):
        import tensorflow as tf

        a = net.variable("A", (), Initializer.constant(1.0))
        b = net.variable("B", (), Initializer.constant(2.0))

        def product(x, a, b):
            slope = 4.0 * tf.reduce_mean(x, axis=(1, 2, 3)) + 1.0
            return tf.tile((slope * a * b)[:, None], [1, net.num_classes])

        return net.apply(product, images, a, b, shape=(net.num_classes,))

    def loss(self, logits, labels):
        return logits[:, 0]


register_model("oracle", "imagenet", Oracle)
