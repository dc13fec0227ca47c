"""Convolutions and dense layers on a CPU in training, as the matrix products that are fastest.

Convolutions in NHWC: oneDNN's kernel gradients run well below the rate of its matrix products,
most of all in 16 bits. Measured on ResNet-50, batch 8, 2 cores with AVX-512, whole steps in
alternation:

* 1 x 1: the kernel's gradient as a product; in 16 bits the output and the image's gradient
  too, which saves reordering the kernel: 2-3 % of a bfloat16 step.
* 3 x 3 on small images in 16 bits: the kernel's gradient as a product with the image's
  patches: another 1 % at 7 x 7, nothing gained from 14 x 14 on.

Everything else stays a convolution. The sums are the same, in another order.

Gradients get the sizes of images and kernels as constants. TensorFlow's own gradients read the
shape of the images, which prevents the graph optimizer from fusing the batch norm and the ReLU
that made them: 17 of 33 pairs in ResNet-50, 0 of 9 in ResNet-20.

Dense layers in float32: the gradient of the rows is a product with the transposed kernel. oneDNN's
product of few rows with a large transposed matrix takes 1.5 to 4 times as long as the product that
has the matrix first, as it is, and transposes the rows: measured on 2 cores with AVX-512 for
kernels of 0.4 to 16 million elements. From some 200 rows on both take the same time; below 16 rows,
for small kernels and in 16 bits the plain product is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import tensorflow as tf

_STEP = [1, 1, 1, 1]

# Largest height and width of the images whose patches are worth writing out.
_PATCHES_UP_TO = 7

_ROWS = range(16, 161)
_LARGE = 1 << 18

Gradients = Callable[[Any], tuple[Any, Any]]


def conv(images: Any, kernel: Any, strides: list[int], padding: str) -> Any:
    """A convolution in NHWC; of the images' shape only n may be unknown."""
    pointwise = tuple(kernel.shape[:2]) == (1, 1) and strides == _STEP
    if pointwise and images.dtype.size == 2:
        product = tf.linalg.matmul(_rows(images), tf.reshape(kernel, kernel.shape[2:]))
        return tf.reshape(product, [-1, *images.shape[1:3], kernel.shape[3]])
    small = max(images.shape[1], images.shape[2]) <= _PATCHES_UP_TO and images.dtype.size == 2
    patched = small and tuple(kernel.shape[:2]) == (3, 3) and strides == _STEP and padding == "SAME"
    how: dict[str, Any] = {"strides": strides, "padding": padding}

    def convolution(images: Any, kernel: Any) -> tuple[Any, Gradients]:
        def gradients(upstream: Any) -> tuple[Any, Any]:
            if pointwise or patched:
                windows = _rows(_patches(images) if patched else images)
                to_kernel = tf.linalg.matmul(windows, _rows(upstream), transpose_a=True)
                to_kernel = tf.reshape(to_kernel, kernel.shape)
            else:
                to_kernel = tf.raw_ops.Conv2DBackpropFilter(
                    input=images, filter_sizes=kernel.shape, out_backprop=upstream, **how
                )
            shape = images.shape if images.shape.is_fully_defined() else tf.shape(images)
            to_images = tf.raw_ops.Conv2DBackpropInput(
                input_sizes=shape, filter=kernel, out_backprop=upstream, **how
            )
            return to_images, to_kernel

        return tf.raw_ops.Conv2D(input=images, filter=kernel, **how), _named(gradients)

    return cast(Any, tf.custom_gradient(convolution))(images, kernel)


def _patches(images: Any) -> Any:
    """The 3 x 3 pixels around each pixel, side by side in the channels."""
    height, width = images.shape[1:3]
    padded = tf.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
    windows = [
        padded[:, down : down + height, right : right + width, :]
        for down in range(3)
        for right in range(3)
    ]
    return tf.concat(windows, axis=3)


def _rows(x: Any) -> Any:
    return tf.reshape(x, [-1, x.shape[3]])


def matmul(rows: Any, kernel: Any) -> Any:
    """Product of ``[n, in]`` and ``[in, out]``."""
    large = kernel.shape.num_elements() >= _LARGE and kernel.shape[1] > 1
    if not (rows.dtype == tf.float32 and rows.shape[0] in _ROWS and large):
        return tf.linalg.matmul(rows, kernel)

    def product(rows: Any, kernel: Any) -> tuple[Any, Gradients]:
        def gradients(upstream: Any) -> tuple[Any, Any]:
            to_rows = tf.transpose(tf.linalg.matmul(kernel, upstream, transpose_b=True))
            return to_rows, tf.linalg.matmul(rows, upstream, transpose_a=True)

        return tf.linalg.matmul(rows, kernel), _named(gradients)

    return cast(Any, tf.custom_gradient(product))(rows, kernel)


def _named(gradients: Gradients) -> Gradients:
    """Names a gradient's operations after its layer, as TensorFlow does with its own gradients."""
    path = "/".join(filter(None, ["gradient_tape", tf.get_current_name_scope()]))

    def named(upstream: Any) -> tuple[Any, Any]:
        with tf.name_scope(f"{path}/"):
            return gradients(upstream)

    return named
