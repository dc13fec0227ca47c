"""--bn_stats=sync: several towers normalise, and learn, as one tower with all the batches does.

Tests cnnbench/run/step/batch_norm.py and models/graph.py.
"""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from short_runs import build

from cnnbench.models.graph import synchronised_batch_norm
from cnnbench.run.step.batch_norm import moments_over_towers
from cnnbench.variable_mgr import exchange
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec

pytestmark = pytest.mark.usefixtures("quick_start")

EPSILON = 1e-3


def oracle(x, scale, offset, upstream):
    """Batch norm of [n, h, w, c] and its gradients in float64, by the textbook."""
    axes = (0, 1, 2)
    count = x[..., 0].size
    mean, variance = x.mean(axes), x.var(axes)
    inverse = 1.0 / np.sqrt(variance + EPSILON)
    normal = (x - mean) * inverse
    of_normal = upstream * scale
    of_x = inverse * (of_normal - of_normal.mean(axes) - normal * (of_normal * normal).mean(axes))
    return {
        "y": normal * scale + offset,
        "mean": mean,
        "variance": variance * count / (count - 1),
        "of_x": of_x,
        "of_scale": (upstream * normal).sum(axes),
        "of_offset": upstream.sum(axes),
    }


@pytest.mark.parametrize(("count", "data_format"), [(1, "NHWC"), (2, "NHWC"), (3, "NCHW")])
def test_moments_and_gradients_are_those_of_all_batches(count, data_format):
    rng = np.random.default_rng(count)
    # Far from zero, where the mean of squares less the square of the mean loses its digits.
    x = 100.0 + rng.normal(size=(2 * count, 3, 2, 4))
    x[:2] += 3.0
    scale, offset = rng.normal(size=4), rng.normal(size=4)
    upstream = rng.normal(size=x.shape)
    order = (0, 1, 2, 3) if data_format == "NHWC" else (0, 3, 1, 2)

    def of_tower(values, tower):
        part = values[2 * tower : 2 * tower + 2].transpose(order)
        return tf.constant(part, tf.float32)

    @tf.function(autograph=False)
    def step():
        def build(tower):
            inputs = [of_tower(x, tower), tf.constant(scale, tf.float32), tf.zeros(4) + offset]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                y, mean, variance = synchronised_batch_norm(
                    *inputs,
                    name="layer",
                    epsilon=EPSILON,
                    channels_at=order.index(3),
                    synchronise=partial(moments_over_towers, workers=None),
                )
                loss = tf.reduce_sum(y * of_tower(upstream, tower))
            return y, mean, variance, tape.gradient(loss, inputs)

        return exchange.build_towers_in_threads(build, count)

    found = step()
    wanted = oracle(x, scale, offset, upstream)
    back = np.argsort(order)

    def whole(parts):
        return np.concatenate([part.numpy().transpose(back) for part in parts])

    np.testing.assert_allclose(whole([made[0] for made in found]), wanted["y"], atol=2e-4)
    np.testing.assert_allclose(whole([made[3][0] for made in found]), wanted["of_x"], atol=2e-4)
    for _, mean, variance, _ in found:
        np.testing.assert_allclose(mean, wanted["mean"], rtol=1e-6)
        np.testing.assert_allclose(variance, wanted["variance"], rtol=1e-4)
    for index, name in ((1, "of_scale"), (2, "of_offset")):
        total = sum(made[3][index].numpy() for made in found)
        np.testing.assert_allclose(total, wanted[name], rtol=1e-3, atol=1e-3)


def train(**flags):
    built = build("normal", optimizer="momentum", weight_decay=1e-3, **flags)
    return built, [float(built.step(0.01).loss.numpy()) for _ in range(3)]


@pytest.fixture(scope="module")
def one_tower():
    built, losses = train(num_gpus=1, batch_size=12)
    variables = built.manager.savable_variables()
    return losses, {name: v.primary.numpy() for name, v in variables.items()}


@pytest.mark.parametrize(
    ("mode", "count", "more"),
    slow_if(
        lambda case: case[0] != "replicated",
        [
            ("replicated", 3, {"all_reduce_spec": parse_all_reduce_spec("xring")}),
            ("parameter_server", 2, {"local_parameter_device": "cpu"}),
            ("mirrored_strategy", 2, {"cross_device_ops": "reduction_to_one_device"}),
        ],
    ),
)
def test_towers_train_as_one_with_the_global_batch(mode, count, more, one_tower):
    losses, weights = one_tower
    built, found = train(
        num_gpus=count, batch_size=12 // count, variable_update=mode, bn_stats="sync", **more
    )
    np.testing.assert_allclose(found, losses, rtol=2e-4)
    for name, variable in built.manager.savable_variables().items():
        np.testing.assert_allclose(
            variable.primary.numpy(), weights[name], rtol=2e-3, atol=5e-4, err_msg=name
        )


@pytest.mark.slow
def test_moments_of_their_own_batches_would_train_otherwise(one_tower):
    losses, _ = one_tower
    _, alone = train(num_gpus=2, batch_size=6, variable_update="replicated")
    assert abs(alone[0] - losses[0]) > 1e-3 * losses[0]  # five times what is allowed above


@pytest.mark.slow
def test_half_precision_moments_are_float32_and_summaries_have_gradients_of_all_batches():
    built, losses = train(
        num_gpus=2,
        batch_size=2,
        variable_update="replicated",
        bn_stats="sync",
        precision="fp16",
    )
    assert np.isfinite(losses).all()
    squared = [o for o in built.step.graph.get_operations() if o.type == "SquaredDifference"]
    assert {output.dtype for o in squared for output in o.outputs} == {tf.float32}
    last_gradients = built.step.trace_last_gradients()
    built.step(0.0)
    gradients, _ = last_gradients()
    assert all(np.isfinite(value.numpy()).all() for value in gradients.values())


def test_one_device_synchronises_nothing():
    built = build("normal", num_gpus=1, batch_size=2, bn_stats="sync")
    assert "FusedBatchNormV3" in {o.type for o in built.step.graph.get_operations()}
