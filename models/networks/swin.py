"""Swin-T, the tiny Swin transformer: attention within windows of the image.

Source: Liu et al., arXiv:2103.14030.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Tensor
from cnnbench.models import Initializer, LearningRateSpec, Model, Network, T, register_model
from cnnbench.models.model import LARGEST_IMAGE
from cnnbench.models.shared_blocks import (
    STDDEV,
    add_residual_branch,
    self_attention,
    token_perceptron,
)

EPSILON = 1e-5
_FORBIDDEN = -100.0  # Bias of tokens that are far apart in the image.


class SwinT(Model):
    """Swin-T: four stages of attention layers. Every second layer shifts windows by half.

    Attributes:
      window: height and width of a window in tokens. The height and width of the image in every
        stage must be multiples of `window`.
      width: channels in the first stage. Each further stage has twice as many.
    """

    name = "swin_t"
    dataset = "imagenet"
    image_size = 224
    image_sizes = range(224, LARGEST_IMAGE + 1, 224)  # Whole windows cover the image in each stage.
    batch_size = 64
    learning_rate = LearningRateSpec.cosine(0.00025, base_batch=256, epochs=300, warmup_epochs=20.0)
    window, width = 7, 96
    layers, heads = (2, 2, 6, 2), (3, 6, 12, 24)
    keep_last = 0.8

    def build(self, net: Network[T], images: T) -> T:
        """Builds 4 x 4 patches, stages that each halve the image, average pooling and logits."""
        x = net.conv(images, self.width, 4, 4, "VALID", activation=None, stddev=STDDEV)
        side, _, channels = net.shape(x)
        x = net.layer_norm(net.reshape(x, (side * side, channels)), epsilon=EPSILON)
        done, last = 0, sum(self.layers) - 1
        for stage, (count, heads) in enumerate(zip(self.layers, self.heads, strict=True)):
            with net.scope(f"stage{stage}"):
                if stage > 0:
                    x, side = _merge_patches(net, x, side), side // 2
                for layer in range(count):
                    keep = 1.0 - (1.0 - self.keep_last) * done / last
                    # In the last stage, one window covers the whole image, so it is not shifted.
                    shifts_windows = layer % 2 == 1 and side > self.window
                    with net.scope(f"layer{layer}"):
                        how = {
                            "side": side,
                            "heads": heads,
                            "shifts_windows": shifts_windows,
                            "keep": keep,
                        }
                        x = net.block(self._layer, x, **how)
                    done += 1
        x = net.layer_norm(x, epsilon=EPSILON)
        x = net.global_avg_pool(net.reshape(x, (side, side, net.shape(x)[1])))
        return net.logits(x, stddev=STDDEV)

    def _layer(
        self, net: Network[T], x: T, side: int, heads: int, shifts_windows: bool, keep: float
    ) -> T:
        shift = self.window // 2 if shifts_windows else 0
        y = _shift_tokens(net, net.layer_norm(x, epsilon=EPSILON), side, -shift)
        size, count, channels = self.window, side // self.window, net.shape(x)[1]
        windows = (count, count, size * size, channels)
        y = _swap_axes(net, y, (count, size, count, size, channels), windows)
        y = self_attention(net, y, heads, self._window_bias(net, side, heads, shift))
        y = _swap_axes(net, y, (count, count, size, size, channels), net.shape(x))
        y = _shift_tokens(net, y, side, shift)
        x = add_residual_branch(net, x, y, keep)
        y = token_perceptron(net, net.layer_norm(x, epsilon=EPSILON))
        return add_residual_branch(net, x, y, keep)

    def _window_bias(self, net: Network[T], side: int, heads: int, shift: int) -> T:
        """Creates the attention bias of a layer: see `make_window_bias`."""
        table = net.variable(
            "distances",
            ((2 * self.window - 1) ** 2, heads),
            Initializer.truncated_normal(STDDEV),
            weight_decay=False,
        )

        # Without a shift, all windows have the same bias. With a shift, some windows contain
        # separate areas of the image, so each window has its own bias.
        groups = (side // self.window,) * 2 if shift else ()
        tokens = self.window**2
        bias = functools.partial(make_window_bias, window=self.window, side=side, shift=shift)
        return net.apply(bias, table, shape=(*groups, heads, tokens, tokens))


def make_window_bias(table: Tensor, window: int, side: int, shift: int) -> Tensor:
    """Computes the attention bias of windows from a learned value per relative position of tokens.

    Two tokens of a window that are not close in the image get the bias `_FORBIDDEN`.

    Args:
      table: ``[(2 * window - 1) ** 2, heads]``, one row for each relative position (section 3.2).
      window, side: number of tokens in a row of a window, and of the image.
      shift: number of tokens by which the image was moved up and left (cyclically).

    Returns:
      ``[heads, tokens, tokens]``. With a shift, ``[windows, windows, heads, tokens, tokens]``.
    """
    import numpy as np

    rows, columns = np.divmod(np.arange(window**2), window)
    down = rows[:, None] - rows + window - 1
    right = columns[:, None] - columns + window - 1
    distances = (down * (2 * window - 1) + right).ravel()
    # The gradient of tf.gather is dense along the second axis, but sparse along the first, so the
    # second is used.
    biases = tf.gather(tf.transpose(table), distances, axis=1)
    bias = tf.reshape(biases, [-1, window**2, window**2])
    if not shift:
        return bias
    # A cyclic shift moves the beginning of the image behind its end, so the last windows contain
    # both.
    part = np.digitize(np.arange(side), [side - window, side - shift])
    parts = part[:, None] * 3 + part
    count = side // window
    windows = parts.reshape(count, window, count, window).transpose(0, 2, 1, 3)
    tokens = windows.reshape(count, count, 1, window**2)
    separated = tokens[..., :, None] != tokens[..., None, :]
    return bias + tf.constant(np.float32(_FORBIDDEN) * separated, table.dtype)


def _swap_axes(net: Network[T], x: T, split_shape: Sequence[int], final_shape: Sequence[int]) -> T:
    """Reshapes `x` to five dimensions, swaps the second and the third, and reshapes again."""
    return net.reshape(net.transpose(net.reshape(x, split_shape), (0, 2, 1, 3, 4)), final_shape)


def _merge_patches(net: Network[T], x: T, side: int) -> T:
    """Merges 2 x 2 tokens into one token with twice as many channels."""
    half, channels = side // 2, net.shape(x)[1]
    y = net.transpose(net.reshape(x, (half, 2, half, 2, channels)), (0, 2, 3, 1, 4))
    y = net.layer_norm(net.reshape(y, (half * half, 4 * channels)), epsilon=EPSILON)
    return net.affine(y, 2 * channels, None, bias=None, stddev=STDDEV)


def _shift_tokens(net: Network[T], x: T, side: int, shift: int) -> T:
    if shift == 0:
        return x
    count, channels = net.shape(x)

    def roll(tokens: Tensor) -> Tensor:
        grid = tf.reshape(tokens, [-1, side, side, channels])
        return tf.reshape(tf.roll(grid, [shift, shift], [1, 2]), [-1, count, channels])

    return net.apply(roll, x)


register_model("swin_t", "imagenet", SwinT)
