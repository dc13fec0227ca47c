"""A network for cifar10 whose input reads the file `gate` of the working directory per example.

A FIFO in its place stalls the input, as a file system that hangs.
"""

from cnnbench.models import LearningRateSpec, Model, register_model


class Gate(Model):
    name = "gate"
    dataset = "cifar10"
    image_size = 32
    batch_size = 2
    learning_rate = LearningRateSpec(base=0.001)

    def preprocess(self, example, seed, *, training):
        import tensorflow as tf

        # Name and label depend on the example and on the file, or it is read once or never.
        path = "gate" + tf.strings.substr(tf.strings.as_string(seed[0] + seed[1]), 0, 0)
        length = tf.strings.length(tf.io.read_file(path))
        return {**example, "label": example["label"] + tf.cast(length, example["label"].dtype)}

    def build(self, net, images):
        return net.logits(net.global_avg_pool(images))


register_model("gate", "cifar10", Gate)
