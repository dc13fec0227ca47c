"""Blocks shared by several networks."""

from __future__ import annotations

from cnnbench.models.network import Activation, Network, T

AUX_WEIGHT = 0.4  # factor of the auxiliary loss
STDDEV = 0.02  # initial truncated normal of kernels of transformers and ConvNeXt


def squeeze_excite(net: Network[T], x: T, units: int, activation: Activation) -> T:
    """Scales channels of ``(h, w, c)``: squeeze and excitation (Hu et al., arXiv:1709.01507)."""
    narrow = net.affine(net.global_avg_pool(x), units, activation)
    return net.multiply(x, net.affine(narrow, net.shape(x)[2], "sigmoid"))


def with_shortcut(net: Network[T], x: T, branch: T, keep: float) -> T:
    """The sum of a block's input and its branch, which drop path may omit."""
    return net.add(x, net.drop_path(branch, keep))


def aux_head(
    net: Network[T], x: T, *, conv_stddev: float | None = None, stddev: float | None = None
) -> None:
    """Adds an auxiliary classifier to ``(h, w, c)``, h and w at least 5, in training only.

    Source: Szegedy et al., arXiv:1512.00567, section 4, in the form of TensorFlow's slim.
    """
    if not net.training:
        return
    with net.scope("aux"):
        y = net.conv(net.avg_pool(x, 5, 3), 128, 1, batch_norm=True)
        height, width, _ = net.shape(y)
        y = net.conv(y, 768, (height, width), padding="VALID", batch_norm=True, stddev=conv_stddev)
        net.auxiliary(net.logits(net.flatten(y), stddev=stddev), AUX_WEIGHT)


def self_attention(net: Network[T], x: T, heads: int, bias: T | None = None) -> T:
    """Attention between tokens ``(..., n, c)``, with learned projections."""
    channels = net.shape(x)[-1]
    query, key, value = net.split(net.affine(x, 3 * channels, None, stddev=STDDEV), 3)
    mixed = net.attention(query, key, value, heads, bias=bias)
    return net.affine(mixed, channels, None, stddev=STDDEV)


def perceptron(net: Network[T], x: T) -> T:
    """Expands each token to four times its channels, applies GELU, and projects back."""
    channels = net.shape(x)[-1]
    wide = net.affine(x, 4 * channels, "gelu", stddev=STDDEV)
    return net.affine(wide, channels, None, stddev=STDDEV)
