"""The second classifier half-way up a network, which helps its first layers to train.

Source: Szegedy et al., arXiv:1512.00567, section 4, in the form of TensorFlow's slim.
"""

from __future__ import annotations

from cnnbench.models.network import Network, T

WEIGHT = 0.4  # of its loss


def aux_head(
    net: Network[T], x: T, *, conv_stddev: float | None = None, stddev: float | None = None
) -> None:
    """Adds the head, in training only.

    Args:
      net: makes the layers.
      x: ``(h, w, c)`` per example, h and w at least 5.
      conv_stddev: of the initial kernel that takes in the whole image.
      stddev: of the initial weights of the logits.
    """
    if not net.training:
        return
    with net.scope("aux"):
        y = net.conv(net.avg_pool(x, 5, 3), 128, 1, batch_norm=True)
        height, width, _ = net.shape(y)
        y = net.conv(y, 768, (height, width), padding="VALID", batch_norm=True, stddev=conv_stddev)
        net.auxiliary(net.logits(net.flatten(y), stddev=stddev), WEIGHT)
