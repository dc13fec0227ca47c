"""A model that needs more memory than any machine has, from a batch of five images on."""

from __future__ import annotations

from typing import Any

from cnnbench.models import LearningRateSpec, Model, Network, T, register_model

CAPACITY = 4
BYTES_PER_IMAGE_BEYOND = 2**48


class Greedy(Model):
    """One affine layer behind an allocation."""

    name, dataset, image_size, batch_size = "greedy", "imagenet", 8, 4
    learning_rate = LearningRateSpec(0.01)

    def build(self, net: Network[T], images: T) -> T:
        """Returns the logits."""
        return net.logits(net.flatten(net.apply(_allocate, images)))


def _allocate(images: Any) -> Any:
    import tensorflow as tf

    beyond = tf.nn.relu(tf.shape(images, out_type=tf.int64)[0] - CAPACITY)
    # Random numbers, because a constant would be taken for one.
    waste = tf.random.uniform(tf.stack([beyond * (BYTES_PER_IMAGE_BEYOND // 4)]))
    return images + tf.reduce_sum(tf.cast(waste, images.dtype))


register_model("greedy", "imagenet", Greedy)
