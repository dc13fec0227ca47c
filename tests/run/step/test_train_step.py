"""The traced step: where its operations are, and what it does to the weights."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.data.copies import ReadEvents
from cnnbench.flags import Params
from cnnbench.models import get_model
from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN
from cnnbench.run.driver.build import BuiltRun
from cnnbench.variable_mgr.per_tower import ReplicatedVariableMgr

pytestmark = pytest.mark.usefixtures("quick_start")


def build(**flags: object) -> BuiltRun:
    return BenchmarkCNN(Params(device="cpu", num_warmup_batches=0, **flags)).build()


@pytest.fixture(scope="module")
def lenet() -> Callable[..., BuiltRun]:
    """lenet(mode, devices): a step of two images per device, traced once for all tests.

    Steps may have changed its weights.
    """

    @functools.cache
    def make(mode: str, devices: int, precision: str = "fp32") -> BuiltRun:
        flags = {"num_gpus": devices, "variable_update": mode, "precision": precision}
        return build(model="lenet", batch_size=2, **flags)

    return make


def downstream(graph: tf.Graph, starts: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Everything that uses a value of `starts`, over any number of operations."""
    seen: set[tf.Operation] = set()
    queue = deque(starts)
    while queue:
        operation = queue.popleft()
        if operation in seen:
            continue
        seen.add(operation)
        for output in operation.outputs:
            queue.extend(output.consumers())
    return seen


def tower_operations(built: BuiltRun) -> list[set[tf.Operation]]:
    """Per tower the operations that see that tower's images and no other tower's.

    Found by following the data from the variables that hold the images, so neither
    names nor scopes decide what belongs to a tower.
    """
    graph = built.step.graph
    captured = {id(external): internal for external, internal in graph.captures}
    reached = []
    for images, labels in built.inputs._towers:
        starts = [captured[id(images.handle)].op, captured[id(labels.handle)].op]
        reached.append(downstream(graph, starts) - set(starts))
    return [
        mine - set().union(*(other for other in reached if other is not mine)) for mine in reached
    ]


def updates_of(built: BuiltRun) -> dict[str, list[str]]:
    """Device of every operation that writes a variable, by the variable's canonical name."""
    handles = {id(internal): external for external, internal in built.step.graph.captures}
    names = {
        id(copy.handle): (name, i)
        for name, variable in built.manager.savable_variables().items()
        for i, copy in enumerate(variable.copies)
    }
    found: dict[str, list[str]] = {}
    for operation in built.step.graph.get_operations():
        if operation.type.startswith(("ResourceApply", "Assign")):
            external = handles.get(id(operation.inputs[0]))
            if external is not None and id(external) in names:
                name, copy = names[id(external)]
                found.setdefault(f"{name}@{copy}", []).append(operation.device)
    return found


MODES = ["parameter_server", "replicated", "independent", "distributed_replicated"]
PLUGINS = Path(__file__).parents[2] / "plugins"


@pytest.mark.parametrize(
    ("mode", "devices", "precision"),
    [*((mode, 3, "fp32") for mode in MODES), ("replicated", 2, "bf16")],
)
def test_every_operation_of_a_tower_is_on_its_device(
    mode: str, devices: int, precision: str, cpu_devices: tuple[str, ...], lenet
) -> None:
    built = lenet(mode, devices, precision)
    towers = tower_operations(built)
    assert len(towers) == devices
    results = {tensor.op for tensor in built.step.function.outputs}
    for tower, operations in enumerate(towers):
        updates = {o for o in operations if o.type.startswith(("ResourceApply", "Assign"))}
        compute = operations - updates - results
        kinds = {o.type for o in compute}
        assert {"Conv2D", "Conv2DBackpropFilter", "MatMul", "MaxPoolGrad"} <= kinds
        assert {o.device for o in compute} == {cpu_devices[tower]}


def test_variables_are_updated_where_the_manager_put_them(
    cpu_devices: tuple[str, ...], lenet
) -> None:
    for mode in MODES:
        built = lenet(mode, 3)
        updates = updates_of(built)
        for name, variable in built.manager.savable_variables().items():
            for i, copy in enumerate(variable.copies):
                assert updates[f"{name}@{i}"] == [copy.device], (mode, name)
                if mode != "parameter_server":
                    assert copy.device == cpu_devices[i]
        if mode == "parameter_server":
            homes = {v.primary.device for v in built.manager.savable_variables().values()}
            assert homes == set(cpu_devices[:3])


def test_the_same_global_batch_gives_the_same_weights_for_every_tower_count() -> None:
    results = []
    for mode, devices in (("parameter_server", 1), ("replicated", 4)):
        built = build(
            model="lenet",
            num_gpus=devices,
            batch_size=8 // devices,
            variable_update=mode,
            optimizer="momentum",
        )
        built.step.set_learning_rate(0.01)
        losses = [built.step().loss.numpy() for _ in range(4)]
        weights = {
            name: variable.primary.numpy()
            for name, variable in built.manager.savable_variables().items()
        }
        results.append((losses, weights))
    (expected_losses, expected), (losses, weights) = results
    assert expected_losses[-1] < expected_losses[0]
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    for name, value in weights.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=2e-5, err_msg=name)


def test_replicas_stay_equal_and_independent_towers_do_not(lenet) -> None:
    for mode, equal in (("replicated", True), ("independent", False)):
        built = lenet(mode, 3)
        built.step.set_learning_rate(0.01)
        for _ in range(3):
            built.step().loss.numpy()
        kernel = built.manager.savable_variables()["conv0/kernel"]
        same = [np.array_equal(kernel.copies[0].numpy(), c.numpy()) for c in kernel.copies[1:]]
        assert same == [equal, equal]


def test_moving_averages_follow_the_policy() -> None:
    def averages(**more: object) -> list[np.ndarray]:
        """What a step makes of the same weights and batches, by copy."""
        flags = {"model": "poison", "model_plugin": str(PLUGINS / "poison_plugin.py")}
        built = build(**flags, batch_size=4, num_gpus=2, **more)
        variables = built.manager.savable_variables()
        for name, variable in variables.items():
            variable.assign(start.setdefault(name, variable.primary.numpy()))
        built.step().loss.numpy()
        return [copy.numpy() for copy in variables["batchnorm0/moving_mean"].copies]

    start: dict[str, np.ndarray] = {}
    first, second = averages(variable_update="independent")
    assert not np.allclose(first, second)
    for policy, expected in (("first", first), ("mean", (first + second) / 2)):
        found, _ = averages(variable_update="replicated", bn_stats=policy)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)


def test_a_compiled_step_computes_the_same() -> None:
    losses = []
    for compiled in (False, True):
        built = build(model="trivial", data_name="cifar10", num_gpus=2, xla_compile=compiled)
        built.step.set_learning_rate(0.01)
        losses.append([float(built.step().loss.numpy()) for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert len(set(losses[0])) == 3


def test_reading_the_loss_means_the_step_is_over(lenet) -> None:
    built = lenet("replicated", 3)
    waited_for: set[tf.Operation] = set()
    queue = [next(o for o in built.step.graph.get_operations() if o.name == "result/Identity")]
    assert queue[0] in {i.op for i in built.step.function.outputs[0].op.inputs}
    while queue:
        operation = queue.pop()
        if operation not in waited_for:
            waited_for.add(operation)
            queue.extend(operation.control_inputs)
            queue.extend(i.op for i in operation.inputs)
    operations = built.step.graph.get_operations()
    updates = {o for o in operations if o.type == "ResourceApplyGradientDescent"}
    assert len(updates) == 3 * 8
    assert updates <= waited_for
    # One signal per device, and not one per update.
    result = [operation for operation in operations if operation.name.startswith("result/")]
    signals = {
        before
        for operation in result
        for before in operation.control_inputs
        if before.device != operation.device
    }
    assert len(signals) == 2


@pytest.mark.parametrize("mode", ["parameter_server", "mirrored_strategy"])
def test_a_changing_learning_rate_is_an_argument_of_the_step(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(
        model="trivial",
        data_name="cifar10",
        num_gpus=2,
        batch_size=2,
        variable_update=mode,
        cross_device_ops="reduction_to_one_device" if mode == "mirrored_strategy" else "auto",
    )
    assigned = []
    weights = next(iter(built.manager.savable_variables().values()))
    monkeypatch.setattr(
        type(built.step._counter), "assign", lambda variable, *_, **__: assigned.append(variable)
    )
    moved = []
    for rate in (0.0, 0.03125, 0.0, 0.015625):
        before = weights.primary.numpy()
        built.step.set_learning_rate(rate)
        built.step().loss.numpy()
        moved.append(np.abs(weights.primary.numpy() - before).sum())
    assert not assigned  # which would wait for the step under way on a GPU
    assert moved[0] == moved[2] == 0.0
    assert moved[1] > moved[3] > 0.0
    assert built.step.traces == 1


@pytest.fixture(scope="module")
def forward() -> BuiltRun:
    return build(model="lenet", num_gpus=2, batch_size=2, forward_only=True)


def test_forward_only_has_no_gradients_and_no_updates(forward: BuiltRun) -> None:
    types = {o.type for o in forward.step.graph.get_operations()}
    assert "Conv2D" in types
    assert not [t for t in types if t.startswith(("ResourceApply", "Conv2DBackprop"))]
    result = forward.step()
    top_1, top_5 = (float(result.metrics[name].numpy()) for name in ("top_1", "top_5"))
    assert 0.0 <= top_1 <= top_5 <= 1.0


def test_results_of_a_cpu_are_not_copied(forward: BuiltRun) -> None:
    result = forward.step()
    assert forward.step.on_host(result, ReadEvents(pytest.fail, pytest.fail)) is result


def test_dropout_draws_anew_in_every_step(tmp_path: Path) -> None:
    plugin = tmp_path / "drops.py"
    plugin.write_text(
        "from cnnbench.models import Initializer, LearningRateSpec, Model, register_model\n"
        "class Drops(Model):\n"
        "    name, dataset, image_size, batch_size = 'drops', 'imagenet', 1, 2\n"
        "    learning_rate = LearningRateSpec(0.0)\n"
        "    def build(self, net, images):\n"
        "        ones = net.variable('ones', (net.num_classes,), Initializer.constant(1.0))\n"
        "        x = net.apply(lambda x, v: x[:, 0, 0, :1] * 0.0 + v, images, ones,\n"
        "                      shape=(net.num_classes,))\n"
        "        return net.dropout(x, 0.5)\n"
        "    def loss(self, logits, labels):\n"
        "        import tensorflow as tf\n"
        "        return tf.reduce_sum(logits, axis=1)\n"
        "register_model('drops', 'imagenet', Drops)\n"
    )
    built = build(model="drops", model_plugin=str(plugin), num_gpus=2, weight_decay=0.0)
    losses = [float(built.step().loss) for _ in range(4)]
    assert len(set(losses)) == 4
    assert np.mean(losses) == pytest.approx(1001, rel=0.1)
    built.step.resume(0)
    assert [float(built.step().loss) for _ in range(4)] == losses


def test_paths_are_dropped_by_the_share_of_training_done(tmp_path: Path) -> None:
    plugin = tmp_path / "fading.py"
    plugin.write_text(
        "from cnnbench.models import Initializer, LearningRateSpec, Model, register_model\n"
        "class Fading(Model):\n"
        "    name, dataset, image_size, batch_size = 'fading', 'imagenet', 1, 8\n"
        "    learning_rate = LearningRateSpec(0.0)\n"
        "    def build(self, net, images):\n"
        "        ones = net.variable('ones', (net.num_classes,), Initializer.constant(1.0))\n"
        "        x = net.apply(lambda x, v: x[:, 0, 0, :1] * 0.0 + v, images, ones,\n"
        "                      shape=(net.num_classes,))\n"
        "        return net.drop_path(x, 1e-6, by_progress=True)\n"
        "    def loss(self, logits, labels):\n"
        "        return logits[:, 0]\n"
        "register_model('fading', 'imagenet', Fading)\n"
    )
    built = build(
        model="fading", model_plugin=str(plugin), num_batches=4, weight_decay=0.0, xla_compile=True
    )
    losses = []
    for start in (0, 2, 4, 9):
        built.step.resume(start)
        losses.append(float(built.step().loss))
    # Of eight examples all are kept as they are, some at double value, none from the end on.
    assert losses[0] == 1.0
    assert 0.0 < losses[1] < 2.0
    assert 4.0 * losses[1] == pytest.approx(round(4.0 * losses[1]), rel=1e-5)
    assert losses[2:] == [0.0, 0.0]


def test_sparse_gradients_reach_the_manager_sparse_and_in_their_own_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "rows.py"
    plugin.write_text(
        "from cnnbench.models import Initializer, LearningRateSpec, Model, register_model\n"
        "import tensorflow as tf\n"
        "class Rows(Model):\n"
        "    name, dataset, image_size, batch_size = 'rows', 'imagenet', 1, 2\n"
        "    learning_rate = LearningRateSpec(1.0)\n"
        "    def build(self, net, images):\n"
        "        table = net.variable('table', (5, 1), Initializer.constant(2.0))\n"
        "        def look_up(x, table):\n"
        "            rows = tf.gather(table, [[3, 1]] * x.shape[0])\n"
        "            return tf.tile(tf.reduce_sum(rows, axis=1), [1, net.num_classes])\n"
        "        return net.apply(look_up, images, table, shape=(net.num_classes,))\n"
        "    def loss(self, logits, labels):\n"
        "        return logits[:, 0]\n"
        "register_model('rows', 'imagenet', Rows)\n"
    )
    seen = []
    reduce = ReplicatedVariableMgr.preprocess_device_grads

    def recorded(self: ReplicatedVariableMgr, columns: Any) -> Any:
        seen.extend(gradient for column in columns for gradient in column.gradients)
        return reduce(self, columns)

    monkeypatch.setattr(ReplicatedVariableMgr, "preprocess_device_grads", recorded)
    built = build(
        model="rows",
        model_plugin=str(plugin),
        num_gpus=2,
        variable_update="replicated",
        precision="fp16",
        fp16_loss_scale=64.0,
        weight_decay=0.0,
    )
    assert len(seen) == 2
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in seen)
    assert {gradient.values.dtype for gradient in seen} == {tf.float16}
    built.step.set_learning_rate(0.5)
    built.step().loss.numpy()
    for copy in built.manager.savable_variables()["table"].copies:
        np.testing.assert_allclose(copy.numpy()[:, 0], [2.0, 1.5, 2.0, 1.5, 2.0])


@pytest.mark.parametrize(
    ("automatic", "mode"),
    [(True, "replicated"), (True, "distributed_replicated"), (False, "parameter_server")],
)
def test_what_the_loss_scale_saves_reaches_the_weights(automatic: bool, mode: str) -> None:
    """2e-8 is nothing in fp16; 1024 times as much is something, on the wire as well."""
    built = build(
        model="faint",
        model_plugin=str(PLUGINS / "faint_plugin.py"),
        num_gpus=3,
        variable_update=mode,
        precision="fp16",
        fp16_loss_scale=1024.0,
        fp16_enable_auto_loss_scale=automatic,
        weight_decay=0.0,
    )
    built.step.set_learning_rate(1.0)
    built.step().loss.numpy()
    for copy in built.manager.savable_variables()["weight"].copies:
        np.testing.assert_allclose(copy.numpy(), [[-2e-8] + [0.0] * 6], rtol=2e-3)


def test_smoothed_labels_change_loss_and_gradient_as_computed_by_hand(tmp_path: Path) -> None:
    plugin = tmp_path / "scores.py"
    plugin.write_text(
        "from cnnbench.models import Initializer, LearningRateSpec, Model, register_model\n"
        "import tensorflow as tf\n"
        "class Scores(Model):\n"
        "    name, dataset, image_size, batch_size = 'scores', 'cifar10', 1, 4\n"
        "    learning_rate = LearningRateSpec(1.0)\n"
        "    def build(self, net, images):\n"
        "        made = net.variable('scores', (net.num_classes,), Initializer.constant(0.0))\n"
        "        def tile(x, scores):\n"
        "            return tf.tile(scores[None], [x.shape[0], 1])\n"
        "        return net.apply(tile, images, made, shape=(net.num_classes,))\n"
        "register_model('scores', 'cifar10', Scores)\n"
    )
    scores = np.linspace(-1.0, 1.0, 11)
    chances = np.exp(scores) / np.exp(scores).sum()

    def step(share: float) -> tuple[float, np.ndarray]:
        """The loss and the gradient of the scores, whatever the labels."""
        built = build(
            model="scores",
            model_plugin=str(plugin),
            data_name="cifar10",
            num_gpus=2,
            label_smoothing=share,
            weight_decay=0.0,
        )
        variable = built.manager.savable_variables()["scores"]
        variable.assign(scores.astype(np.float32))
        built.step.set_learning_rate(1.0)
        return float(built.step().loss.numpy()), scores - variable.primary.numpy()

    labels = chances - step(0.0)[1]
    assert labels.sum() == pytest.approx(1.0, abs=1e-6)
    assert labels.max() > 0.1
    targets = 0.75 * labels + 0.25 / 11
    loss, gradient = step(0.25)
    assert loss == pytest.approx(-(targets * np.log(chances)).sum(), rel=1e-5)
    np.testing.assert_allclose(gradient, chances - targets, atol=1e-6)


@pytest.mark.parametrize(
    ("logits", "labels", "top_1", "top_5"),
    [
        # In falling order the classes are 1 6 2 3 0 4 5: 1 is first, 0 is fifth, 4 is sixth.
        ([[0.1, 0.9, 0.3, 0.2, 0.0, -1.0, 0.5]] * 3, [1, 0, 4], [1, 0, 0], [1, 1, 0]),
        # Fewer than five classes.
        ([[0.0, 1.0]] * 2, [0, 1], [0, 1], [1, 1]),
        # A logit that is not a number is never right.
        ([[np.nan, 1.0, 2.0]], [0], [0], [0]),
    ],
)
def test_accuracies(
    logits: list[list[float]], labels: list[int], top_1: list[int], top_5: list[int]
) -> None:
    model = get_model("lenet", "imagenet")
    found = model.metrics(tf.constant(logits), tf.constant(labels, tf.int64))
    assert {name: hits.numpy().tolist() for name, hits in found.items()} == {
        "top_1": top_1,
        "top_5": top_5,
    }
