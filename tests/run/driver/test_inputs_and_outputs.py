"""Models with several inputs and outputs, losses and metrics of their own, a second head.

Tests cnnbench/run/driver/evaluation.py.
"""

import numpy as np
import pytest
from covering import slow_if
from data_sets import WEATHER, own_forecast, write_weather

from cnnbench import BenchmarkCNN, Console, Params
from cnnbench.errors import FlagError, UsageError
from cnnbench.run.driver.shared_interrupts import SharedInterrupts

pytestmark = pytest.mark.usefixtures("quick_start")

MODES = {
    "parameter_server": {},
    "mirrored_strategy": {
        "cross_device_ops": "reduction_to_one_device",
        "input_distribution": "strategy",
    },
}


def forecast(**flags):
    sizes = {"device": "cpu", "num_batches": 12, "num_warmup_batches": 0}
    return Params.from_dict({**WEATHER, **sizes, **flags})


@pytest.fixture
def folder(tmp_path):
    """Seven examples per subset."""
    return write_weather(tmp_path, 7, 7)


@pytest.mark.parametrize("mode", slow_if(["mirrored_strategy"], MODES))
def test_two_inputs_and_two_outputs_train_and_are_evaluated(mode, folder, capsys):
    params = forecast(
        variable_update=mode,
        num_gpus=2,
        batch_size=3,
        data_dir=str(folder),
        eval_during_training_every_n_steps=6,
        num_eval_epochs=1.0,
        **MODES[mode],
    )
    record = BenchmarkCNN(params, console=Console()).run()
    assert record.losses[-1] < record.losses[0]
    assert [one.examples for one in record.evaluations] == [7, 7]
    last = record.evaluations[-1]
    assert (last.top_1, last.top_5) == (None, None)
    assert list(last.metrics) == ["rain_hits", "degrees_off", "median_off"]
    values = " ".join(f"{name} = {value:.4f}" for name, value in last.metrics.items())
    out = capsys.readouterr().out
    assert f"{values} [7 examples]\n" in out
    assert "Accuracy" not in out
    assert "Dataset:     weather\n" in out  # and not synthetic


@pytest.mark.slow
def test_d3_d12_a_ragged_last_batch_counts_by_its_examples(folder):
    """Seven examples on several devices, three in a batch, and on one device all at once."""

    def evaluated(**more):
        # Weights stay as they are, which is the same in every mode.
        common = {"num_batches": 2, "init_learning_rate": 0.0, "data_dir": str(folder)}
        when = {"eval_during_training_at_specified_steps": (2,), "num_eval_epochs": 1.0}
        return BenchmarkCNN(forecast(**common, **when, **more)).run().evaluations[-1]

    whole = evaluated(batch_size=7)
    mirrored = {"variable_update": "mirrored_strategy", "num_gpus": 2}
    parts = evaluated(batch_size=3, **mirrored, cross_device_ops="reduction_to_one_device")
    assert parts.examples == whole.examples == 7
    assert parts.loss == pytest.approx(whole.loss, rel=1e-5)
    assert parts.metrics == pytest.approx(whole.metrics, rel=1e-5)


def test_every_metric_counts_every_example_once(folder):
    params = forecast(
        num_gpus=3,
        batch_size=2,
        eval_batch_size=4,
        data_dir=str(folder),
        eval_during_training_every_n_steps=1,
        num_eval_epochs=1.0,
    )
    built = BenchmarkCNN(params).build()
    found = built.evaluator.run(0, Console.silent(), SharedInterrupts(None))
    built.close()
    w = {name: v.primary.numpy() for name, v in built.manager.savable_variables().items()}
    with np.load(folder / "validation.npz") as arrays:
        hours, station, rain, degrees = (
            arrays[name] for name in ("hours", "station", "rain", "degrees")
        )
    # The network once more, by hand.
    x = np.concatenate([hours.reshape(7, -1), w["embedding0/table"][station]], axis=1)
    x = np.maximum(x @ w["affine0/kernel"] + w["affine0/bias"], 0)
    logits = x @ w["affine1/kernel"] + w["affine1/bias"]
    told = 10 * (x @ w["affine2/kernel"] + w["affine2/bias"])[:, 0]
    entropy = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(7), rain]
    loss = np.mean(entropy + ((told - degrees) / 10) ** 2)
    assert found.evaluation.examples == 7
    assert found.evaluation.loss == pytest.approx(loss, rel=1e-4)
    assert found.metrics == pytest.approx(
        {
            "rain_hits": np.mean(logits.argmax(axis=1) == rain),
            "degrees_off": np.abs(told - degrees).mean(),
            "median_off": np.median(np.abs(told - degrees)),
        },
        rel=1e-4,
    )


def test_forward_only_prints_the_models_metrics(capsys):
    params = forecast(forward_only=True, print_training_accuracy=True)  # as it always does
    record = BenchmarkCNN(params, console=Console()).run()
    lines = capsys.readouterr().out.splitlines()
    header = lines.index("Step\tImg/sec\ttotal_loss\train_hits\tdegrees_off")
    assert len(lines[header + 1].split("\t")) == 5
    assert set(record.losses) == {0.0}


@pytest.fixture
def own(tmp_path):
    """Parameters for a model that differs from the example by `body`."""
    return lambda body, **flags: forecast(**own_forecast(tmp_path, body), **flags)


def test_what_the_data_set_does_not_give_is_refused(own):
    params = own(
        "elements = (*Forecast.elements, Element('wind', (3,), 'feature'))\n"
        "def build(self, net, features):\n"
        "    return super().build(net, features)\n"
    )
    with pytest.raises(FlagError, match=r"takes wind \(3,\) float32 of an example, but data set"):
        BenchmarkCNN(params)


def test_metrics_that_are_not_named_are_refused(own):
    body = "metric_names = ('rain_hits',)\nlower_is_better = ('median_off',)"
    params = own(body, forward_only=True)
    message = r"must return values by the names in Own.metric_names, rain_hits, not by rain_hits, "
    with pytest.raises(UsageError, match=message):
        BenchmarkCNN(params).run()


MORNING = """
    elements = (Element("hours", (12, 3), "feature"), *Forecast.elements[1:])
    def preprocess(self, example, seed, *, training):
        import tensorflow as tf
        noise = tf.random.stateless_uniform((), seed) if training else 0.0
        return {**example, "hours": example["hours"][:12] + noise}
"""


@pytest.mark.parametrize("synthetic", slow_if([False], [True, False]))
def test_a_model_makes_its_elements_of_an_example(own, folder, synthetic):
    flags = {} if synthetic else {"data_dir": str(folder)}
    made = BenchmarkCNN(own(MORNING, batch_size=4, **flags)).build()
    (batch,) = made.inputs.next() or [made.inputs.get_tower_batch(0, ())]
    assert batch.features["hours"].shape == (4, 12, 3)
    made.close()
    if synthetic:  # with a stream more, other numbers are drawn than without
        assert np.isfinite(batch.features["hours"].numpy()).all()
        return
    plain = BenchmarkCNN(forecast(batch_size=4, **flags)).build()
    (other,) = plain.inputs.next()
    plain.close()
    added = batch.features["hours"].numpy() - other.features["hours"].numpy()[:, :12]
    np.testing.assert_array_equal(batch.labels["rain"], other.labels["rain"])
    assert len({round(float(noise), 4) for noise in added[:, 0, 0]}) == 4
    np.testing.assert_allclose(added, np.broadcast_to(added[:, :1, :1], added.shape), atol=1e-5)


@pytest.mark.slow
def test_padding_that_the_loss_cannot_take_does_not_count(own, folder):
    params = own(
        "def loss(self, outputs, labels):\n"
        "    return 1.0 / labels['degrees'] + 0.0 * outputs['degrees'][:, 0]\n",
        data_dir=str(folder),
        batch_size=4,
        num_batches=1,
        eval_during_training_every_n_steps=1,
        num_eval_epochs=1.0,
    )
    (found,) = BenchmarkCNN(params).run().evaluations
    with np.load(folder / "validation.npz") as arrays:
        assert found.loss == pytest.approx(np.mean(1.0 / arrays["degrees"]), rel=1e-4)


# A second head; tests/models/test_aux_head.py has the built-in ones.

HEAD = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Headed(Model):
    name, dataset, image_size, batch_size = "headed", "cifar10", 32, 4
    learning_rate = LearningRateSpec(0.05)

    def build(self, net, images):
        x = net.flatten(net.conv(images, 4, 3, 8))
        {head}
        return net.logits(x)

register_model("headed", "cifar10", Headed)
"""


@pytest.fixture
def headed(tmp_path):
    def build(head, **flags):
        path = tmp_path / "headed.py"
        path.write_text(HEAD.format(head=head))
        params = Params(
            model="headed",
            plugin=str(path),
            data_name="cifar10",
            device="cpu",
            num_warmup_batches=0,
            weight_decay=0.0,
            **flags,
        )
        benchmark = BenchmarkCNN(params)
        return benchmark, benchmark.build()

    return build


def test_a_second_head_counts_with_its_weight(headed):
    def loss(weight):
        head = f"with net.scope('aux'): net.auxiliary(net.logits(x), {weight})"
        _, built = headed(head)
        return float(built.step(0.1).loss.numpy())

    quarter, half, whole = map(loss, (0.25, 0.5, 1.0))
    assert whole - half == pytest.approx(2 * (half - quarter), rel=1e-4)
    assert half - quarter > 0.1


def test_without_training_there_is_no_second_head(headed):
    guarded = (
        "if net.training:\n"
        "            with net.scope('aux'): net.auxiliary(net.logits(net.affine(x, 7)), 0.3)"
    )
    benchmark, built = headed(guarded, forward_only=True)
    plain_benchmark, plain = headed("pass", forward_only=True)
    spec, without = benchmark.plan.network.spec, plain_benchmark.plan.network.spec
    assert spec.parameters > without.parameters
    assert spec.forward_flops_per_image == without.forward_flops_per_image
    assert spec.training_flops_per_image > without.training_flops_per_image
    types = [[o.type for o in one.step.graph.get_operations()] for one in (built, plain)]
    assert types[0].count("MatMul") == types[1].count("MatMul") == 1


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("net.auxiliary(net.logits(x), 0)", "auxiliary head must be above 0, not 0"),
        (
            "if net.training: net.auxiliary(net.logits(x), 0.4)\n        x = net.affine(x, 3)",
            "different variables outside of training, such as affine0/bias; build an auxiliary",
        ),
        ("net.auxiliary(net.affine(x, 3), 0.4)", r"logits of shape \(11,\) per example, not \(3,"),
    ],
)
def test_heads_that_cannot_be_are_refused(headed, head, message):
    with pytest.raises(UsageError, match=message):
        headed(head)
