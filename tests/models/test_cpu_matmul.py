"""Dense layers of few rows against TensorFlow's own product."""

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.flags import Params
from cnnbench.models.cpu_products import few_rows_matmul, transposed_rows_pay
from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN


def normal(*shape, seed, dtype=tf.float32):
    values = np.random.default_rng(seed).standard_normal(shape)
    return tf.constant(values.astype(np.float32), dtype)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(16, 300, 70), (3, 5, 1), (1, 1, 4)])
def test_values_and_gradients_are_those_of_the_plain_product(rows, inputs, outputs):
    x, kernel = normal(rows, inputs, seed=1), normal(inputs, outputs, seed=2)
    upstream = normal(rows, outputs, seed=3)
    results = []
    for multiply in (few_rows_matmul, tf.linalg.matmul):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = multiply(x, kernel)
        results.append([y, *tape.gradient(y, [x, kernel], output_gradients=upstream)])
    for ours, plain in zip(*results, strict=True):
        assert ours.shape == plain.shape
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "kernel", "dtype", "expected"),
    [
        (16, (4096, 1001), tf.float32, True),
        (160, (512, 512), tf.float32, True),
        (15, (4096, 1001), tf.float32, False),
        (161, (4096, 1001), tf.float32, False),
        (32, (256, 256), tf.float32, False),
        (32, (1 << 19, 1), tf.float32, False),
        (32, (4096, 1001), tf.bfloat16, False),
    ],
)
def test_it_is_for_few_rows_and_large_kernels(rows, kernel, dtype, expected):
    x, weights = tf.zeros([rows, kernel[0]], dtype), tf.zeros(kernel, dtype)
    assert transposed_rows_pay(x, weights) is expected


def test_an_unknown_number_of_rows_takes_the_plain_product():
    answers = []

    @tf.function(input_signature=[tf.TensorSpec([None, 512])], autograph=False)
    def run(rows):
        answers.append(transposed_rows_pay(rows, tf.zeros([512, 512])))
        return rows

    run(tf.zeros([32, 512]))
    assert answers == [False]


def transposing_products(model, **flags):
    """Products of a traced step that take a large matrix as it is, by whether it is transposed."""
    params = Params(model=model, device="cpu", num_warmup_batches=0, **flags)
    built = BenchmarkCNN(params).build()
    found = {"kernel first": 0, "kernel transposed": 0}
    for operation in built.step.graph.get_operations():
        if operation.type == "MatMul" and operation.get_attr("transpose_b"):
            first, second = (tensor.shape.num_elements() for tensor in operation.inputs)
            found["kernel first" if first > second else "kernel transposed"] += 1
    built.close()
    return found


def test_the_step_of_a_dense_layer_multiplies_with_the_kernel_as_it_lies():
    found = transposing_products("lenet", batch_size=16)
    assert found == {"kernel first": 2, "kernel transposed": 0}
    assert transposing_products("lenet", batch_size=8)["kernel first"] == 0
