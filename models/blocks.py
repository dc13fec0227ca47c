"""Blocks that several networks share."""

from __future__ import annotations

from cnnbench.models.network import Activation, Network, T


def squeeze_excite(net: Network[T], x: T, units: int, activation: Activation) -> T:
    """Scales channels by factors in (0, 1) that an example's mean over the image decides.

    Args:
      net: makes the layers.
      x: ``(h, w, c)`` per example.
      units: of the narrow layer in between.
      activation: after it.

    Returns:
      ``(h, w, c)``. Source: Hu et al., arXiv:1709.01507.
    """
    narrow = net.affine(net.global_avg_pool(x), units, activation)
    return net.multiply(x, net.affine(narrow, net.shape(x)[2], "sigmoid"))


def inverted_residual(
    net: Network[T],
    x: T,
    filters: int,
    kernel: int,
    stride: int,
    expansion: int,
    *,
    activation: Activation,
    squeeze: float = 0.0,
    keep: float = 1.0,
) -> T:
    """Expands by a 1 x 1 convolution, convolves channel by channel, narrows again.

    Args:
      net: makes the layers.
      x: ``(h, w, c)`` per example.
      filters: channels put out.
      kernel: side of the depthwise convolution.
      stride: of the depthwise convolution.
      expansion: channels in the middle per channel of ``x``; with 1 there is no first
        convolution.
      activation: after all convolutions but the last.
      squeeze: units of squeeze and excitation per channel of ``x``, 0 for none.
      keep: probability that an example's branch is kept, if there is a shortcut.

    Returns:
      ``(h', w', filters)``. Source: Sandler et al., arXiv:1801.04381.
    """
    channels = net.shape(x)[2]
    y = x
    if expansion != 1:
        y = net.conv(y, channels * expansion, 1, batch_norm=True, activation=activation)
    y = net.depthwise_conv(y, kernel, stride, batch_norm=True, activation=activation)
    if squeeze:
        y = squeeze_excite(net, y, max(1, int(channels * squeeze)), activation)
    y = net.conv(y, filters, 1, batch_norm=True, activation=None)
    return with_shortcut(net, x, y, keep) if stride == 1 and filters == channels else y


def with_shortcut(net: Network[T], x: T, branch: T, keep: float) -> T:
    """The sum of a block's input and its branch, which some examples do without."""
    return net.add(x, net.drop_path(branch, keep))


def round_channels(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of ``divisor``, but not less than nine tenths of ``channels``."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor
