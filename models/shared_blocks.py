"""Blocks of layers that several networks share."""

from __future__ import annotations

from cnnbench.models.network import Activation, Network, T

AUX_WEIGHT = 0.4  # Weight of the auxiliary head's loss in the training loss.
STDDEV = 0.02
"""Standard deviation of initial kernels (truncated normal) in transformers and ConvNeXt."""


def squeeze_excite(net: Network[T], x: T, units: int, activation: Activation) -> T:
    """Squeeze and excitation: scales the channels of ``(h, w, c)`` by learned factors.

    Source: Hu et al., arXiv:1709.01507.
    """
    narrow = net.affine(net.global_avg_pool(x), units, activation)
    return net.multiply(x, net.affine(narrow, net.shape(x)[2], "sigmoid"))


def add_residual_branch(net: Network[T], x: T, branch: T, keep: float) -> T:
    """Applies drop path to the branch of a residual block, and adds the block's input `x`."""
    return net.add(x, net.drop_path(branch, keep))


def add_aux_head(
    net: Network[T], x: T, *, conv_stddev: float | None = None, stddev: float | None = None
) -> None:
    """Adds an auxiliary classifier for ``(h, w, c)`` in training; h and w must be at least 5.

    Source: Szegedy et al., arXiv:1512.00567, section 4, as implemented in TF-slim.
    """
    if not net.training:
        return
    with net.scope("aux"):
        y = net.conv(net.avg_pool(x, 5, 3), 128, 1, batch_norm=True)
        height, width, _ = net.shape(y)
        y = net.conv(y, 768, (height, width), padding="VALID", batch_norm=True, stddev=conv_stddev)
        net.auxiliary(net.logits(net.flatten(y), stddev=stddev), AUX_WEIGHT)


def self_attention(net: Network[T], x: T, heads: int, bias: T | None = None) -> T:
    """Self-attention between tokens ``(..., n, c)``, with learned projections before and after."""
    channels = net.shape(x)[-1]
    query, key, value = net.split(net.affine(x, 3 * channels, None, stddev=STDDEV), 3)
    mixed = net.attention(query, key, value, heads, bias=bias)
    return net.affine(mixed, channels, None, stddev=STDDEV)


def token_perceptron(net: Network[T], x: T) -> T:
    """Expands tokens to four times their channels, applies GELU, and reduces the channels again."""
    channels = net.shape(x)[-1]
    wide = net.affine(x, 4 * channels, "gelu", stddev=STDDEV)
    return net.affine(wide, channels, None, stddev=STDDEV)
