"""The fastest ways to compute convolutions and dense layers in training on a CPU.

TensorFlow's operations for the gradients of convolutions are slower than its convolutions and
matrix products, with which the same gradients can be computed. `FORMS` selects the fastest form of
each gradient for each CPU kernel library. The choice depends only on shape, dtype and instruction
set, never on a measurement in the run, so two runs on similar machines compute identically. All
forms compute the same sums, but in different orders.

Forms of the gradient of the images:

* turned: a convolution of the upstream gradient with the kernel rotated by 180 degrees, whose
  input and output channels are exchanged. With stride s, a pixel of the images meets only every
  s-th row and column of the kernel. Which ones depends on the remainders of its row and column
  modulo s. One convolution computes the pixels of all s x s remainders, as channels.

Forms of the gradient of the kernel:

* exchanged: a convolution of the images with the upstream gradient as its kernel. The channels of
  the images are its batch, and the batch is its input channels. Its dilation is the stride.
* product: for 1 x 1 kernels with stride 1, the product of the transposed pixels with the upstream
  pixels.
* patches: with stride 1, a product with the image's patches written out.

Gradients get the sizes of images and kernels as constants. TensorFlow's own gradients read the
shape of the images in the graph. This prevents the graph optimizer from fusing the batch norm and
the ReLU that computed the images. It then fuses only 17 of 33 pairs in ResNet-50, and 0 of 9 in
ResNet-20.

Dense layers in float32: the gradient of the rows is the product of the upstream gradient and the
transposed kernel. With few rows and a large kernel, oneDNN takes 1.5 to 4 times as long for this
product as for the transposed product, in which the kernel comes first and is not transposed. This
was measured on 2 cores with AVX-512 for kernels of 0.4 to 16 million elements. From about 200 rows,
both products take the same time. Below 16 rows, for small kernels and in 16 bits, the plain product
is faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

import tensorflow as tf

Gradients = Callable[[Any], tuple[Any, Any]]

_STEP = [1, 1, 1, 1]


class ConvolutionShape(NamedTuple):
    """Properties of a convolution that determine the fastest way to compute its gradients.

    Attributes:
      size: height and width of the kernel.
      image: height and width of the images.
      channels: channels of the images.
      filters: channels of the result.
      padding: "SAME" or "VALID".
      bits: bits per number, 16 or 32.
      stride: rows and columns.
    """

    size: tuple[int, int]
    image: tuple[int, int]
    channels: int
    filters: int
    padding: str
    bits: int
    stride: tuple[int, int]

    @property
    def is_pointwise(self) -> bool:
        """Whether the kernel is 1 x 1, with stride 1."""
        return self.size == self.stride == (1, 1)

    @property
    def is_centred(self) -> bool:
        """Whether padding keeps the image size, with the same number of zeros on opposite sides."""
        odd = self.size[0] % 2 == self.size[1] % 2 == 1
        return self.padding == "SAME" and odd and self.stride == (1, 1)


class Forms(NamedTuple):
    """Ways (forms) in which a convolution and its two gradients are computed.

    Attributes:
      output: "product" computes a 1 x 1 convolution, and both its gradients, as matrix products.
    """

    output: Literal["library", "product"] = "library"
    to_images: Literal["library", "turned"] = "library"
    to_kernel: Literal["library", "exchanged", "product", "patches"] = "library"


LIBRARY = Forms()


def _fastest_forms_eigen_avx2(shape: ConvolutionShape) -> Forms:
    """Selects how to compute a convolution's gradients with Eigen and AVX2 (from measurements).

    The forms were measured on 2 cores of an AMD EPYC. Each number is a speedup: the CPU time of
    TensorFlow's gradient divided by that of the form.

    In float32 (docs/evidence.md has the table), turned reaches 0.9 to 3.9; it reaches 0.5 to 0.7
    for images with 3 channels, whose gradient no network needs. Exchanged reaches 1.0 to 2.5 from
    24 channels, 0.8 to 1.0 for 16 channels, 0.9 to 1.0 for kernels with one column, and 0.9 to 1.1
    for images of at least 800,000 numbers. (With exchanged for such images, a step of VGG-16 with
    batch size 4 took 1.06 times as long.) Product reaches 1.0 to 1.6.

    In bfloat16, turned reaches 4 to 25 and exchanged 9 to 19, with a tenth of the rounding error.
    With stride 2, turned reaches 8 to 15 and exchanged 7 to 23 there. In float32, neither gains.
    """
    if shape.stride != (1, 1):
        gains = shape.bits == 16 and shape.stride[0] == shape.stride[1]
        return Forms(to_images="turned", to_kernel="exchanged") if gains else LIBRARY
    if not (shape.is_centred or shape.padding == "VALID"):
        return LIBRARY
    if shape.is_pointwise:
        return Forms(to_images="turned", to_kernel="product")
    small = shape.channels < 24 and shape.channels * max(shape.image) > 128
    # For large images, transposing takes as much time as the faster convolution saves.
    large = math.prod(shape.image) * max(shape.channels, shape.filters) >= 800_000
    exchanged = shape.bits == 16 or not (small or large or shape.size[1] == 1)
    return Forms(to_images="turned", to_kernel="exchanged" if exchanged else "library")


def _fastest_forms_onednn_avx2(shape: ConvolutionShape) -> Forms:
    """Selects how to compute a convolution's gradients with oneDNN and AVX2 (from measurements).

    The forms were measured in float32, as in `_fastest_forms_eigen_avx2`.

    The speedup of products is 1.2 to 1.6, and 0.8 to 1.0 below 32 filters. Turned convolutions take
    0.85 to 1.05 times as long as TensorFlow's gradient. Exchanged convolutions are up to 1.2 times
    as fast, but their rounding errors are up to 40 times as large.
    """
    gains = shape.is_pointwise and shape.filters >= 32 and shape.bits == 32
    return Forms(to_kernel="product" if gains else "library")


def _fastest_forms_onednn_avx512(shape: ConvolutionShape) -> Forms:
    """Selects how to compute a convolution and its gradients with oneDNN and AVX-512.

    Whole steps of ResNet-50 were measured, alternating, with batch size 8 on 2 cores. In a bfloat16
    step, products for 1 x 1 kernels save 2-3 % of the time. In 16 bits, the output is a product
    too, so the kernel need not be reordered. In 16 bits, patches for 3 x 3 kernels save another 1 %
    for images of 7 x 7, and nothing from 14 x 14.
    """
    narrow = shape.bits == 16
    if shape.is_pointwise:
        return Forms("product" if narrow else "library", to_kernel="product")
    patched = narrow and shape.size == (3, 3) and shape.is_centred and max(shape.image) <= 7
    return Forms(to_kernel="patches" if patched else "library")


FORMS: Mapping[str, Callable[[ConvolutionShape], Forms]] = {
    "eigen-avx2": _fastest_forms_eigen_avx2,
    "onednn-avx2": _fastest_forms_onednn_avx2,
    "onednn-avx512": _fastest_forms_onednn_avx512,
}
"""Functions that select forms, by the kernel names of `cnnbench.machine.cpu`."""


class CpuProducts:
    """Computes convolutions in NHWC and dense layers in the fastest forms for one kernel library.

    Args:
      kernels: key of `FORMS`, or "library" for TensorFlow's own gradients.
    """

    def __init__(self, kernels: str = "library") -> None:
        self._forms = None if kernels == "library" else FORMS[kernels]
        self._inserts_zeros = kernels == "eigen-avx2"  # Not measured with other libraries.

    def conv(self, images: Any, kernel: Any, strides: list[int], padding: str) -> Any:
        """Convolves images, with the fastest gradients. Only the batch size may be unknown.

        Args:
          images: ``[n, h, w, c]``.
          kernel: ``[kernel h, kernel w, c, filters]`` of the same dtype.
          strides: four numbers, by dimension of the images.
          padding: "SAME" or "VALID".
        """
        how: dict[str, Any] = {"strides": strides, "padding": padding}
        shape = ConvolutionShape(
            *(tuple(kernel.shape[:2]), tuple(images.shape[1:3]), images.shape[3], kernel.shape[3]),
            *(padding, 8 * images.dtype.size, (strides[1], strides[2])),
        )
        forms = self._forms(shape) if self._forms else LIBRARY
        if forms.output == "product":
            product = tf.linalg.matmul(
                _flatten_to_rows(images), tf.reshape(kernel, kernel.shape[2:])
            )
            return tf.reshape(product, [-1, *images.shape[1:3], kernel.shape[3]])

        def convolution(images: Any, kernel: Any) -> tuple[Any, Gradients]:
            def gradients(upstream: Any) -> tuple[Any, Any]:
                arguments = images, kernel, upstream
                to_images, to_kernel = _TO_IMAGES[forms.to_images], _TO_KERNEL[forms.to_kernel]
                return to_images(*arguments, **how), to_kernel(*arguments, **how)

            return tf.raw_ops.Conv2D(
                input=images, filter=kernel, **how
            ), _name_gradients_after_layer(gradients)

        return cast(Any, tf.custom_gradient(convolution))(images, kernel)

    def subsample(self, images: Any, stride: tuple[int, int]) -> Any:
        """Selects every stride-th row and column of images ``[n, h, w, c]``, from the first on.

        The gradient of TensorFlow's pooling compares the images with the result. Zeros between the
        pixels of the upstream gradient are the same numbers, 2 to 5 times as fast.
        """

        def pool(images: Any) -> tuple[Any, Callable[[Any], Any]]:
            def gradient(upstream: Any) -> Any:
                (down, right), (_, height, width, channels) = stride, images.shape
                rows, columns = -(-height // down), -(-width // right)
                pixels = tf.reshape(upstream, [-1, rows, 1, columns, 1, channels])
                around = [(0, 0), (0, 0), (0, down - 1), (0, 0), (0, right - 1), (0, 0)]
                whole = [-1, rows * down, columns * right, channels]
                return tf.reshape(tf.pad(pixels, around), whole)[:, :height, :width]

            return tf.nn.max_pool2d(images, 1, stride, "VALID"), _name_gradients_after_layer(
                gradient
            )

        if not self._inserts_zeros:
            return tf.nn.max_pool2d(images, 1, stride, "VALID")
        return cast(Any, tf.custom_gradient(pool))(images)

    def matmul(self, rows: Any, kernel: Any) -> Any:
        """Matrix product of ``[n, in]`` and ``[in, out]``, with the fastest gradients."""
        large = kernel.shape.num_elements() >= _LARGE and kernel.shape[1] > 1
        gains = rows.dtype == tf.float32 and rows.shape[0] in _ROWS and large
        if self._forms is None or not gains:
            return tf.linalg.matmul(rows, kernel)

        def product(rows: Any, kernel: Any) -> tuple[Any, Gradients]:
            def gradients(upstream: Any) -> tuple[Any, Any]:
                to_rows = tf.transpose(tf.linalg.matmul(kernel, upstream, transpose_b=True))
                return to_rows, tf.linalg.matmul(rows, upstream, transpose_a=True)

            return tf.linalg.matmul(rows, kernel), _name_gradients_after_layer(gradients)

        return cast(Any, tf.custom_gradient(product))(rows, kernel)


_ROWS = range(16, 161)
_LARGE = 1 << 18


# Functions that compute gradients from images, kernel and upstream gradient.


def _image_gradient_by_library(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    shape = images.shape if images.shape.is_fully_defined() else tf.shape(images)
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=shape, filter=kernel, out_backprop=upstream, **how
    )


def _image_gradient_by_conv(
    images: Any, kernel: Any, upstream: Any, strides: list[int], padding: str
) -> Any:
    """Gradient of the images: a convolution of the upstream gradient with the rotated kernel.

    With stride s, it computes only rows and columns from the first to the last of the images. A row
    of the padded images is s * q + r. Row q of the result has the rows of all r as channels.
    """
    stride = strides[1]
    zeros, starts = [], []
    for image, side in zip(images.shape[1:3], kernel.shape[:2], strict=True):
        size, before = _along(image, side, stride, padding)
        taps, last = -(-side // stride), (before + image - 1) // stride
        zeros.append((taps - 1 - before // stride, last + 1 - size))
        starts.append(before % stride)
    gradient = _convolve_padded(upstream, _turned_kernel(kernel, stride), zeros)
    if stride == 1:
        return gradient
    (down, right), (height, width) = starts, images.shape[1:3]
    pixels = tf.nn.depth_to_space(gradient, stride)
    return pixels[:, down : down + height, right : right + width]


def _turned_kernel(kernel: Any, stride: int) -> Any:
    """Rotates and rearranges a kernel, so that its convolution computes the gradient of the images.

    Its shape is ``[ceil(h / stride), ceil(w / stride), filters, stride * stride * channels]``.
    """
    height, width, channels, filters = kernel.shape
    if stride == 1:
        turned = kernel if height == width == 1 else tf.reverse(kernel, [0, 1])
        return tf.transpose(turned, [0, 1, 3, 2])
    taps = [-(-side // stride) for side in (height, width)]
    missing = [(0, stride * taps[0] - height), (0, stride * taps[1] - width), (0, 0), (0, 0)]
    parts = tf.pad(kernel, missing) if height % stride or width % stride else kernel
    parts = tf.reshape(parts, [taps[0], stride, taps[1], stride, channels, filters])
    parts = tf.transpose(tf.reverse(parts, [0, 2]), [0, 2, 5, 1, 3, 4])
    return tf.reshape(parts, [*taps, filters, stride * stride * channels])


def _kernel_gradient_by_library(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    return tf.raw_ops.Conv2DBackpropFilter(
        input=images, filter_sizes=kernel.shape, out_backprop=upstream, **how
    )


def _kernel_gradient_by_conv(
    images: Any, kernel: Any, upstream: Any, strides: list[int], padding: str
) -> Any:
    height, width = kernel.shape[:2]
    zeros = []
    for image, side, stride in zip(images.shape[1:3], (height, width), strides[1:3], strict=True):
        size, before = _along(image, side, stride, padding)
        zeros.append((before, max(0, (size - 1) * stride + side - before - image)))
    by_channel = tf.transpose(images, [3, 1, 2, 0])
    by_pixel = tf.transpose(upstream, [1, 2, 0, 3])
    gradient = tf.transpose(_convolve_padded(by_channel, by_pixel, zeros, strides), [1, 2, 0, 3])
    # Image rows and columns that no window reaches give additional kernel rows and columns.
    return gradient if strides == _STEP else gradient[:height, :width]


def _kernel_gradient_by_product(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    product = tf.linalg.matmul(
        _flatten_to_rows(images), _flatten_to_rows(upstream), transpose_a=True
    )
    return tf.reshape(product, kernel.shape)


def _kernel_gradient_by_patches(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    """Kernel gradient of a 3 x 3 kernel, as one product with the neighbours of every pixel."""
    height, width = images.shape[1:3]
    padded = tf.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
    windows = [
        padded[:, down : down + height, right : right + width, :]
        for down in range(3)
        for right in range(3)
    ]
    return _kernel_gradient_by_product(tf.concat(windows, axis=3), kernel, upstream)


_TO_IMAGES: Mapping[str, Callable[..., Any]] = {
    "library": _image_gradient_by_library,
    "turned": _image_gradient_by_conv,
}
_TO_KERNEL: Mapping[str, Callable[..., Any]] = {
    **{"library": _kernel_gradient_by_library, "exchanged": _kernel_gradient_by_conv},
    **{"product": _kernel_gradient_by_product, "patches": _kernel_gradient_by_patches},
}


def _along(image: int, side: int, stride: int, padding: str) -> tuple[int, int]:
    """For one dimension: size of a convolution's result, and number of zeros before the images."""
    if padding == "VALID":
        return (image - side) // stride + 1, 0
    size = -(-image // stride)
    return size, max(0, (size - 1) * stride + side - image) // 2


def _convolve_padded(
    images: Any, kernel: Any, zeros: list[tuple[int, int]], dilations: list[int] = _STEP
) -> Any:
    """Adds zeros around images, and convolves them with stride 1.

    Args:
      zeros: rows above and below, then columns left and right of the images.
    """
    (above, below), (left, right) = zeros
    explicit = [0, 0, above, below, left, right, 0, 0]
    how = {"padding": "EXPLICIT", "explicit_paddings": explicit} if any(explicit) else {}
    return tf.raw_ops.Conv2D(
        **{"input": images, "filter": kernel, "padding": "VALID", **how},
        strides=_STEP,
        dilations=dilations,
    )


def _flatten_to_rows(x: Any) -> Any:
    return tf.reshape(x, [-1, x.shape[3]])


def _name_gradients_after_layer(gradients: Gradients) -> Gradients:
    """Gives a gradient's operations the name of its layer, as TensorFlow does for its own
    gradients.
    """
    path = "/".join(filter(None, ["gradient_tape", tf.get_current_name_scope()]))

    def named_gradients(upstream: Any) -> tuple[Any, Any]:
        with tf.name_scope(f"{path}/"):
            return gradients(upstream)

    return named_gradients
