"""A network with one weight, whose first element has the gradient 2e-8: nothing in fp16."""

from cnnbench.models import Initializer, LearningRateSpec, Model, register_model


class Faint(Model):
    name, dataset, image_size, batch_size = "faint", "imagenet", 1, 2
    learning_rate = LearningRateSpec(1.0)

    def build(self, net, images):
        import tensorflow as tf

        weight = net.variable("weight", (1, 7), Initializer.constant(0.0))

        def logits(x, weight):
            return tf.tile(weight, [x.shape[0], net.num_classes // 7])

        return net.apply(logits, images, weight, shape=(net.num_classes,))

    def loss(self, logits, labels):
        import tensorflow as tf

        return tf.cast(logits[:, 0], tf.float32) * 2e-8


register_model("faint", "imagenet", Faint)
