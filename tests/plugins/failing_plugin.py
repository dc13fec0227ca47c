"""A network whose second tower fails when it runs."""

from cnnbench.models import LearningRateSpec, Model, register_model


class FailsToRun(Model):
    name = "fails_to_run"
    dataset = "imagenet"
    image_size = 2
    batch_size = 2
    learning_rate = LearningRateSpec(base=0.0625)

    def build(self, net, images):
        x = net.conv(images, 3, 2, batch_norm=True)
        x = net.logits(net.flatten(x), stddev=0.5)
        return net.apply(self.fail, x, shape=(net.num_classes,))

    def fail(self, x):
        import tensorflow as tf

        works = "tower_1" not in tf.get_current_name_scope()
        # An operation with effects, so that each tower is traced.
        with tf.control_dependencies([tf.debugging.Assert(works, ["the second tower cannot run"])]):
            return tf.identity(x)


register_model("fails_to_run", "imagenet", FailsToRun)
