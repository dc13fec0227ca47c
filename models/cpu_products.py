"""Convolutions and dense layers on a CPU in training, in the forms that are fastest.

TensorFlow's gradients of convolutions are slower than its convolutions and matrix products on the
same numbers. `FORMS` says for each kind of kernels which form computes a gradient fastest. The
choice depends on shape, dtype and instruction set alone, never on a measurement in the run, so that
two runs on like machines compute alike. The sums are the same in every form, in another order.

Forms of the gradient of the images, with stride 1:

* turned: the convolution of the upstream gradient with the kernel rotated by 180 degrees, whose
  input and output channels are exchanged. SAME padding with odd sides stays SAME; VALID padding
  becomes k - 1 zeros on each side.

Forms of the gradient of the kernel, with stride 1:

* exchanged: a convolution of the images with the upstream gradient as its kernel. The channels of
  the images are its batch, and the batch is its input channels.
* product: for 1 x 1 kernels, the product of the transposed pixels with the upstream pixels.
* patches: a product with the image's patches written out.

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

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

import tensorflow as tf

Gradients = Callable[[Any], tuple[Any, Any]]

_STEP = [1, 1, 1, 1]


class Convolution(NamedTuple):
    """The numbers on which the choice of forms depends; the stride is 1.

    Attributes:
      size: height and width of the kernel.
      image: height and width of the images.
      channels: channels of the images.
      filters: channels of the result.
      padding: "SAME" or "VALID".
      bits: of a number, 16 or 32.
    """

    size: tuple[int, int]
    image: tuple[int, int]
    channels: int
    filters: int
    padding: str
    bits: int

    @property
    def is_pointwise(self) -> bool:
        """Whether the kernel is 1 x 1."""
        return self.size == (1, 1)

    @property
    def is_centred(self) -> bool:
        """Whether the result has the size of the images, with as many zeros on opposite sides."""
        return self.padding == "SAME" and self.size[0] % 2 == self.size[1] % 2 == 1


class Forms(NamedTuple):
    """Forms of the result and the gradients of a convolution of stride 1.

    Attributes:
      output: "product" computes a 1 x 1 convolution, and both its gradients, as matrix products.
    """

    output: Literal["library", "product"] = "library"
    to_images: Literal["library", "turned"] = "library"
    to_kernel: Literal["library", "exchanged", "product", "patches"] = "library"


LIBRARY = Forms()


def _eigen_avx2(shape: Convolution) -> Forms:
    """Measured on 2 cores of an AMD EPYC: CPU time of TensorFlow's gradient over the form's.

    float32 (docs/evidence.md has the table): turned 0.9 to 3.9, and 0.5 to 0.7 for images of 3
    channels, whose gradient no network needs; exchanged 1.0 to 2.5 from 24 channels on, 0.8 to 1.0
    for 16 channels, 0.9 to 1.0 for kernels of one column, 0.9 to 1.1 for images of 800,000 numbers
    and more (with them a step of VGG-16, batch 4, took 1.06 times as long); product 1.0 to 1.6.
    bfloat16: turned 4 to 25, exchanged 9 to 19, with a tenth of the rounding error.
    """
    if not (shape.is_centred or shape.padding == "VALID"):
        return LIBRARY
    if shape.is_pointwise:
        return Forms(to_images="turned", to_kernel="product")
    small = shape.channels < 24 and shape.channels * max(shape.image) > 128
    # The transposed copies of large images cost what the form saves.
    large = math.prod(shape.image) * max(shape.channels, shape.filters) >= 800_000
    exchanged = shape.bits == 16 or not (small or large or shape.size[1] == 1)
    return Forms(to_images="turned", to_kernel="exchanged" if exchanged else "library")


def _onednn_avx2(shape: Convolution) -> Forms:
    """Measured as `_eigen_avx2`, in float32: products 1.2 to 1.6, and 0.8 to 1.0 below 32 filters.

    Turned convolutions take 0.85 to 1.05 of the gradient's time. Exchanged ones are up to 1.2 times
    as fast, and their rounding errors up to 40 times as large.
    """
    gains = shape.is_pointwise and shape.filters >= 32 and shape.bits == 32
    return Forms(to_kernel="product" if gains else "library")


def _onednn_avx512(shape: Convolution) -> Forms:
    """Measured on ResNet-50, batch 8, 2 cores, whole steps in alternation.

    1 x 1 as products: 2-3 % of a bfloat16 step; in 16 bits the output too, which saves reordering
    the kernel. Patches of 3 x 3 in 16 bits: another 1 % at 7 x 7, nothing from 14 x 14 on.
    """
    narrow = shape.bits == 16
    if shape.is_pointwise:
        return Forms("product" if narrow else "library", to_kernel="product")
    patched = narrow and shape.size == (3, 3) and shape.padding == "SAME" and max(shape.image) <= 7
    return Forms(to_kernel="patches" if patched else "library")


FORMS: Mapping[str, Callable[[Convolution], Forms]] = {
    "eigen-avx2": _eigen_avx2,
    "onednn-avx2": _onednn_avx2,
    "onednn-avx512": _onednn_avx512,
}
"""Forms by the name that `cnnbench.machine.cpu.kernels` has for the kernels they are built on."""


class Products:
    """Convolutions in NHWC and dense layers, with the forms for one kind of kernels.

    Args:
      kernels: key of `FORMS`, or "library" for TensorFlow's own gradients.
    """

    def __init__(self, kernels: str = "library") -> None:
        self._forms = None if kernels == "library" else FORMS[kernels]

    def conv(self, images: Any, kernel: Any, strides: list[int], padding: str) -> Any:
        """A convolution; of the images' shape only n may be unknown.

        Args:
          images: ``[n, h, w, c]``.
          kernel: ``[kernel h, kernel w, c, filters]`` of the same dtype.
          strides: four numbers, by dimension of the images.
          padding: "SAME" or "VALID".
        """
        how: dict[str, Any] = {"strides": strides, "padding": padding}
        shape = Convolution(
            *(tuple(kernel.shape[:2]), tuple(images.shape[1:3]), images.shape[3], kernel.shape[3]),
            *(padding, 8 * images.dtype.size),
        )
        forms = self._forms(shape) if self._forms and strides == _STEP else LIBRARY
        if forms.output == "product":
            product = tf.linalg.matmul(_rows(images), tf.reshape(kernel, kernel.shape[2:]))
            return tf.reshape(product, [-1, *images.shape[1:3], kernel.shape[3]])

        def convolution(images: Any, kernel: Any) -> tuple[Any, Gradients]:
            def gradients(upstream: Any) -> tuple[Any, Any]:
                given = images, kernel, upstream
                to_images, to_kernel = _TO_IMAGES[forms.to_images], _TO_KERNEL[forms.to_kernel]
                return to_images(*given, **how), to_kernel(*given, **how)

            return tf.raw_ops.Conv2D(input=images, filter=kernel, **how), _named(gradients)

        return cast(Any, tf.custom_gradient(convolution))(images, kernel)

    def matmul(self, rows: Any, kernel: Any) -> Any:
        """Product of ``[n, in]`` and ``[in, out]``."""
        large = kernel.shape.num_elements() >= _LARGE and kernel.shape[1] > 1
        gains = rows.dtype == tf.float32 and rows.shape[0] in _ROWS and large
        if self._forms is None or not gains:
            return tf.linalg.matmul(rows, kernel)

        def product(rows: Any, kernel: Any) -> tuple[Any, Gradients]:
            def gradients(upstream: Any) -> tuple[Any, Any]:
                to_rows = tf.transpose(tf.linalg.matmul(kernel, upstream, transpose_b=True))
                return to_rows, tf.linalg.matmul(rows, upstream, transpose_a=True)

            return tf.linalg.matmul(rows, kernel), _named(gradients)

        return cast(Any, tf.custom_gradient(product))(rows, kernel)


_ROWS = range(16, 161)
_LARGE = 1 << 18


# Forms of the gradients: functions of images, kernel and upstream gradient.


def _library_to_images(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    shape = images.shape if images.shape.is_fully_defined() else tf.shape(images)
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=shape, filter=kernel, out_backprop=upstream, **how
    )


def _turned(images: Any, kernel: Any, upstream: Any, strides: list[int], padding: str) -> Any:
    height, width = kernel.shape[:2]
    turned = kernel if height == width == 1 else tf.reverse(kernel, [0, 1])
    turned = tf.transpose(turned, [0, 1, 3, 2])
    zeros = (0, 0) if padding == "SAME" else (height - 1, width - 1)
    return _convolved(upstream, turned, padding, zeros)


def _library_to_kernel(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    return tf.raw_ops.Conv2DBackpropFilter(
        input=images, filter_sizes=kernel.shape, out_backprop=upstream, **how
    )


def _exchanged(images: Any, kernel: Any, upstream: Any, strides: list[int], padding: str) -> Any:
    height, width = kernel.shape[:2]
    by_channel = tf.transpose(images, [3, 1, 2, 0])
    by_pixel = tf.transpose(upstream, [1, 2, 0, 3])
    zeros = (height // 2, width // 2) if padding == "SAME" else (0, 0)
    return tf.transpose(_convolved(by_channel, by_pixel, "VALID", zeros), [1, 2, 0, 3])


def _product(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    product = tf.linalg.matmul(_rows(images), _rows(upstream), transpose_a=True)
    return tf.reshape(product, kernel.shape)


def _patches(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    """The product with the 3 x 3 pixels around each pixel, side by side in the channels."""
    height, width = images.shape[1:3]
    padded = tf.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
    windows = [
        padded[:, down : down + height, right : right + width, :]
        for down in range(3)
        for right in range(3)
    ]
    return _product(tf.concat(windows, axis=3), kernel, upstream)


_TO_IMAGES: Mapping[str, Callable[..., Any]] = {"library": _library_to_images, "turned": _turned}
_TO_KERNEL: Mapping[str, Callable[..., Any]] = {
    **{"library": _library_to_kernel, "exchanged": _exchanged},
    **{"product": _product, "patches": _patches},
}


def _convolved(images: Any, kernel: Any, padding: str, zeros: tuple[int, int]) -> Any:
    """A convolution of stride 1, with so many rows and columns of zeros on each side."""
    if any(zeros):
        (down, right), padding = zeros, "EXPLICIT"
        explicit = [0, 0, down, down, right, right, 0, 0]
    else:
        explicit = []
    return tf.raw_ops.Conv2D(
        input=images, filter=kernel, strides=_STEP, padding=padding, explicit_paddings=explicit
    )


def _rows(x: Any) -> Any:
    return tf.reshape(x, [-1, x.shape[3]])


def _named(gradients: Gradients) -> Gradients:
    """Names a gradient's operations after its layer, as TensorFlow does with its own gradients."""
    path = "/".join(filter(None, ["gradient_tape", tf.get_current_name_scope()]))

    def named(upstream: Any) -> tuple[Any, Any]:
        with tf.name_scope(f"{path}/"):
            return gradients(upstream)

    return named
