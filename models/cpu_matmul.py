"""Products of a dense layer's rows with its kernel, in float32 on a CPU.

The gradient of the rows is a product with the transposed kernel. oneDNN's product of few rows
with a large matrix that it has to transpose takes 1.5 to 4 times as long as the product in
which the matrix stands first, as it is, and the rows are transposed: measured on 2 cores with
AVX-512 for kernels of 0.4 to 16 million elements. From some 200 rows on both take the same
time, below 16 rows and for small kernels the plain product is faster, and so it is in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import tensorflow as tf

_ROWS = range(16, 161)
_LARGE = 1 << 18

Gradients = Callable[[Any], tuple[Any, Any]]


def transposed_rows_pay(rows: Any, kernel: Any) -> bool:
    """Whether `few_rows_matmul` beats a plain product in training.

    Args:
      rows: ``[n, in]``; not where n is not known.
      kernel: ``[in, out]`` of the same dtype.
    """
    large = kernel.shape.num_elements() >= _LARGE and kernel.shape[1] > 1
    return bool(rows.dtype == tf.float32 and rows.shape[0] in _ROWS and large)


def few_rows_matmul(rows: Any, kernel: Any) -> Any:
    """The product of rows and kernel, whose gradient leaves the kernel as it lies in memory.

    Args:
      rows: ``[n, in]``.
      kernel: ``[in, out]`` of the same dtype.

    Returns:
      ``[n, out]``.
    """
    return cast(Any, tf.custom_gradient(_product))(rows, kernel)


def _product(rows: Any, kernel: Any) -> tuple[Any, Gradients]:
    path = "/".join(filter(None, ["gradient_tape", tf.get_current_name_scope()]))

    def gradients(upstream: Any) -> tuple[Any, Any]:
        with tf.name_scope(f"{path}/"):
            to_rows = tf.transpose(tf.linalg.matmul(kernel, upstream, transpose_b=True))
            return to_rows, tf.linalg.matmul(rows, upstream, transpose_a=True)

    return tf.linalg.matmul(rows, kernel), gradients
