"""A network for coco, with several labels and a metric of its own."""

from cnnbench.models import Draw, Element, LearningRateSpec, Model, register_model
from cnnbench.models.elements import IMAGE


class Presence(Model):
    """Tells from the image how many boxes are in it."""

    name, dataset, image_size, batch_size = "presence", "coco", 16, 4
    elements = (
        IMAGE,
        Element("num_boxes", (), "label", "int64", Draw.integers(1, 20)),
        Element("boxes", (200, 4), "label", "float32", Draw.boxes(), rows="num_boxes"),
    )
    metric_names = ("off",)
    learning_rate = LearningRateSpec(0.001)

    def build(self, net, image):
        return net.affine(net.flatten(net.conv(image, 4, 3)), 1, None)

    def loss(self, outputs, labels):
        import tensorflow as tf

        area = tf.reduce_sum(labels["boxes"][..., 2:] - labels["boxes"][..., :2], axis=[1, 2])
        return tf.square(outputs[:, 0] - tf.cast(labels["num_boxes"], tf.float32) - area)

    def metrics(self, outputs, labels):
        return {"off": self.loss(outputs, labels)}


register_model("presence", "coco", Presence)
