"""A network, one that has its layers as a backbone, and one whose layers are wider."""

from cnnbench.models import LearningRateSpec, Model, register_model


class Classifier(Model):
    """Two convolutions and a classifier."""

    name = "classifier"
    dataset = "cifar10"
    image_size = 8
    batch_size = 2
    filters = 3
    learning_rate = LearningRateSpec(base=0.0625)

    def features(self, net, images):
        return net.conv(net.conv(images, self.filters, 3, batch_norm=True), 4, 3)

    def build(self, net, images):
        return net.logits(net.global_avg_pool(self.features(net, images)))


class Wide(Classifier):
    """Another number of filters."""

    name = "wide"
    filters = 5


class Detector(Classifier):
    """The same layers in a scope, and another head."""

    name = "detector"
    backbone = "trunk"

    def build(self, net, images):
        with net.scope("trunk"):
            x = self.features(net, images)
        return net.logits(net.flatten(x))


for model in (Classifier, Wide, Detector):
    register_model(model.name, "cifar10", model)
