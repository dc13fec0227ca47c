"""What the networks of tokens share."""

from __future__ import annotations

from cnnbench.models.network import Network, T

STDDEV = 0.02  # of the truncated normals that kernels start with


def self_attention(net: Network[T], x: T, heads: int, bias: T | None = None) -> T:
    """Attention of tokens to one another, between learned products.

    Args:
      net: makes the layers.
      x: ``(..., n, c)`` per example.
      heads: parts of the channels.
      bias: added to the scores; see `Network.attention`.

    Returns:
      ``(..., n, c)``.
    """
    channels = net.shape(x)[-1]
    query, key, value = net.split(net.affine(x, 3 * channels, None, stddev=STDDEV), 3)
    mixed = net.attention(query, key, value, heads, bias=bias)
    return net.affine(mixed, channels, None, stddev=STDDEV)


def perceptron(net: Network[T], x: T) -> T:
    """Each token through four times its channels, GELU, and back."""
    channels = net.shape(x)[-1]
    wide = net.affine(x, 4 * channels, "gelu", stddev=STDDEV)
    return net.affine(wide, channels, None, stddev=STDDEV)
