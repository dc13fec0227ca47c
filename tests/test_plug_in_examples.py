"""The short examples of docs/plugins.md: as plug-ins they compute what NumPy computes, and an
installed package brings them without a flag.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from short_runs import TINY, run

from cnnbench import Params
from cnnbench.base import plugins
from cnnbench.data import InputSpec, find_dataset, make_input
from cnnbench.models import declare, get_model
from cnnbench.models.graph import GraphNetwork
from cnnbench.optimizers import OPTIMIZERS, SCHEDULES, ScheduledSteps
from cnnbench.records.codec import encode
from cnnbench.records.exports import EXPORTS
from cnnbench.records.metric import ALL, HISTORY, METRICS, load_missing_metrics
from cnnbench.records.readers import READERS, read_results
from cnnbench.run.driver.observers.observer import OBSERVERS
from cnnbench.variable_mgr import VariableMgrSpec, all_reduce, create
from cnnbench.variable_mgr.gradients import VariableGradients
from cnnbench.variable_mgr.registry import find_mode

PAGE = (Path(__file__).parents[1] / "docs" / "plugins.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## ([\w -]+)\n.*?^```python\n(.*?)^```", PAGE, re.M | re.S))
KINDS = {
    **{"Network": "model", "Data set": "data set", "Mode": "mode", "Optimizer": "optimizer"},
    **{"All-reduce algorithm": "all-reduce algorithm", "Schedule": "schedule", "Metric": "metric"},
    **{"Reader": "reader", "Export format": "export format", "Observer": "observer"},
}
"""Kinds of objects by heading."""

Load = Callable[[str], str]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """load(HEADING): loads an example as a plug-in that lies in the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(heading: str) -> str:
        path = tmp_path / "example.py"
        path.write_text(EXAMPLES[heading])
        assert plugins.load_plugin_file(str(path))[KINDS[heading]]
        return str(path)

    return write


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_every_kind_has_an_example() -> None:
    assert EXAMPLES.keys() == KINDS.keys()
    assert {*KINDS.values()} == plugins._kinds.keys()


@pytest.mark.parametrize("heading", EXAMPLES)
def test_the_name_is_the_first_argument_of_the_decorator(heading: str, tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(EXAMPLES[heading])
    nodes = ast.walk(ast.parse(EXAMPLES[heading]))
    decorators = [one for node in nodes for one in getattr(node, "decorator_list", ())]
    (name,) = (one.args[0].value for one in decorators if isinstance(one, ast.Call))
    (registered,) = plugins.load_plugin_file(str(path))[KINDS[heading]]
    assert name == registered or name in registered


def test_network(load: Load, rng: np.random.Generator) -> None:
    load("Network")
    model = get_model("averages", "cifar10")
    values = {
        variable.name: rng.normal(size=variable.shape).astype(np.float32)
        for variable in declare(model, 11).variables
    }
    images = rng.normal(size=(4, 32, 32, 3)).astype(np.float32)
    network = GraphNetwork(
        model, 11, lambda variable, dtype: tf.cast(values[variable.name], dtype), training=False
    )
    kernel, bias = sorted(values.values(), key=np.ndim, reverse=True)
    expected = images.mean((1, 2)) @ kernel + bias
    np.testing.assert_allclose(network.forward(tf.constant(images)), expected, rtol=1e-4)


def test_data_set(load: Load, rng: np.random.Generator, tmp_path: Path) -> None:
    load("Data set")
    images, labels = rng.random((5, 32, 32, 3), np.float32), np.arange(5)
    np.savez(tmp_path / "validation.npz", images=images, labels=labels)
    dataset = find_dataset("arrays", None)
    assert dataset.num_examples("validation", str(tmp_path)) == 5
    spec = InputSpec(
        dataset=dataset,
        subset="validation",
        data_dir=str(tmp_path),
        batch_per_device=4,
        num_devices=1,
        image_size=32,
    )
    with make_input(spec, ["CPU:0"]) as source:
        ((first,), (second,)) = source.next(), source.next()
    np.testing.assert_array_equal(first.features, images[:4])
    np.testing.assert_array_equal(first.labels, labels[:4])
    np.testing.assert_array_equal(second.features[:1], images[4:])
    np.testing.assert_array_equal(second.weights, [1, 0, 0, 0])


def test_mode(load: Load, cpu_devices: tuple[str, ...]) -> None:
    load("Mode")
    spec = VariableMgrSpec(
        mode=find_mode("signs"), devices=cpu_devices[:2], cpu_device=cpu_devices[0]
    )
    manager = create(spec, ())
    gradients = np.array([[3, -0.5, 0], [2, 4, -1]], np.float32)
    variables = [tf.Variable(np.zeros(3, np.float32)) for _ in gradients]

    @tf.function(autograph=False)
    def reduce() -> list[tf.Tensor]:
        column = VariableGradients([*map(tf.constant, gradients)], variables)
        _, (reduced,) = manager.preprocess_device_grads([column])
        return reduced.gradients

    for mean in reduce():
        np.testing.assert_array_equal(mean, np.sign(gradients).mean(0))


def test_all_reduce_algorithm(
    load: Load, rng: np.random.Generator, cpu_devices: tuple[str, ...]
) -> None:
    load("All-reduce algorithm")
    devices = cpu_devices[:3]
    algorithm = all_reduce.create("last_device", all_reduce.ReduceContext(devices=devices))
    values = rng.integers(-9, 9, size=(3, 5)).astype(np.float32)
    step = tf.function(lambda *tensors: algorithm(tensors, 0), autograph=False)
    np.testing.assert_array_equal(step(*map(tf.constant, values)), [values.sum(0)] * 3)


def test_optimizer(load: Load, rng: np.random.Generator) -> None:
    load("Optimizer")
    update = OPTIMIZERS.find("heavy_ball").update
    assert update is not None
    weight, gradient, moved = rng.normal(size=(3, 4)).astype(np.float32)
    change, kept = update(
        weight=tf.constant(weight),
        gradient=tf.constant(gradient),
        rate=tf.constant(0.5),
        moved=tf.constant(moved),
        mu=0.75,
    )
    np.testing.assert_allclose(change, 0.75 * moved + 0.5 * gradient, rtol=1e-5)
    np.testing.assert_array_equal(change, kept)


def test_schedule(load: Load) -> None:
    load("Schedule")
    rate = SCHEDULES.find("linear")(ScheduledSteps(8.0, 2, 10, 1.0), Params())
    np.testing.assert_allclose([*map(rate, range(2, 11))], np.linspace(8, 0, 9))


def test_metric(load: Load, runs: Callable[..., Any]) -> None:
    load("Metric")
    seconds = (0.25, 0.5, 0.375)
    assert ALL["step_range"].value(runs(step_seconds=seconds)) == np.ptp(seconds)
    assert ALL["step_range"].about == "Longest time of a timed step minus the shortest"
    assert HISTORY["step_range"] is METRICS["step_range"]


def test_reader(load: Load, tmp_path: Path) -> None:
    load("Reader")
    path = tmp_path / "speeds.csv"
    path.write_text("network,images_per_sec\nresnet50,812.5\nlenet,9000\n")
    records, skipped = read_results(str(path))
    assert skipped == ()
    assert [record.config["model"] for record in records] == ["resnet50", "lenet"]
    speeds = [ALL["throughput"].value(record) for record in records]
    np.testing.assert_array_equal(speeds, np.loadtxt(path, delimiter=",", skiprows=1, usecols=1))


@pytest.fixture
def two_sides(tmp_path: Path, runs: Callable[..., Any]) -> tuple[Path, Path]:
    """Folders with four runs of 80 and of 32 images per second."""
    for side, seconds in (("base", 0.1), ("new", 0.25)):
        (tmp_path / side).mkdir()
        for number in range(4):
            record = runs(step_seconds=(seconds,) * 3)
            (tmp_path / side / f"{number}.json").write_text(json.dumps(encode(record)))
    return tmp_path / "base", tmp_path / "new"


def test_export_format(
    load: Load, two_sides: tuple[Path, Path], call: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("compare", *two_sides, f"--plugin={load('Export format')}")
    out = call(*words, "--format=tsv", code=None).out
    rows = np.array([line.split("\t") for line in out.splitlines()])
    assert rows[0].tolist() == ["series", "metric", "median"]
    speeds = rows[rows[:, 1] == "throughput"][:, 2].astype(float)
    np.testing.assert_allclose(speeds, 8 / np.array([0.1, 0.25]))
    file = tmp_path / "speeds.tsv"
    call(*words, "--format=tsv", "-o", file, code=None)
    assert file.read_text() == out
    err = call(*words, "--format=tsx", code=2).err
    assert re.search(r"--format=tsx: did you mean tsv\? must be one of table, .*tsv", err)


@pytest.mark.usefixtures("quick_start")
def test_observer(load: Load, tmp_path: Path) -> None:
    record = run(plugin=load("Observer"), num_batches=5, num_warmup_batches=0).record
    steps, losses = np.loadtxt(tmp_path / "losses.txt", unpack=True)
    np.testing.assert_array_equal(steps, [2, 4])
    np.testing.assert_allclose(losses, np.array(record.losses)[[1, 3]], rtol=1e-6)
    assert [*OBSERVERS] == ["losses"]


@pytest.mark.usefixtures("quick_start")
def test_a_mistake_in_an_observer_is_one_line(
    load: Load, call: Callable[..., Any], tmp_path: Path
) -> None:
    path = Path(load("Observer"))
    path.write_text(path.read_text().replace("state.loss", "state.lost"))
    err = call(f"--plugin={path}", **TINY, code=4).err
    assert re.search(rf"error: {path}:\d+: Losses\.training_paused\(\): AttributeError", err)
    assert "Traceback" not in err


LOOKUPS: dict[str, Callable[[], Any]] = {
    "Network": lambda: get_model("averages", "cifar10").name == "averages",
    "Data set": lambda: find_dataset("arrays", None).name == "arrays",
    "Mode": lambda: find_mode("signs").name == "signs",
    "All-reduce algorithm": lambda: "last_device" in all_reduce.names(["last_device"]),
    "Optimizer": lambda: OPTIMIZERS.find("heavy_ball").name == "heavy_ball",
    "Schedule": lambda: SCHEDULES.find("linear").name == "linear",
    "Metric": lambda: load_missing_metrics(["step_range"], METRICS) or "step_range" in METRICS,
    "Reader": lambda: READERS.find("speed_table").name == "speed_table",
    "Export format": lambda: callable(EXPORTS.find("tsv")),
}


@pytest.mark.parametrize("heading", LOOKUPS)
def test_an_installed_package_brings_it(heading: str, install: Callable[..., None]) -> None:
    kind: Any = plugins._kinds[KINDS[heading]]
    kind.load_own()
    before = {*kind}
    install(kind.group, EXAMPLES[heading])
    assert LOOKUPS[heading]()
    (name,) = {*kind} - before
    origin = f"entry point probe = cnnbench_provider of group {kind.group}"
    assert plugins.plugin_of_object(kind.kind, name) == origin


def test_kinds_that_flags_name_have_entry_points() -> None:
    kinds: list[Any] = [*plugins._kinds.values()]
    assert all(bool(kind.flag) == bool(kind.group) for kind in kinds)
    assert {kind.kind for kind in kinds if kind.group} == {KINDS[heading] for heading in LOOKUPS}


def test_commands_take_names_of_packages(
    install: Callable[..., None], two_sides: tuple[Path, Path], call: Callable[..., Any]
) -> None:
    install("cnnbench.metrics", EXAMPLES["Metric"])
    assert "step_range" in call("compare", *two_sides, "--metrics=step_range", code=None).out
    assert "step_range" in call("history", two_sides[0], "--metric=step_range").out
