"""Convolutions and dense layers made of matrix products against TensorFlow's own."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from covering import covering_pairs, everyday_values
from networks import forward, model_of
from short_runs import build

from cnnbench.machine.cpu import MEASURED_KERNELS
from cnnbench.models import get_model
from cnnbench.models.cpu_operations import (
    FASTEST_ALGORITHMS,
    ConvolutionAlgorithms,
    ConvolutionShape,
    CpuOperations,
    convolve_without_onednn,
    doubtful_layers,
    is_doubtful,
)


def normal(*shape, seed, dtype=tf.float32):
    values = np.random.default_rng(seed).standard_normal(shape)
    return tf.constant(values.astype(np.float32), dtype)


def conv(images, kernel, kernels="onednn-avx512", stride=(1, 1), padding="SAME"):
    return CpuOperations(kernels).conv(images, kernel, [1, *stride, 1], padding)


ROUNDING = {tf.float32: 1e-6, tf.bfloat16: 5e-3, tf.float16: 1e-3}
"""Largest difference from float64, as a share of the largest value."""


CPUINFO = Path("/proc/cpuinfo")
CPU_FLAGS = CPUINFO.read_text().split() if CPUINFO.exists() else []


def check(function, reference, *given, rounding):
    """Compares results and gradients of a function of two tensors with a reference in float64.

    Where no own algorithm is faster, the function calls TensorFlow's operation, whose gradients in
    float16 have a larger error on some CPUs. So an error may be as large as that of the reference
    in the type of the tensors, up to three times the rounding.
    """
    wide = [tf.cast(tensor, tf.float64) for tensor in given]
    upstream = normal(*reference(*wide).shape, dtype=given[0].dtype, seed=3)
    results = []
    for make, values in ((function, given), (reference, given), (reference, wide)):
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = make(*values)
        gradients = tape.gradient(y, values, tf.cast(upstream, y.dtype))
        results.append([np.asarray(tf.cast(t, tf.float64)) for t in (y, *gradients)])
    for ours, library, expected in zip(*results, strict=True):
        assert ours.shape == expected.shape
        limit = rounding * np.abs(expected).max()
        allowed = max(limit, min(np.abs(library - expected).max(), 3 * limit))
        assert np.abs(ours - expected).max() <= allowed


SIZES = [(1, 1), (3, 3), (5, 5), (1, 7), (7, 1)]
SHAPES = [(2, 7, 7, 25), (3, 9, 8, 6), (1, 7, 33, 4)]
PADDINGS = ["SAME", "VALID"]
NARROW = [tf.bfloat16, tf.float16]


@pytest.mark.parametrize(
    ("kernels", "dtype", "size", "padding", "shape", "stride"),
    [
        *everyday_values(
            covering_pairs(
                sorted(FASTEST_ALGORITHMS),
                [tf.float32],
                [*SIZES, (2, 2), (4, 3)],
                PADDINGS,
                SHAPES,
                [(1, 1)],
            )
        ),
        # TensorFlow's own gradients, which other cases have, add up in 16 bits.
        *everyday_values(covering_pairs(["eigen-avx2"], NARROW, SIZES, PADDINGS, SHAPES, [(1, 1)])),
        *everyday_values(
            covering_pairs(
                ["eigen-avx2"], NARROW, [*SIZES, (2, 2), (4, 3)], PADDINGS, SHAPES, [(2, 2), (3, 3)]
            )
        ),
    ],
)
def test_results_and_gradients_are_those_of_the_convolution(
    kernels, dtype, size, padding, shape, stride
):
    images = normal(*shape, dtype=dtype, seed=1)
    kernel = normal(*size, shape[3], 4, dtype=dtype, seed=2)
    check(
        lambda x, k: conv(x, k, kernels, stride, padding),
        lambda x, k: tf.nn.conv2d(x, k, stride, padding),
        *(images, kernel),
        rounding=ROUNDING[dtype],
    )


@pytest.mark.parametrize(
    ("size", "dtype"),
    everyday_values(itertools.product([(1, 1), (3, 3), (1, 3), (3, 1), (5, 5)], NARROW)),
)
def test_matrix_products_in_16_bits_with_avx512(size, dtype):
    if dtype == tf.bfloat16 and "avx512_bf16" not in CPU_FLAGS:
        pytest.skip("without instructions for bfloat16, the sums of matrix products are rounded")
    images = normal(2, 5, 8, 128, dtype=dtype, seed=1)
    kernel = normal(*size, 128, 130, dtype=dtype, seed=2)
    found = gradient_operations(conv, tf.TensorSpec(images.shape, dtype), tuple(kernel.shape))
    assert "Conv2DBackpropFilter" not in found
    reference = partial(tf.nn.conv2d, strides=1, padding="SAME")
    check(conv, reference, images, kernel, rounding=ROUNDING[dtype])


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kernels", ["library", "eigen-avx2"])
def test_convolutions_take_strides(padding, kernels):
    check(
        lambda x, k: conv(x, k, kernels, (2, 3), padding),
        lambda x, k: tf.nn.conv2d(x, k, (2, 3), padding),
        *(normal(2, 9, 8, 3, seed=1), normal(3, 2, 3, 4, seed=2)),
        rounding=1e-6,
    )


def test_gradients_of_gradients_are_those_of_the_convolution():
    images, kernel = normal(2, 6, 5, 3, seed=1), normal(3, 3, 3, 2, seed=2)

    def second(convolve):
        with tf.GradientTape() as outer:
            outer.watch([images, kernel])
            with tf.GradientTape() as inner:
                inner.watch([images, kernel])
                y = tf.reduce_sum(convolve(images, kernel) ** 3)
            gradients = inner.gradient(y, [images, kernel])
            total = sum(tf.reduce_sum(gradient**2) for gradient in gradients)
        return outer.gradient(total, [images, kernel])

    found = second(lambda x, k: conv(x, k, "eigen-avx2"))
    expected = second(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def gradient_operations(function, form, kernel):
    """Types of the operations of a product and its gradient, for rows or images of a form."""

    @tf.function(input_signature=[form], autograph=False)
    def run(x):
        weights = tf.zeros(kernel, x.dtype)
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            y = function(x, weights)
        gradients = tape.gradient(y, [x, weights])
        assert [tuple(g.shape) for g in gradients] == [tuple(form.shape), kernel]
        return gradients

    return {op.type for op in run.get_concrete_function().graph.get_operations()}


LIBRARY = {"Conv2DBackpropInput", "Conv2DBackpropFilter"}
CONVOLUTIONS = {"Conv2D", *LIBRARY}


NO_FILTER = CONVOLUTIONS - {"Conv2DBackpropFilter"}


@pytest.mark.parametrize(
    ("kernels", "dtype", "size", "kernel", "stride", "library"),
    [
        ("library", tf.float32, 8, (3, 3, 32, 32), 1, CONVOLUTIONS),
        ("library", tf.bfloat16, 8, (1, 1, 32, 32), 1, CONVOLUTIONS),
        # Their own gradients are convolutions, too.
        ("eigen-avx2", tf.float32, 14, (3, 3, 256, 256), 1, {"Conv2D"}),
        ("eigen-avx2", tf.float32, 14, (1, 1, 256, 64), 1, {"Conv2D"}),
        ("eigen-avx2", tf.float32, 32, (3, 3, 16, 16), 1, {"Conv2D", "Conv2DBackpropFilter"}),
        ("eigen-avx2", tf.float32, 8, (2, 2, 32, 32), 1, CONVOLUTIONS),
        ("eigen-avx2", tf.bfloat16, 7, (3, 3, 3, 4), 2, {"Conv2D"}),
        ("eigen-avx2", tf.float32, 7, (3, 3, 3, 4), 2, CONVOLUTIONS),
        ("onednn-avx2", tf.float32, 14, (3, 3, 256, 256), 1, CONVOLUTIONS),
        ("onednn-avx2", tf.float32, 7, (1, 1, 160, 960), 1, NO_FILTER),
        ("onednn-avx512", tf.bfloat16, 8, (3, 3, 128, 256), 1, NO_FILTER),
        ("onednn-avx512", tf.float32, 17, (1, 1, 64, 64), 1, set()),
        ("onednn-avx512", tf.float32, 18, (1, 1, 64, 65), 1, LIBRARY),
        ("onednn-avx512", tf.float32, 18, (1, 1, 65, 64), 1, {"Conv2D", "Conv2DBackpropFilter"}),
    ],
)
@pytest.mark.parametrize("count", [2, None])
def test_operations_are_the_librarys_where_its_algorithms_are(
    kernels, dtype, size, kernel, stride, library, count
):
    """test_the_algorithms_of_a_shape has all conditions of the choice."""
    form = tf.TensorSpec([count, size, size, kernel[2]], dtype)
    function = partial(conv, kernels=kernels, stride=(stride, stride))
    assert gradient_operations(function, form, kernel) & CONVOLUTIONS == library


@pytest.mark.parametrize("kernels", ["library", *FASTEST_ALGORITHMS])
@pytest.mark.parametrize(("size", "stride"), [((6, 8), (2, 2)), ((7, 5), (2, 3)), ((5, 4), (1, 1))])
def test_a_subsample_and_its_gradient(kernels, size, stride):
    images = normal(2, *size, 3, seed=1)
    down, right = stride
    with tf.GradientTape() as tape:
        tape.watch(images)
        y = CpuOperations(kernels).subsample(images, stride)
    expected = np.asarray(images)[:, ::down, ::right]
    np.testing.assert_array_equal(y, expected)
    upstream = normal(*y.shape, seed=2)
    gradient = np.zeros(images.shape, np.float32)
    gradient[:, ::down, ::right] = upstream
    np.testing.assert_array_equal(tape.gradient(y, images, upstream), gradient)


@pytest.mark.parametrize(
    ("kernels", "own"), [("eigen-avx2", False), ("onednn-avx512", True), ("library", True)]
)
def test_the_gradient_of_a_subsample_does_not_read_the_images(kernels, own):
    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 3])], autograph=False)
    def run(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            y = CpuOperations(kernels).subsample(images, (2, 2))
        return tape.gradient(y, images)

    function = run.get_concrete_function()
    assert function.structured_outputs.shape[1:] == (6, 6, 3)
    assert ("MaxPoolGrad" in {one.type for one in function.graph.get_operations()}) is own


SHAPE = ConvolutionShape((3, 3), (16, 16), 32, 32, "SAME", 32, (1, 1))
ROTATED, SWAPPED = "rotated_kernel", "swapped_batch_and_channels"
OWN = ("library", "library", "library")
EIGEN, AVX2, AVX512 = "eigen-avx2", "onednn-avx2", "onednn-avx512"
BOTH = ("library", ROTATED, SWAPPED)
ROTATED_ONLY = ("library", ROTATED, "library")
PRODUCTS = ("matmul", "matmul", "matmul")
POINTWISE = {"size": (1, 1)}
NARROW_WIDE = {"bits": 16, "channels": 128, "filters": 128, "image": (8, 8)}


@pytest.mark.parametrize(
    ("kernels", "fields", "expected"),
    [
        (EIGEN, {}, BOTH),
        (EIGEN, POINTWISE, ("library", ROTATED, "matmul")),
        (EIGEN, {"stride": (2, 2)}, OWN),
        (EIGEN, {"stride": (2, 2), "bits": 16}, BOTH),
        (EIGEN, {"stride": (1, 2), "bits": 16}, OWN),
        (EIGEN, {**POINTWISE, "stride": (2, 2), "bits": 16}, BOTH),
        *((EIGEN, {"size": size}, OWN) for size in ((2, 2), (3, 2), (2, 3))),
        (EIGEN, {"size": (2, 2), "padding": "VALID"}, BOTH),
        (EIGEN, {"size": (3, 1)}, ROTATED_ONLY),
        (EIGEN, {"size": (3, 1), "bits": 16}, BOTH),
        (EIGEN, {"size": (1, 3)}, BOTH),
        # Few channels of images that are not tiny: 8 * 16 numbers are.
        (EIGEN, {"channels": 8}, BOTH),
        (EIGEN, {"channels": 8, "image": (17, 3)}, ROTATED_ONLY),
        (EIGEN, {"channels": 8, "image": (3, 17)}, ROTATED_ONLY),
        (EIGEN, {"channels": 23}, ROTATED_ONLY),
        (EIGEN, {"channels": 24}, BOTH),
        # Large images, of 800,000 numbers.
        (EIGEN, {"image": (100, 100), "channels": 80}, ROTATED_ONLY),
        (EIGEN, {"image": (100, 100), "filters": 80}, ROTATED_ONLY),
        (EIGEN, {"image": (100, 100), "channels": 79}, BOTH),
        (EIGEN, {"image": (100, 100), "channels": 80, "bits": 16}, BOTH),
        (AVX2, {}, OWN),
        (AVX2, POINTWISE, ("library", "library", "matmul")),
        (AVX2, {**POINTWISE, "filters": 31}, OWN),
        (AVX2, {**POINTWISE, "bits": 16}, OWN),
        (AVX2, {**POINTWISE, "stride": (2, 2)}, OWN),
        (AVX512, {}, OWN),
        (AVX512, {**POINTWISE, "image": (17, 5)}, PRODUCTS),
        (AVX512, {**POINTWISE, "image": (5, 18)}, OWN),
        (AVX512, {**POINTWISE, "image": (5, 18), "bits": 16}, PRODUCTS),
        (AVX512, {**POINTWISE, "image": (18, 5), "filters": 33}, ("matmul", "library", "library")),
        (AVX512, {**POINTWISE, "image": (18, 5), "filters": 31}, ("library", "matmul", "library")),
        (AVX512, NARROW_WIDE, ("library", "library", "patches")),
        *(
            (AVX512, {**NARROW_WIDE, **change}, OWN)
            for change in (
                *({"channels": 127}, {"filters": 127}, {"image": (9, 8)}, {"image": (8, 9)}),
                *({"bits": 32}, {"padding": "VALID"}, {"stride": (2, 2)}, {"size": (2, 2)}),
            )
        ),
    ],
)
def test_the_algorithms_of_a_shape(kernels, fields, expected):
    found = FASTEST_ALGORITHMS[kernels](SHAPE._replace(**fields))
    assert found == ConvolutionAlgorithms(*expected)


@pytest.mark.parametrize(
    ("image", "side", "stride", "padding", "doubtful"),
    [
        # Results of one pixel and of two.
        *((2, 3, 2, "SAME", True), (3, 3, 2, "SAME", False), (3, 2, 3, "SAME", True)),
        *((3, 3, 2, "VALID", True), (4, 3, 2, "VALID", True), (5, 3, 2, "VALID", False)),
        *((1, 3, 1, "SAME", False), (2, 1, 2, "SAME", False), (None, 3, 2, "SAME", False)),
    ],
)
@pytest.mark.parametrize("bits", [16, 32])
def test_results_of_one_pixel_with_a_stride_are_doubtful_in_16_bits(
    image, side, stride, padding, doubtful, bits
):
    def tensor(*shape):
        return SimpleNamespace(shape=shape, dtype=SimpleNamespace(size=bits // 8))

    kernel = tensor(5, side, 7, 8)
    rows, columns = tensor(4, 9, image, 7), tensor(4, 7, 9, image)
    expected = doubtful and bits == 16
    assert is_doubtful(rows, kernel, [1, 1, stride, 1], padding) == expected
    assert is_doubtful(columns, kernel, [1, 1, 1, stride], padding, "NCHW") == expected
    turned = tensor(4, image, 9, 7)
    assert not is_doubtful(turned, kernel, [1, stride, 1, 1], padding)


def test_every_measured_kind_of_kernels_has_forms():
    assert set(FASTEST_ALGORITHMS) == set(MEASURED_KERNELS)


@pytest.mark.parametrize(
    ("gradients", "dtype"),
    everyday_values(itertools.product(["library", "eigen-avx2"], [tf.float32, tf.bfloat16])),
)
def test_training_asks_no_rectified_image_for_its_shape(dtype, gradients):
    # Such a reader keeps TensorFlow from joining a batch norm with its ReLU.
    model = get_model("resnet20", "cifar10")
    model.blocks = (1, 1, 1)

    @tf.function(autograph=False)
    def step(images):
        with tf.GradientTape() as tape:
            kernels = {}

            def read(spec, dtype):
                kernels[spec.name] = tf.zeros(spec.shape, dtype)
                tape.watch(kernels[spec.name])
                return kernels[spec.name]

            how = {"training": True, "compute_dtype": dtype, "conv_gradients": gradients}
            made = forward(model, 10, images, read, **how)
            loss = tf.reduce_sum(made.outputs)
        return tape.gradient(loss, kernels)

    graph = step.get_concrete_function(tf.TensorSpec([2, 32, 32, 3])).graph
    relus = [one for one in graph.get_operations() if one.type == "Relu"]
    readers = {reader.type for one in relus for reader in one.outputs[0].consumers()}
    assert len(relus) == 6
    assert readers & {"Conv2DBackpropFilter", "Transpose"}
    assert readers.isdisjoint({"Shape", "ShapeN"})


# Dense layers ---------------------------------------------------------------------------------


def test_values_and_gradients_are_those_of_the_plain_product():
    x, kernel = normal(16, 1024, seed=1), normal(1024, 256, seed=2)
    check(CpuOperations("eigen-avx2").matmul, tf.linalg.matmul, x, kernel, rounding=1e-6)


@pytest.mark.parametrize(
    ("rows", "kernel", "dtype", "kernel_first"),
    [
        (16, (4096, 1001), tf.float32, True),
        (160, (512, 512), tf.float32, True),
        (15, (4096, 1001), tf.float32, False),
        (161, (4096, 1001), tf.float32, False),
        (32, (256, 256), tf.float32, False),
        (32, (1 << 19, 1), tf.float32, False),
        (32, (4096, 1001), tf.bfloat16, False),
        (None, (512, 512), tf.float32, False),
    ],
)
def test_the_gradient_of_few_rows_multiplies_with_a_large_kernel_first(
    rows, kernel, dtype, kernel_first
):
    form = tf.TensorSpec([rows, kernel[0]], dtype)
    found = gradient_operations(CpuOperations("onednn-avx512").matmul, form, kernel)
    assert ("Transpose" in found) is kernel_first
    assert "Transpose" not in gradient_operations(CpuOperations().matmul, form, kernel)


def transposing_products(model, **flags):
    """Products of a traced step that take a large matrix as it is, by whether it is transposed."""
    built = build(model, **flags)
    found = {"kernel first": 0, "kernel transposed": 0}
    for operation in built.step.graph.get_operations():
        if operation.type == "MatMul" and operation.get_attr("transpose_b"):
            first, second = (tensor.shape.num_elements() for tensor in operation.inputs)
            found["kernel first" if first > second else "kernel transposed"] += 1
    built.close()
    return found


@pytest.mark.usefixtures("quick_start")
def test_the_step_of_a_dense_layer_multiplies_with_the_kernel_as_it_lies():
    found = transposing_products("lenet", batch_size=16)
    assert found == {"kernel first": 2, "kernel transposed": 0}
    assert transposing_products("lenet", batch_size=8)["kernel first"] == 0


def products_in_float64(images, kernel, upstream, stride):
    """The output of a convolution with SAME padding, and its two gradients, by NumPy."""
    (rows, columns), (height, width) = kernel.shape[:2], images.shape[1:3]
    tall, wide = -(-height // stride[0]), -(-width // stride[1])
    above = max((tall - 1) * stride[0] + rows - height, 0) // 2
    left = max((wide - 1) * stride[1] + columns - width, 0) // 2
    output = np.zeros((len(images), tall, wide, kernel.shape[3]))
    of_images, of_kernel = np.zeros(images.shape), np.zeros(kernel.shape)
    for i, j, down, right in np.ndindex(rows, columns, tall, wide):
        y, x = down * stride[0] + i - above, right * stride[1] + j - left
        if 0 <= y < height and 0 <= x < width:
            output[:, down, right] += images[:, y, x] @ kernel[i, j]
            of_images[:, y, x] += upstream[:, down, right] @ kernel[i, j].T
            of_kernel[i, j] += images[:, y, x].T @ upstream[:, down, right]
    return output, of_images, of_kernel


@pytest.mark.parametrize(
    ("image", "size", "stride"),
    everyday_values(
        itertools.product(
            [(1, 1), (2, 2), (2, 1), (1, 2), (8, 1), (16, 2)],
            [3, 5],
            [(2, 2), (3, 3), (1, 2)],
        )
    ),
)
def test_tiny_images_with_a_stride_are_right_in_bfloat16(image, size, stride):
    """TensorFlow's results, or its gradients of the kernel, are sometimes up to 1e37."""
    images = normal(8, *image, 16, seed=1, dtype=tf.bfloat16)
    kernel = normal(size, size, 16, 8, seed=2, dtype=tf.bfloat16)
    out = [-(-side // step) for side, step in zip(image, stride, strict=True)]
    upstream = normal(8, *out, 8, seed=3, dtype=tf.bfloat16)
    with tf.GradientTape() as tape:
        tape.watch([images, kernel])
        how = [1, *stride, 1], "SAME"
        output = convolve_without_onednn(tf.raw_ops.Conv2D, images, kernel, *how)
    found = (output, *tape.gradient(output, [images, kernel], upstream))
    wide = [np.asarray(tf.cast(t, tf.float64)) for t in (images, kernel, upstream)]
    for ours, expected in zip(found, products_in_float64(*wide, stride), strict=True):
        error = np.abs(np.asarray(tf.cast(ours, tf.float64)) - expected).max()
        assert error <= 0.01 * np.abs(expected).max()


@pytest.mark.parametrize("image", [(1, 1), (2, 2), (8, 1)])
@pytest.mark.parametrize(
    ("operation", "shape"),
    [("Conv2D", (5, 5, 4, 16)), ("DepthwiseConv2dNative", (5, 5, 16, 1))],
)
def test_tiny_images_in_groups_have_the_gradients_of_float32(image, operation, shape):
    images = normal(8, *image, 16, seed=1, dtype=tf.bfloat16)
    kernel = normal(*shape, seed=2, dtype=tf.bfloat16)
    how = [1, 3, 3, 1], "SAME"
    raw = getattr(tf.raw_ops, operation)
    results = []
    for dtype in (tf.bfloat16, tf.float32):
        given = [tf.cast(tensor, dtype) for tensor in (images, kernel)]
        with tf.GradientTape() as tape:
            tape.watch(given)
            output = convolve_without_onednn(raw, *given, *how)
        upstream = normal(*output.shape, seed=3, dtype=tf.bfloat16)
        gradients = tape.gradient(output, given, tf.cast(upstream, dtype))
        results.append([np.asarray(tf.cast(t, tf.float32)) for t in (output, *gradients)])
    for ours, expected in zip(*results, strict=True):
        assert np.abs(ours - expected).max() <= 0.01 * np.abs(expected).max()


def test_layers_with_doubtful_gradients_are_found_in_the_graph():
    shapes = {  # images, kernel, operation, dtype, layout
        "small": ((1, 2, 1, 1), (3, 3, 1, 1), "Conv2D", tf.bfloat16, "NHWC"),
        "first": ((1, 1, 2, 1), (3, 3, 1, 1), "Conv2D", tf.bfloat16, "NCHW"),
        "depthwise": ((1, 2, 2, 1), (3, 3, 1, 1), "DepthwiseConv2dNative", tf.float16, "NHWC"),
        "tall": ((1, 9, 2, 1), (1, 2, 1, 1), "Conv2D", tf.bfloat16, "NHWC"),
        "wide": ((1, 2, 4, 1), (3, 3, 1, 1), "Conv2D", tf.bfloat16, "NHWC"),
        "pointwise": ((1, 2, 2, 1), (1, 1, 1, 1), "Conv2D", tf.bfloat16, "NHWC"),
        "unknown": ((1, None, None, 1), (3, 3, 1, 1), "Conv2D", tf.bfloat16, "NHWC"),
        "precise": ((1, 2, 1, 1), (3, 3, 1, 1), "Conv2D", tf.float32, "NHWC"),
    }
    with tf.Graph().as_default() as graph:
        for tower in (0, 1):
            for name, (images, kernel, operation, dtype, layout) in shapes.items():
                strides = [1, 2, 2, 1] if layout == "NHWC" else [1, 1, 2, 2]
                how = {"strides": strides, "padding": "SAME", "data_format": layout}
                with tf.name_scope(f"tower_{tower}/block/{name}/"):
                    getattr(tf.raw_ops, operation)(
                        input=tf.raw_ops.Placeholder(dtype=dtype, shape=images),
                        filter=tf.raw_ops.Placeholder(dtype=dtype, shape=kernel),
                        **how,
                    )
    assert doubtful_layers(graph) == ("block/small", "block/first", "block/depthwise", "block/tall")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("layer", ["conv", "depthwise_conv"])
def test_narrow_images_in_bfloat16_are_not_left_to_tensorflow(layer, data_format, training):
    """TensorFlow's results are sometimes up to 1e37 on CPUs with AMX."""
    values = np.random.default_rng(1)

    def body(net, images):
        narrow = net.apply(lambda x: x[:, :, :2], images, shape=(16, 2, 3))
        filters = (8,) if layer == "conv" else ()
        return net.logits(net.flatten(getattr(net, layer)(narrow, *filters, 3, 2)))

    def read(spec, dtype):
        if spec.name not in weights:
            weights[spec.name] = values.standard_normal(spec.shape)
        return tf.constant(weights[spec.name], dtype)

    weights, results = {}, []
    images = tf.random.stateless_normal([4, 16, 16, 3], (1, 2))
    for dtype, layout in ((tf.bfloat16, data_format), (tf.float32, "NHWC")):
        how = {"training": training, "compute_dtype": dtype, "data_format": layout}
        graph = tf.function(
            lambda x, how=how: (
                forward(model_of(body, 16), 10, x, read, avoids_doubtful=True, **how).outputs
            ),
            autograph=False,
        ).get_concrete_function(images)
        assert doubtful_layers(graph.graph) == ()
        results.append(graph(images).numpy())
    scale = np.abs(results[1]).max()
    assert np.abs(results[0] - results[1]).max() <= 0.03 * scale
