"""Computes convolutions and dense layers with the fastest known gradients on a CPU.

TensorFlow's operations for the gradients of convolutions are slower than its convolutions and
matrix products, with which the same gradients can be computed. `FASTEST_ALGORITHMS` selects the
fastest algorithm for each gradient and each CPU kernel library. The choice depends only on shape,
dtype and instruction set, never on a measurement in the run, so two runs on similar machines
compute identically. All algorithms compute the same sums, but in different orders.

Algorithm for the gradient of the images:

* rotated_kernel: a convolution of the upstream gradient with the kernel rotated by 180 degrees,
  in which input and output channels are swapped. With stride s, a pixel of the images is multiplied
  only with every s-th row and column of the kernel. The remainders of the pixel's row and column
  modulo s determine which rows and columns. One convolution computes the pixels of all s x s
  remainders, as channels.

Algorithms for the gradient of the kernel:

* swapped_batch_and_channels: a convolution of the images with the upstream gradient as its kernel.
  The channels of the images are the batch of this convolution, and the batch of the images is its
  input channels. The stride of the forward convolution is the dilation of this convolution.
* patches: with stride 1 and an odd kernel, a matrix product with a tensor that contains the patches
  of the images.

Algorithm for the output and for both gradients of 1 x 1 kernels with stride 1:

* matmul: a matrix product of the pixels and the kernel, of the upstream pixels and the transposed
  kernel, or of the transposed pixels and the upstream pixels.

These algorithms get the sizes of images and kernels as constants. TensorFlow's own gradients read
the shape of the images in the graph. That read prevents the graph optimizer from fusing the batch
norm and the ReLU that computed the images. With TensorFlow's own gradients, the optimizer fuses
only 17 of 33 pairs in ResNet-50, and 0 of 9 in ResNet-20.

Dense layers in float32: the gradient of the rows is the matrix product of the upstream gradient and
the transposed kernel. With few rows and a large kernel, oneDNN takes 1.5 to 4 times as long for
this product as for its transpose, in which the kernel comes first and is not transposed. This was
measured on 2 cores with AVX-512 for kernels of 0.4 to 16 million elements. From about 200 rows,
both products take the same time. Below 16 rows, for small kernels and in 16 bits, the plain product
is faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import tensorflow as tf

Gradients = Callable[[Any], tuple[Any, Any]]

_STRIDE_1 = [1, 1, 1, 1]


class ConvolutionShape(NamedTuple):
    """Sizes, dtype and stride of a convolution, which determine its fastest gradients.

    Attributes:
      size: height and width of the kernel.
      image: height and width of the images.
      channels: channels of the images.
      filters: channels of the result.
      padding: "SAME" or "VALID".
      bits: bits per number, 16 or 32.
      stride: vertical and horizontal stride, in pixels.
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
        """Whether the convolution has a 1 x 1 kernel and stride 1."""
        return self.size == self.stride == (1, 1)

    @property
    def is_centred_same(self) -> bool:
        """Whether stride is 1 and SAME padding adds equally many zeros at opposite image edges."""
        odd = self.size[0] % 2 == self.size[1] % 2 == 1
        return self.padding == "SAME" and odd and self.stride == (1, 1)


def is_doubtful(
    images: Any, kernel: Any, strides: Sequence[int], padding: str, layout: str = "NHWC"
) -> bool:
    """Whether oneDNN's results of a convolution may contain memory that was never written.

    TensorFlow 2.21 computes wrong gradients of the kernel in bfloat16, with errors of up to 1e37 or
    NaN, if the result is one pixel wide, and the convolution has a horizontal stride greater than 1
    and a kernel wider than one pixel (docs/troubleshooting.md). With AMX, the result itself may be
    wrong, too.

    Args:
      images, kernel: tensors of 16 or 32 bits. False if a height or width is unknown.
      strides: four numbers, one for each dimension of the images.
      padding: "SAME" or "VALID".
      layout: memory layout of the images, "NHWC" or "NCHW".
    """
    shape = _shape_of(images, kernel, strides, padding, layout)
    width, stride = shape.size[1], shape.stride[1]
    if shape.bits != 16 or None in (*shape.image, *shape.size) or width == 1 or stride == 1:
        return False
    return _output_and_zeros(shape.image[1], width, stride, padding)[0] == 1


def convolve_without_onednn(
    operation: Any, images: Any, kernel: Any, strides: Sequence[int], padding: str
) -> Any:
    """Computes a doubtful convolution as matrix products or, if the operation is depthwise or has
    groups of channels, in float32.

    Args:
      operation: ``tf.raw_ops.Conv2D`` or ``tf.raw_ops.DepthwiseConv2dNative``.
      images: ``[n, h, w, c]``.
      kernel, strides, padding: see `is_doubtful`.
    """
    how: dict[str, Any] = {"strides": strides, "padding": padding}
    if operation is tf.raw_ops.Conv2D and kernel.shape[2] == images.shape[3]:
        return _conv_by_im2col(images, kernel, **how)
    wide = [tf.cast(tensor, tf.float32) for tensor in (images, kernel)]
    return tf.cast(operation(input=wide[0], filter=wide[1], **how), images.dtype)


_CONVOLUTIONS = frozenset({"Conv2D", "DepthwiseConv2dNative"})
_TOWER = re.compile(r"^.*?(?:tower|evaluation)_\d+/")


def doubtful_layers(graph: Any) -> tuple[str, ...]:
    """Names the layers in the graph of a step that oneDNN may compute wrongly.

    They are all convolutions that `is_doubtful` describes, including those that a plug-in creates
    itself. A name is the name scope of the convolution within its tower.
    """
    layers: dict[str, None] = {}
    for operation in graph.get_operations():
        if operation.type not in _CONVOLUTIONS or None in (x.shape.rank for x in operation.inputs):
            continue
        (images, kernel), strides = operation.inputs, operation.get_attr("strides")
        padding, layout = (operation.get_attr(name).decode() for name in ("padding", "data_format"))
        if is_doubtful(images, kernel, strides, padding, layout):
            name = _TOWER.sub("", operation.name)
            layers[name.rpartition("/")[0] or name] = None
    return tuple(layers)


class ConvolutionAlgorithms(NamedTuple):
    """The algorithms that compute a convolution and its two gradients.

    "library" is TensorFlow's own operation. The module's docstring explains the other algorithms.
    """

    output: Literal["library", "matmul"] = "library"
    image_gradient: Literal["library", "rotated_kernel", "matmul"] = "library"
    kernel_gradient: Literal["library", "swapped_batch_and_channels", "matmul", "patches"] = (
        "library"
    )


TENSORFLOW_ALGORITHMS = ConvolutionAlgorithms()


def _for_eigen_avx2(shape: ConvolutionShape) -> ConvolutionAlgorithms:
    """Selects the fastest gradient algorithms for convolutions that run with Eigen on AVX2.

    The algorithms were measured on 2 cores of an AMD EPYC. Each speedup is the CPU time of
    TensorFlow's gradient divided by the CPU time of the algorithm.

    In float32 (docs/evidence.md has the table), rotated_kernel has speedups of 0.9 to 3.9. For
    images with 3 channels, it has 0.5 to 0.7, but no network needs this gradient.
    swapped_batch_and_channels has 1.0 to 2.5 from 24 channels, 0.8 to 1.0 for 16 channels, 0.9 to
    1.0 for kernels with one column, and 0.9 to 1.1 for images of at least 800,000 numbers. (With
    this algorithm for such images, a step of VGG-16 with batch size 4 took 1.06 times as long.)
    matmul has 1.0 to 1.6.

    In bfloat16, rotated_kernel has speedups of 4 to 25 and swapped_batch_and_channels of 9 to 19,
    with a tenth of the rounding error. With stride 2 in bfloat16, their speedups are 8 to 15 and 7
    to 23. With stride 2 in float32, neither is faster than TensorFlow's gradient.
    """
    fastest = ConvolutionAlgorithms(
        image_gradient="rotated_kernel", kernel_gradient="swapped_batch_and_channels"
    )
    if shape.stride != (1, 1):
        gains = shape.bits == 16 and shape.stride[0] == shape.stride[1]
        return fastest if gains else TENSORFLOW_ALGORITHMS
    if not (shape.is_centred_same or shape.padding == "VALID"):
        return TENSORFLOW_ALGORITHMS
    if shape.is_pointwise:
        return fastest._replace(kernel_gradient="matmul")
    small = shape.channels < 24 and shape.channels * max(shape.image) > 128
    # Transposing large images takes as much time as the faster convolution saves, so they are
    # excluded.
    large = math.prod(shape.image) * max(shape.channels, shape.filters) >= 800_000
    swaps = shape.bits == 16 or not (small or large or shape.size[1] == 1)
    return fastest if swaps else fastest._replace(kernel_gradient="library")


def _for_onednn_avx2(shape: ConvolutionShape) -> ConvolutionAlgorithms:
    """Selects the fastest gradient algorithms for convolutions that run with oneDNN on AVX2.

    The algorithms were measured in float32 on the machine that `_for_eigen_avx2` names.

    Each speedup is the CPU time of TensorFlow's gradient divided by that of the algorithm. matmul
    has 1.2 to 1.6, and 0.8 to 1.0 below 32 filters. rotated_kernel has 0.85 to 1.06.
    swapped_batch_and_channels has 0.5 to 1.2, and its rounding errors are up to 40 times as large.
    """
    gains = shape.is_pointwise and shape.filters >= 32 and shape.bits == 32
    return ConvolutionAlgorithms(kernel_gradient="matmul" if gains else "library")


def _for_onednn_avx512(shape: ConvolutionShape) -> ConvolutionAlgorithms:
    """Selects the fastest algorithms for convolutions that run with oneDNN on AVX-512.

    The algorithms were measured on 2 cores of an Intel Xeon with AMX (docs/evidence.md has the
    table). Each speedup is the CPU time of TensorFlow's operation divided by that of the algorithm.

    1 x 1 kernels in float32: for images of up to 17 x 17 pixels, matmul has median speedups of 1.18
    (output), 1.12 (gradient of the images) and 1.22 (gradient of the kernel). For larger images,
    the operation with the wider result is faster: with more filters than channels, the output has
    1.0 to 1.2; with fewer filters, the gradient of the images has 1.0 to 1.1. The gradient of the
    kernel has a median of 0.96 for larger images.

    1 x 1 kernels in 16 bits: matmul has 1.2 to 3.9 for the gradient of the kernel, and 0.8 to 2.1
    for the output and the gradient of the images. If the output is a matrix product, too, the
    kernel need not be reordered.

    Larger kernels: in 16 bits, patches has 1.0 to 3.1 for images of up to 8 x 8 pixels with at
    least 128 channels and filters, and 0.1 to 1.2 otherwise. rotated_kernel has 0.5 to 1.0.
    swapped_batch_and_channels has 0.1 to 1.8. Where it is above 1, patches is mostly faster.
    """
    narrow, largest = shape.bits == 16, max(shape.image)
    if shape.is_pointwise:
        small = narrow or largest <= 17
        return ConvolutionAlgorithms(
            output="matmul" if small or shape.filters > shape.channels else "library",
            image_gradient="matmul" if small or shape.filters < shape.channels else "library",
            kernel_gradient="matmul" if small else "library",
        )
    wide = min(shape.channels, shape.filters) >= 128
    patched = narrow and wide and largest <= 8 and shape.is_centred_same
    return ConvolutionAlgorithms(kernel_gradient="patches" if patched else "library")


FASTEST_ALGORITHMS: Mapping[str, Callable[[ConvolutionShape], ConvolutionAlgorithms]] = {
    "eigen-avx2": _for_eigen_avx2,
    "onednn-avx2": _for_onednn_avx2,
    "onednn-avx512": _for_onednn_avx512,
}
"""Functions that select the fastest algorithms for a convolution, by kernel library.

The keys are the kernel names of `cnnbench.machine.cpu`.
"""


class CpuOperations:
    """Computes layers on a CPU, with the fastest gradients for one CPU kernel library.

    Convolutions have NHWC layout.

    Args:
      kernels: key of `FASTEST_ALGORITHMS`, or "library" for TensorFlow's own gradients.
    """

    def __init__(self, kernels: str = "library") -> None:
        self._select_algorithms = None if kernels == "library" else FASTEST_ALGORITHMS[kernels]
        # `subsample` has a gradient that inserts zeros. This gradient was measured only with
        # Eigen's kernels, so it is used only with them.
        self._inserts_zeros = kernels == "eigen-avx2"

    def conv(self, images: Any, kernel: Any, strides: list[int], padding: str) -> Any:
        """Convolves images, with the fastest gradients. Only their batch size may be unknown.

        Args:
          images: ``[n, h, w, c]``.
          kernel: ``[kernel h, kernel w, c, filters]`` of the same dtype.
          strides: four numbers, one for each dimension of the images.
          padding: "SAME" or "VALID".
        """
        how: dict[str, Any] = {"strides": strides, "padding": padding}
        shape = _shape_of(images, kernel, strides, padding)
        algorithms = (
            self._select_algorithms(shape) if self._select_algorithms else TENSORFLOW_ALGORITHMS
        )

        def convolution(images: Any, kernel: Any) -> tuple[Any, Gradients]:
            def gradients(upstream: Any) -> tuple[Any, Any]:
                arguments = images, kernel, upstream
                image_gradient = _IMAGE_GRADIENTS[algorithms.image_gradient]
                kernel_gradient = _KERNEL_GRADIENTS[algorithms.kernel_gradient]
                return image_gradient(*arguments, **how), kernel_gradient(*arguments, **how)

            output = _OUTPUTS[algorithms.output](images, kernel, **how)
            return output, _name_after_layer(gradients)

        return cast(Any, tf.custom_gradient(convolution))(images, kernel)

    def subsample(self, images: Any, stride: tuple[int, int]) -> Any:
        """Selects every stride-th row and column of images ``[n, h, w, c]``, from the first on.

        The gradient of TensorFlow's pooling compares the images with the result. Inserting zeros
        between the pixels of the upstream gradient gives the same numbers 2 to 5 times as fast.
        """

        def pool(images: Any) -> tuple[Any, Callable[[Any], Any]]:
            def gradient(upstream: Any) -> Any:
                (down, right), (_, height, width, channels) = stride, images.shape
                rows, columns = -(-height // down), -(-width // right)
                pixels = tf.reshape(upstream, [-1, rows, 1, columns, 1, channels])
                around = [(0, 0), (0, 0), (0, down - 1), (0, 0), (0, right - 1), (0, 0)]
                whole = [-1, rows * down, columns * right, channels]
                return tf.reshape(tf.pad(pixels, around), whole)[:, :height, :width]

            return tf.nn.max_pool2d(images, 1, stride, "VALID"), _name_after_layer(gradient)

        if not self._inserts_zeros:
            return tf.nn.max_pool2d(images, 1, stride, "VALID")
        return cast(Any, tf.custom_gradient(pool))(images)

    def matmul(self, rows: Any, kernel: Any) -> Any:
        """Multiplies matrices ``[n, in]`` and ``[in, out]``, with the fastest gradients."""
        large = kernel.shape.num_elements() >= _MIN_LARGE_KERNEL and kernel.shape[1] > 1
        gains = rows.dtype == tf.float32 and rows.shape[0] in _KERNEL_FIRST_ROWS and large
        if self._select_algorithms is None or not gains:
            return tf.linalg.matmul(rows, kernel)

        def product(rows: Any, kernel: Any) -> tuple[Any, Gradients]:
            def gradients(upstream: Any) -> tuple[Any, Any]:
                row_gradient = tf.transpose(tf.linalg.matmul(kernel, upstream, transpose_b=True))
                return row_gradient, tf.linalg.matmul(rows, upstream, transpose_a=True)

            return tf.linalg.matmul(rows, kernel), _name_after_layer(gradients)

        return cast(Any, tf.custom_gradient(product))(rows, kernel)


_KERNEL_FIRST_ROWS = range(16, 161)
"""Numbers of rows for which the gradient is faster with the kernel as the first factor."""
_MIN_LARGE_KERNEL = 1 << 18
"""Elements from which a dense layer's kernel is large."""


def _shape_of(
    images: Any, kernel: Any, strides: Sequence[int], padding: str, layout: str = "NHWC"
) -> ConvolutionShape:
    row, channel = layout.index("H"), layout.index("C")
    return ConvolutionShape(
        size=tuple(kernel.shape[:2]),
        image=tuple(images.shape[row : row + 2]),
        channels=images.shape[channel],
        filters=kernel.shape[3],
        padding=padding,
        bits=8 * images.dtype.size,
        stride=(strides[row], strides[row + 1]),
    )


def _conv_by_im2col(images: Any, kernel: Any, **how: Any) -> Any:
    """Convolves narrow images as one matrix product of their patches and the kernel.

    TensorFlow derives the gradients, which are matrix products, too.
    """
    (rows, columns), (height, width) = kernel.shape[:2], images.shape[1:3]
    _, down, right, _ = how["strides"]
    tall, above = _output_and_zeros(height, rows, down, how["padding"])
    wide, left = _output_and_zeros(width, columns, right, how["padding"])
    # If the last rows or columns are not used, the number of zeros behind is negative, and none are
    # added.
    below = (tall - 1) * down + rows - height - above
    behind = (wide - 1) * right + columns - width - left
    zeros = [(0, 0), (above, max(0, below)), (left, max(0, behind)), (0, 0)]
    padded = tf.pad(images, zeros)
    windows = [
        padded[:, y : y + (tall - 1) * down + 1 : down, x : x + (wide - 1) * right + 1 : right]
        for y in range(rows)
        for x in range(columns)
    ]
    patches = tf.concat(windows, axis=3)
    flat = tf.linalg.matmul(_flatten_to_rows(patches), tf.reshape(kernel, [-1, kernel.shape[3]]))
    return tf.reshape(flat, [-1, tall, wide, kernel.shape[3]])


# Algorithms that compute the output. Each is a function of images and kernel.


def _output_by_library(images: Any, kernel: Any, **how: Any) -> Any:
    return tf.raw_ops.Conv2D(input=images, filter=kernel, **how)


def _output_by_matmul(images: Any, kernel: Any, **how: Any) -> Any:
    product = tf.linalg.matmul(_flatten_to_rows(images), _matrix_of_pointwise(kernel))
    return tf.reshape(product, [-1, *images.shape[1:3], kernel.shape[3]])


# Algorithms that compute a gradient. Each is a function of images, kernel and upstream gradient.


def _dx_by_library(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    shape = images.shape if images.shape.is_fully_defined() else tf.shape(images)
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=shape, filter=kernel, out_backprop=upstream, **how
    )


def _dx_by_rotation(
    images: Any, kernel: Any, upstream: Any, strides: list[int], padding: str
) -> Any:
    """Computes the gradient of images by convolving the upstream gradient with a rotated kernel.

    With stride s, row q of the convolution's result contains rows s * q to s * q + s - 1 of the
    padded images' gradient, as channels. Columns are treated in the same way. The convolution
    computes only the q that contain at least one row of the images.
    """
    stride = strides[1]
    zeros, starts = [], []
    for image, side in zip(images.shape[1:3], kernel.shape[:2], strict=True):
        size, before = _output_and_zeros(image, side, stride, padding)
        taps, last = -(-side // stride), (before + image - 1) // stride
        zeros.append((taps - 1 - before // stride, last + 1 - size))
        starts.append(before % stride)
    gradient = _convolve_padded(upstream, _rotate_kernel(kernel, stride), zeros)
    if stride == 1:
        return gradient
    (down, right), (height, width) = starts, images.shape[1:3]
    pixels = tf.nn.depth_to_space(gradient, stride)
    return pixels[:, down : down + height, right : right + width]


def _rotate_kernel(kernel: Any, stride: int) -> Any:
    """Rotates and rearranges a kernel for `_dx_by_rotation`.

    The shape of the result is ``[ceil(h / stride), ceil(w / stride), filters, stride * stride *
    channels]``.
    """
    height, width, channels, filters = kernel.shape
    if stride == 1:
        rotated = kernel if height == width == 1 else tf.reverse(kernel, [0, 1])
        return tf.transpose(rotated, [0, 1, 3, 2])
    taps = [-(-side // stride) for side in (height, width)]
    missing = [(0, stride * taps[0] - height), (0, stride * taps[1] - width), (0, 0), (0, 0)]
    parts = tf.pad(kernel, missing) if height % stride or width % stride else kernel
    parts = tf.reshape(parts, [taps[0], stride, taps[1], stride, channels, filters])
    parts = tf.transpose(tf.reverse(parts, [0, 2]), [0, 2, 5, 1, 3, 4])
    return tf.reshape(parts, [*taps, filters, stride * stride * channels])


def _dx_by_matmul(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    product = tf.linalg.matmul(
        _flatten_to_rows(upstream), _matrix_of_pointwise(kernel), transpose_b=True
    )
    return tf.reshape(product, [-1, *images.shape[1:]])


def _dw_by_library(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    return tf.raw_ops.Conv2DBackpropFilter(
        input=images, filter_sizes=kernel.shape, out_backprop=upstream, **how
    )


def _dw_by_swap(images: Any, kernel: Any, upstream: Any, strides: list[int], padding: str) -> Any:
    height, width = kernel.shape[:2]
    zeros = []
    for image, side, stride in zip(images.shape[1:3], (height, width), strides[1:3], strict=True):
        size, before = _output_and_zeros(image, side, stride, padding)
        zeros.append((before, max(0, (size - 1) * stride + side - before - image)))
    by_channel = tf.transpose(images, [3, 1, 2, 0])
    by_pixel = tf.transpose(upstream, [1, 2, 0, 3])
    gradient = tf.transpose(_convolve_padded(by_channel, by_pixel, zeros, strides), [1, 2, 0, 3])
    # If the windows do not reach the last rows or columns of the image, the result is larger than
    # the kernel and is cut.
    return gradient if strides == _STRIDE_1 else gradient[:height, :width]


def _dw_by_matmul(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    product = tf.linalg.matmul(
        _flatten_to_rows(images), _flatten_to_rows(upstream), transpose_a=True
    )
    return tf.reshape(product, kernel.shape)


def _dw_by_patches(images: Any, kernel: Any, upstream: Any, **how: Any) -> Any:
    """Computes the gradient of an odd kernel as one matrix product with every pixel's patch."""
    (rows, columns), (height, width) = kernel.shape[:2], images.shape[1:3]
    zeros = [(0, 0), (rows // 2, rows // 2), (columns // 2, columns // 2), (0, 0)]
    padded = tf.pad(images, zeros)
    windows = [
        padded[:, down : down + height, right : right + width, :]
        for down in range(rows)
        for right in range(columns)
    ]
    return _dw_by_matmul(tf.concat(windows, axis=3), kernel, upstream)


_OUTPUTS: Mapping[str, Callable[..., Any]] = {
    "library": _output_by_library,
    "matmul": _output_by_matmul,
}
_IMAGE_GRADIENTS: Mapping[str, Callable[..., Any]] = {
    "library": _dx_by_library,
    "rotated_kernel": _dx_by_rotation,
    "matmul": _dx_by_matmul,
}
_KERNEL_GRADIENTS: Mapping[str, Callable[..., Any]] = {
    "library": _dw_by_library,
    "swapped_batch_and_channels": _dw_by_swap,
    "matmul": _dw_by_matmul,
    "patches": _dw_by_patches,
}


def _output_and_zeros(image: int, side: int, stride: int, padding: str) -> tuple[int, int]:
    """Returns the size of a convolution's result, and the padding at its start, in one dimension.

    Args:
      image, side: size of the images and of the kernel in this dimension.
    """
    if padding == "VALID":
        return (image - side) // stride + 1, 0
    size = -(-image // stride)
    return size, max(0, (size - 1) * stride + side - image) // 2


def _convolve_padded(
    images: Any, kernel: Any, zeros: list[tuple[int, int]], dilations: list[int] = _STRIDE_1
) -> Any:
    """Pads images with zeros, and convolves them with stride 1.

    Args:
      zeros: numbers of rows above and below, then of columns left and right of the images.
    """
    (above, below), (left, right) = zeros
    explicit = [0, 0, above, below, left, right, 0, 0]
    how = {"padding": "EXPLICIT", "explicit_paddings": explicit} if any(explicit) else {}
    return tf.raw_ops.Conv2D(
        **{"input": images, "filter": kernel, "padding": "VALID", **how},
        strides=_STRIDE_1,
        dilations=dilations,
    )


def _flatten_to_rows(x: Any) -> Any:
    return tf.reshape(x, [-1, x.shape[3]])


def _matrix_of_pointwise(kernel: Any) -> Any:
    """Reshapes a kernel ``[1, 1, c, filters]`` to ``[c, filters]``."""
    return tf.reshape(kernel, kernel.shape[2:])


def _name_after_layer(gradients: Gradients) -> Gradients:
    """Returns a gradient function whose operations are in the name scope of the current layer.

    TensorFlow gives the operations of its own gradients such names.
    """
    path = "/".join(filter(None, ["gradient_tape", tf.get_current_name_scope()]))

    def named_gradients(upstream: Any) -> tuple[Any, Any]:
        with tf.name_scope(f"{path}/"):
            return gradients(upstream)

    return named_gradients
