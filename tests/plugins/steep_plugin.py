"""A network whose gradients are `SLOPES` in every tower: of a kernel, and of one row of a table."""

from cnnbench.models import Initializer, LearningRateSpec, Model, register_model

# Times the loss scale of 128 each fits into fp16; the sum of two of the largest does not.
SLOPES = (1.0, 60.0, 70.0, 100.0, -300.0, 500.0)


class Steep(Model):
    name, dataset, image_size, batch_size = "steep", "imagenet", 1, 2
    learning_rate = LearningRateSpec(1.0)

    def build(self, net, images):
        import tensorflow as tf

        width = len(SLOPES)
        kernel = net.variable("kernel", (width,), Initializer.constant(0.0))
        table = net.variable("table", (3, width), Initializer.constant(0.0))

        def logits(x, kernel, table):
            rows = tf.gather(table, tf.ones([x.shape[0]], tf.int32)) + kernel
            return tf.pad(rows, [[0, 0], [0, net.num_classes - width]])

        return net.apply(logits, images, kernel, table, shape=(net.num_classes,))

    def loss(self, logits, labels):
        import tensorflow as tf

        return tf.linalg.matvec(tf.cast(logits[:, : len(SLOPES)], tf.float32), SLOPES)


register_model("steep", "imagenet", Steep)
