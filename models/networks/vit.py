"""Vision transformer, base size with patches of 16 x 16 (Dosovitskiy et al., arXiv:2010.11929)."""

from __future__ import annotations

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Tensor
from cnnbench.models import Initializer, LearningRateSpec, Model, Network, T, register_model
from cnnbench.models.model import LARGEST_IMAGE
from cnnbench.models.shared_blocks import STDDEV, self_attention, token_perceptron


class ViTB16(Model):
    """ViT-B/16: twelve layers of attention and perceptron on patches and a class token."""

    name = "vit_b16"
    dataset = "imagenet"
    image_size = 224
    image_sizes = range(16, LARGEST_IMAGE + 1, 16)  # In whole patches.
    batch_size = 32
    learning_rate = LearningRateSpec.cosine(
        0.0001875, base_batch=256, epochs=300, warmup_epochs=32.0
    )
    patch, width, layers, heads = 16, 768, 12, 12

    def build(self, net: Network[T], images: T) -> T:
        """Builds patches with position embeddings, a class token, twelve layers and logits."""
        x = net.conv(images, self.width, self.patch, self.patch, "VALID", activation=None)
        height, width, channels = net.shape(x)
        x = self._prepend_class_token(net, net.reshape(x, (height * width, channels)))
        normal = Initializer.truncated_normal(STDDEV)
        x = net.add(x, net.variable("positions", net.shape(x), normal, weight_decay=False))
        for layer in range(self.layers):
            with net.scope(f"layer{layer}"):
                x = net.block(self._layer, x)
        x = net.layer_norm(x)
        first = net.apply(lambda tokens: tokens[:, 0], x, shape=(channels,))
        return net.logits(first, stddev=STDDEV)

    def _layer(self, net: Network[T], x: T) -> T:
        x = net.add(x, self_attention(net, net.layer_norm(x), self.heads))
        return net.add(x, token_perceptron(net, net.layer_norm(x)))

    @staticmethod
    def _prepend_class_token(net: Network[T], x: T) -> T:
        count, channels = net.shape(x)
        token = net.variable("token", (channels,), Initializer.constant(0.0), weight_decay=False)

        def prepend_token(tokens: Tensor, token: Tensor) -> Tensor:
            repeated = tf.broadcast_to(token, [tf.shape(tokens)[0], 1, channels])
            return tf.concat([repeated, tokens], axis=1)

        return net.apply(prepend_token, x, token, shape=(count + 1, channels))


register_model("vit_b16", "imagenet", ViTB16)
