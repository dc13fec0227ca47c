"""A complete model: cnnbench --plugin=docs/examples/tiny_plugin.py --model=tiny."""

from cnnbench.models import LearningRateSpec, Model, Network, T, register_model


class Tiny(Model):
    """Three convolutions with batch norm, for 64 x 64 images."""

    name, dataset, image_size, batch_size = "tiny", "imagenet", 64, 32
    learning_rate = LearningRateSpec(0.01)

    def build(self, net: Network[T], images: T) -> T:
        """Returns the logits, one row per image."""
        x = images
        for filters in (32, 64, 128):
            x = net.max_pool(net.conv(x, filters, 3, batch_norm=True), 2, 2)
        return net.logits(net.dropout(net.global_avg_pool(x), keep=0.8))


register_model("tiny", "imagenet", Tiny)
