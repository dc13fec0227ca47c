"""Attention bias within the windows of a Swin transformer (arXiv:2103.14030, section 3.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

FORBIDDEN = -100.0  # for a token of another part of the image


def window_bias(table: Any, window: int, side: int, shift: int) -> Any:
    """A learned number per distance, and `FORBIDDEN` for masked pairs.

    Args:
      table: ``[(2 * window - 1) ** 2, heads]``, a row per distance.
      window, side: tokens along a side of a window and of the image.
      shift: by how many tokens the image was moved up and left, cyclically.

    Returns:
      ``[heads, tokens, tokens]``; with a shift ``[windows, windows, heads, tokens, tokens]``.
    """
    tokens = window**2
    # Along the second axis, where the gradient of a look-up is dense.
    rows = tf.gather(tf.transpose(table), _distances(window).ravel(), axis=1)
    bias = tf.reshape(rows, [-1, tokens, tokens])
    return bias + tf.constant(_mask(side, window, shift), table.dtype) if shift else bias


def _distances(window: int) -> npt.NDArray[np.int64]:
    """``[tokens, tokens]``: row of the table for the distance of two tokens."""
    rows, columns = np.divmod(np.arange(window**2), window)
    down = rows[:, None] - rows + window - 1
    right = columns[:, None] - columns + window - 1
    return np.asarray(down * (2 * window - 1) + right)


def _mask(side: int, window: int, shift: int) -> npt.NDArray[np.float32]:
    """``[windows, windows, 1, tokens, tokens]``: 0 for tokens that were neighbours before."""
    # The last windows hold the image's end and, from its shift on, its beginning.
    part = np.digitize(np.arange(side), [side - window, side - shift])
    parts = part[:, None] * 3 + part
    count = side // window
    windows = parts.reshape(count, window, count, window).transpose(0, 2, 1, 3)
    tokens = windows.reshape(count, count, 1, window**2)
    apart = tokens[..., :, None] != tokens[..., None, :]
    return np.asarray(FORBIDDEN * apart, np.float32)
