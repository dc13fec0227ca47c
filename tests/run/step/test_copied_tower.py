"""A copy of the first tower is what a trace of the tower would be."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cnnbench import BenchmarkCNN, Params
from cnnbench.base.plugins import load
from cnnbench.cli import main
from cnnbench.data.source import TowerBatch
from cnnbench.data.synthetic import synthetic_rows
from cnnbench.models import LearningRateSpec, Model, declare, get_model
from cnnbench.models.elements import resolve
from cnnbench.run.driver.build import BuiltRun
from cnnbench.run.step import train_step
from cnnbench.run.step.copied_tower import CopiedTowers
from cnnbench.run.step.tower import StepConfig, Tower, TowerResult

PLUGIN = Path(__file__).parents[3] / "docs" / "examples" / "weather_plugin.py"
PLUGINS = Path(__file__).parents[2] / "plugins"
TRAINING = StepConfig(metrics=True, training_steps=10)
TOWERS = 2
BATCH = 2


def forecast() -> Model:
    load(str(PLUGIN), "dataset_plugin")
    return get_model("forecast", "weather")


class Drawing(Model):
    """Batch norm, and numbers that are drawn."""

    name, dataset, image_size, batch_size = "drawing", "imagenet", 8, 2
    learning_rate = LearningRateSpec(1.0)

    def build(self, net: Any, images: Any) -> Any:
        x = net.conv(images, 4, 3, 2, batch_norm=True)
        x = net.add(x, net.drop_path(net.conv(x, 4, 3, batch_norm=True), 0.5))
        return net.logits(net.dropout(net.flatten(x), 0.5))


CASES = {
    "dropped paths": (Drawing, TRAINING),
    "bf16": (Drawing, replace(TRAINING, compute_dtype="bfloat16")),
    "forward only": (lambda: get_model("lenet", "imagenet"), StepConfig(forward_only=True)),
    "XLA": (forecast, replace(TRAINING, xla_compile=True)),
    "slices, several inputs": (forecast, TRAINING),
}


@pytest.mark.parametrize("case", CASES)
def test_a_copy_computes_what_a_trace_does(case: str, cpu_devices: tuple[str, ...]) -> None:
    make, config = CASES[case]
    model = make()
    spec = declare(model, 30)
    rng = np.random.default_rng(0)
    weights = {
        v.name: tf.Variable(rng.normal(0.0, 0.1, (TOWERS, *v.shape)), dtype=tf.float32)
        for v in spec.variables
    }
    elements = resolve(model.elements, model, 30)
    draw = partial(synthetic_rows, seed=1, elements=elements)
    rows = [draw(BATCH * tower + tf.range(BATCH)) for tower in range(TOWERS)]
    batches = [TowerBatch.of(elements, row)[:2] for row in rows]

    def run(tower: int, batch: Any, make: Callable[..., TowerResult]) -> TowerResult:
        def read(variable: Any, dtype: tf.DType) -> tf.Tensor:
            return tf.cast(tf.identity(weights[variable.name])[tower], dtype)

        with tf.device(cpu_devices[tower]), tf.name_scope(f"tower_{tower}"):
            factor = None if config.forward_only else tf.constant(2.0**tower)
            return make(read, *batch, tf.constant([tower, 3], tf.int64), factor)

    traced: list[Any] = []

    @tf.function(autograph=False)
    def step() -> Any:
        def trace(read: Any, *given: Any) -> TowerResult:
            traced.append(given)
            return Tower(model, spec, config, cpu_devices[0])(read, *given)

        copy = CopiedTowers(trace, pytest.fail)
        given = list(enumerate(tf.nest.map_structure(tf.identity, batches)))
        with tf.name_scope("traced"):
            traces = [run(tower, batch, trace) for tower, batch in given]
        with tf.name_scope("copied"):
            copies = [run(tower, batch, copy) for tower, batch in given]
        return values(traces), values(copies)

    def values(results: list[TowerResult]) -> Any:
        moments = [[(m.batch_mean, m.batch_variance) for m in one.moments] for one in results]
        return [one._replace(moments=m) for one, m in zip(results, moments, strict=True)]

    traces, copies = step()
    assert len(traced) == TOWERS + 1
    graph = step.get_concrete_function().graph
    for tower in range(1, TOWERS):
        assert operations(graph, f"copied/tower_{tower}/") == operations(
            graph, f"traced/tower_{tower}/"
        )
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            traces[tower],
            copies[tower],
            expand_composites=True,
        )
        assert traces[tower].loss != traces[0].loss


def operations(graph: tf.Graph, scope: str) -> Counter[Any]:
    """What is there, how often, on which device and with what result; names are no matter."""
    found = Counter(
        (o.type, o.device, *((x.dtype, str(x.shape)) for x in o.outputs))
        for o in graph.get_operations()
        if scope in o.name
    )
    assert sum(found.values()) > 10
    return found


@pytest.mark.parametrize(
    "flags",
    [
        {
            "variable_update": "replicated",
            "all_reduce_spec": "xring",
            "loss_type_to_report": "base_loss",
        },
        {"variable_update": "parameter_server", "fp16_vars": True, "use_fp16": True},
        {"variable_update": "mirrored_strategy"},
        {"variable_update": "independent", "forward_only": True},
    ],
    ids=lambda flags: flags["variable_update"],
)
def test_a_step_of_copies_is_the_step_that_would_be_traced(
    flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch, quick_start: None
) -> None:
    sizes = {"num_gpus": 2, "batch_size": 2, "device": "cpu", "num_warmup_batches": 0}
    own = {"model": "poison", "model_plugin": str(PLUGINS / "poison_plugin.py"), **sizes, **flags}
    traced = []
    trace = Tower.__call__

    def counted(tower: Tower, *args: Any) -> TowerResult:
        traced.append(tower)
        return trace(tower, *args)

    monkeypatch.setattr(Tower, "__call__", counted)
    copied = names(BenchmarkCNN(Params.from_dict(own)).build())
    assert len(traced) == 1
    monkeypatch.setattr(train_step, "CopiedTowers", lambda first, tell: None)
    assert copied == names(BenchmarkCNN(Params.from_dict(own)).build())
    assert len(traced) == 3


def names(built: BuiltRun) -> Counter[tuple[str, str, str]]:
    """The operations that compute, which roofline and --profile_layers know by their names."""
    return Counter(
        (re.sub(r"_\d+$", "", o.name), o.type, o.device)
        for o in built.step.graph.get_operations()
        if o.type not in ("Placeholder", "ReadVariableOp")
        and any(x.dtype.is_floating and x.shape.rank != 0 for x in o.outputs)
    )


def uniform(read: Any, given: Any) -> tf.Tensor:
    return tf.random.uniform([9]) + given


def on_two_devices(read: Any, given: Any) -> tf.Tensor:
    with tf.device("CPU:3"):
        beside = tf.sin(given)
    return tf.exp(beside)


def in_a_loop(read: Any, given: Any) -> tf.Tensor:
    """TensorFlow has the tower's device in the body of the loop, which a copy would share."""
    return tf.while_loop(lambda x: x[0] < 9.0, lambda x: [2.0 * x], [given + 1.5])[0]


def plain(read: Any, given: Any) -> tf.Tensor:
    return tf.exp(given)


def made_for_three_towers(trace: Any, tell: Callable[[str], object]) -> tuple[list[Any], int]:
    """What three towers compute, and how many of them were traced."""
    traced = []

    @tf.function(autograph=False)
    def step() -> list[tf.Tensor]:
        def counted(read: Any, given: Any) -> tf.Tensor:
            traced.append(given)
            return trace(read, given)

        copied = CopiedTowers(counted, tell)
        made = []
        for tower in range(3):
            with tf.device(f"CPU:{tower}"), tf.name_scope(f"tower_{tower}"):
                made.append(copied(lambda spec, dtype: None, tf.fill([9], float(tower))))
        return made

    return [tensor.numpy() for tensor in step()], len(traced)


@pytest.mark.parametrize(
    ("trace", "times"), [(uniform, 3), (on_two_devices, 3), (in_a_loop, 3), (plain, 1)]
)
def test_what_a_copy_could_not_know_is_traced_each_time(trace: Any, times: int) -> None:
    """A copied tf.random.uniform would draw the numbers of the first tower."""
    results, traced = made_for_three_towers(trace, pytest.fail)
    assert traced == times
    assert not np.allclose(results[0], results[1])
    assert not np.allclose(results[1], results[2])


def another_version(*args: Any, **options: Any) -> Any:
    raise TypeError("import_graph_def() got an unexpected keyword argument 'name'\nand more")


@pytest.mark.parametrize(
    ("owner", "name", "replacement"),
    [
        (tf.graph_util, "import_graph_def", another_version),
        (tf.Operation, "node_def", property(another_version)),
    ],
    ids=["no import", "no definition"],
)
def test_towers_are_traced_where_tensorflow_takes_no_copy(
    owner: Any, name: str, replacement: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, replacement)
    told: list[str] = []
    results, traced = made_for_three_towers(plain, told.append)
    assert traced == 3
    np.testing.assert_allclose(results, np.exp(np.arange(3.0)).repeat(9).reshape(3, 9), rtol=1e-6)
    (line,) = told
    assert line.endswith(
        "(TypeError: import_graph_def() got an unexpected keyword argument 'name')"
    )


def test_a_run_whose_towers_cannot_be_copied_goes_on_with_one_notice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quick_start: None
) -> None:
    monkeypatch.setattr(tf.graph_util, "import_graph_def", another_version)
    words = ["--model=lenet", "--device=cpu", "--num_gpus=3", "--batch_size=2", "--num_batches=2"]
    words += ["--num_warmup_batches=1", "--eval_during_training_every_n_steps=2"]
    assert main([*words, "--num_eval_batches=1", "--variable_update=replicated"]) == 0
    assert capsys.readouterr().err.count("every tower is traced") == 1
