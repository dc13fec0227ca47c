"""The traced step: where its operations are, and what it does to the weights.

Tests cnnbench/run/step/tower.py and cnnbench/run/step/update.py.
"""

from __future__ import annotations

import functools
from collections import Counter, deque

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from data_sets import write_random_cifar10
from short_runs import RATE, build

from cnnbench.data import make_input
from cnnbench.data.copies import ReadCallbacks
from cnnbench.models import (
    Initializer,
    LearningRateSpec,
    Model,
    graph,
    register_model,
)
from cnnbench.variable_mgr.all_reduce import parse_all_reduce_spec

pytestmark = pytest.mark.usefixtures("quick_start")


@pytest.fixture(scope="module")
def lenet():
    """lenet(mode, devices): a step of two images per device, traced once for all tests.

    Steps may have changed its weights.
    """

    @functools.cache
    def make(mode, devices, precision="fp32"):
        flags = {"num_gpus": devices, "variable_update": mode, "precision": precision}
        return build(model="lenet", batch_size=2, weight_decay=4e-5, **flags)

    return make


def downstream(graph, starts):
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


def tower_operations(built):
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


MODES = ["parameter_server", "replicated", "independent", "distributed_replicated"]


@pytest.mark.parametrize(
    ("mode", "devices", "precision"),
    slow_if(
        lambda case: case[0] in ("independent", "distributed_replicated"),
        [*((mode, 2, "fp32") for mode in MODES), ("replicated", 2, "bf16")],
    ),
)
def test_every_operation_of_a_tower_is_on_its_device(mode, devices, precision, cpu_devices, lenet):
    built = lenet(mode, devices, precision)
    towers = tower_operations(built)
    assert len(towers) == devices
    results = {tensor.op for tensor in built.step.function.concrete.outputs}
    for tower, operations in enumerate(towers):
        updates = {o for o in operations if o.type.startswith(("ResourceApply", "Assign"))}
        compute = operations - updates - results
        kinds = {o.type for o in compute}
        assert {"Conv2D", "Conv2DBackpropFilter", "MatMul", "MaxPoolGrad"} <= kinds
        assert {o.device for o in compute} == {cpu_devices[tower]}


@pytest.mark.slow
def test_moving_averages_follow_the_policy():
    def averages(**more):
        """What a step makes of the same weights and batches, by copy."""
        built = build("poison", batch_size=4, num_gpus=2, **more)
        variables = built.manager.savable_variables()
        for name, variable in variables.items():
            variable.assign(start.setdefault(name, variable.primary.numpy()))
        built.step(RATE).loss.numpy()
        return [copy.numpy() for copy in variables["batchnorm0/moving_mean"].copies]

    start: dict[str, np.ndarray] = {}
    first, second = averages(variable_update="independent")
    assert not np.allclose(first, second)
    for policy, expected in (("first", first), ("mean", (first + second) / 2)):
        found, _ = averages(variable_update="replicated", bn_stats=policy)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_a_compiled_step_computes_the_same():
    losses = []
    for compiled in (False, True):
        built = build(model="trivial", data_name="cifar10", xla_compile=compiled)
        losses.append([float(built.step(0.01).loss.numpy()) for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert len(set(losses[0])) == 3


def waited_for(operations):
    """The operations, and all operations that they depend on."""
    seen: set[tf.Operation] = set()
    queue = list(operations)
    while queue:
        operation = queue.pop()
        if operation not in seen:
            seen.add(operation)
            queue += [*operation.control_inputs, *(tensor.op for tensor in operation.inputs)]
    return seen


def test_reading_the_loss_means_the_step_is_over(lenet):
    step = lenet("replicated", 2).step
    operations = step.graph.get_operations()
    loss = next(o for o in operations if o.name == "result/Identity")
    assert loss in {i.op for i in step.function.concrete.outputs[0].op.inputs}
    updates = {o for o in operations if o.type == "If"}  # of all variables of a tower
    assert len(updates) == 2
    assert updates <= waited_for([loss])
    # One signal per device, and not one per update.
    result = [operation for operation in operations if operation.name.startswith("result/")]
    signals = {
        before
        for operation in result
        for before in operation.control_inputs
        if before.device != operation.device
    }
    assert len(signals) == 1


@pytest.mark.parametrize(
    ("spec", "collectives"),
    slow_if(
        [("copy/collective", 8 * 2)], [("collective/xring", 8 * 4), ("copy/collective", 8 * 2)]
    ),
)
def test_no_part_of_a_collective_is_pruned(spec, collectives):
    """The step would wait for a pruned part forever."""
    reducing = {"all_reduce_spec": parse_all_reduce_spec(spec), "all_reduce_group_size": 2}
    flags = {"num_gpus": 4, "variable_update": "replicated", **reducing}
    step = build(model="lenet", batch_size=2, **flags).step
    found = {o for o in step.graph.get_operations() if o.type == "CollectiveReduce"}
    assert len(found) == collectives
    assert found <= waited_for(tensor.op for tensor in step.function.concrete.outputs)


@pytest.mark.parametrize(
    "mode", slow_if(["mirrored_strategy"], ["parameter_server", "mirrored_strategy"])
)
def test_a_changing_learning_rate_is_an_argument_of_the_step(mode, monkeypatch):
    built = build(
        model="trivial",
        data_name="cifar10",
        num_gpus=2,
        batch_size=2,
        variable_update=mode,
        cross_device_ops="reduction_to_one_device" if mode == "mirrored_strategy" else "auto",
    )
    assigned = []
    *_, weights = built.manager.savable_variables().values()
    monkeypatch.setattr(
        type(built.step._counter), "assign", lambda variable, *_, **__: assigned.append(variable)
    )
    moved = []
    for rate in (0.0, 0.03125, 0.0, 0.015625):
        before = weights.primary.numpy()
        built.step(rate).loss.numpy()
        moved.append(np.abs(weights.primary.numpy() - before).sum())
    assert not assigned  # which would wait for the step under way on a GPU
    assert moved[0] == moved[2] == 0.0
    assert moved[1] > moved[3] > 0.0
    assert built.step.function.traces == 1


def test_the_loss_of_a_step_has_the_l2_loss_of_its_weights_once():
    first, decayed = (
        float(build(model="oracle", num_gpus=2, weight_decay=decay).step(0.0).loss)
        for decay in (0.0, 0.5)
    )
    assert decayed - first == pytest.approx(0.5 * (1.0**2 + 2.0**2) / 2, rel=1e-5)


def test_forward_only_has_no_gradients_and_no_updates():
    step = build(model="lenet", num_gpus=2, batch_size=2, forward_only=True).step
    types = {o.type for o in step.graph.get_operations()}
    assert "Conv2D" in types
    assert not [t for t in types if t.startswith(("ResourceApply", "Conv2DBackprop"))]
    result = step(RATE)
    top_1, top_5 = (float(result.metrics[name].numpy()) for name in ("top_1", "top_5"))
    assert 0.0 <= top_1 <= top_5 <= 1.0
    # Nothing is copied from a CPU.
    assert step.copy_result_to_host(result, ReadCallbacks(pytest.fail, pytest.fail)) is result


def test_a_forward_pass_folds_batch_norm_to_the_same_loss(monkeypatch):
    def step():
        """The loss with values as of a checkpoint, which comes after the trace; the operations."""
        built = build(model="classifier", forward_only=True)
        generator = np.random.default_rng(1)
        for variable in built.manager.savable_variables().values():
            variable.assign(generator.uniform(0.5, 1.5, variable.shape).astype(np.float32))
        kinds = Counter(o.type for o in built.step.graph.get_operations())
        return float(built.step(RATE).loss.numpy()), kinds

    loss, kinds = step()
    monkeypatch.setattr(graph._FoldableConvolution, "folding_saves_time", False)
    expected, plain = step()
    assert kinds != plain
    assert loss == pytest.approx(expected, rel=1e-4)


class Drops(Model):
    """Logits of one and their mean as loss, whatever the image."""

    name, dataset, image_size, batch_size = "drops", "imagenet", 1, 8
    learning_rate = LearningRateSpec(0.0)

    def build(self, net, images):
        ones = net.variable("ones", (net.num_classes,), Initializer.constant(1.0))
        shape = (net.num_classes,)
        x = net.apply(lambda x, v: x[:, 0, 0, :1] * 0.0 + v, images, ones, shape=shape)
        return self.drop(net, x)

    def drop(self, net, x):
        return net.dropout(x, 0.5)

    def loss(self, logits, labels):
        return tf.reduce_mean(logits, axis=1)


class Fades(Drops):
    name = "fades"

    def drop(self, net, x):
        return net.drop_path(x, 1e-6, by_progress=True)


class Pair(Drops):
    """Two outputs, of one and of two."""

    name = "pair"

    def drop(self, net, x):
        return {"one": x, "two": net.add(x, x)}

    def loss(self, outputs, labels):
        return tf.reduce_mean(outputs["one"], axis=1)

    def metrics(self, outputs, labels):
        return super().metrics(outputs["one"], labels)


register_model("pair", "imagenet", Pair)
register_model("drops", "imagenet", Drops)
register_model("fades", "imagenet", Fades)


@pytest.mark.parametrize(("model", "total"), [("drops", 1.0), ("pair", 3.0)])
def test_the_loss_of_a_forward_pass_needs_every_output(model, total):
    built = build(model=model, data_name="imagenet", forward_only=True)
    assert float(built.step(RATE).loss.numpy()) == total


def test_dropout_draws_anew_in_every_step():
    built = build(model="drops", num_gpus=2, weight_decay=0.0)
    losses = [float(built.step(0.0).loss) for _ in range(4)]
    assert len(set(losses)) == 4
    assert np.mean(losses) == pytest.approx(1, rel=0.1)
    built.step.resume(0)
    assert [float(built.step(0.0).loss) for _ in range(4)] == losses


def test_paths_are_dropped_by_the_share_of_training_done():
    built = build(model="fades", num_batches=4, weight_decay=0.0)
    losses = []
    for start in (0, 2, 4, 9):
        built.step.resume(start)
        losses.append(float(built.step(0.0).loss))
    # Of eight examples all are kept as they are, some at double value, none from the end on.
    assert losses[0] == 1.0
    assert 0.0 < losses[1] < 2.0
    assert 4.0 * losses[1] == pytest.approx(round(4.0 * losses[1]), rel=1e-5)
    assert losses[2:] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("automatic", "mode"),
    slow_if(
        [(True, "distributed_replicated")],
        [(True, "replicated"), (True, "distributed_replicated"), (False, "parameter_server")],
    ),
)
def test_what_the_loss_scale_saves_reaches_the_weights(automatic, mode):
    """2e-8 is nothing in fp16; 1024 times as much is something, on the wire as well."""
    built = build(
        "faint",
        num_gpus=2,
        variable_update=mode,
        precision="fp16",
        fp16_loss_scale=1024.0,
        fp16_enable_auto_loss_scale=automatic,
        weight_decay=0.0,
    )
    built.step(1.0).loss.numpy()
    for copy in built.manager.savable_variables()["weight"].copies:
        np.testing.assert_allclose(copy.numpy(), [[-2e-8] + [0.0] * 6], rtol=2e-3)


class Scores(Model):
    """Its logits are a variable."""

    name, dataset, image_size, batch_size = "scores", "cifar10", 1, 4
    learning_rate = LearningRateSpec(1.0)

    def build(self, net, images):
        scores = net.variable("scores", (net.num_classes,), Initializer.constant(0.0))

        def tile(x, scores):
            return tf.tile(scores[None], [x.shape[0], 1])

        return net.apply(tile, images, scores, shape=(net.num_classes,))


register_model("scores", "cifar10", Scores)


def test_smoothed_labels_change_loss_and_gradient_as_computed_by_hand():
    scores = np.linspace(-1.0, 1.0, 11)
    chances = np.exp(scores) / np.exp(scores).sum()

    def step(share):
        """The loss and the gradient of the scores, whatever the labels."""
        flags = {"data_name": "cifar10", "num_gpus": 2, "weight_decay": 0.0}
        built = build(model="scores", label_smoothing=share, **flags)
        variable = built.manager.savable_variables()["scores"]
        variable.assign(scores.astype(np.float32))
        return float(built.step(1.0).loss.numpy()), scores - variable.primary.numpy()

    labels = chances - step(0.0)[1]
    assert labels.sum() == pytest.approx(1.0, abs=1e-6)
    assert labels.max() > 0.1
    targets = 0.75 * labels + 0.25 / 11
    loss, gradient = step(0.25)
    assert loss == pytest.approx(-(targets * np.log(chances)).sum(), rel=1e-5)
    np.testing.assert_allclose(gradient, chances - targets, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [1, 2])
def test_mixed_labels_change_loss_gradient_and_accuracy_as_computed_by_hand(passes, tmp_path):
    write_random_cifar10(tmp_path, train=40, test=20)
    scores = np.roll(np.linspace(-1.0, 1.0, 11), 4)  # class 3 has the largest
    log_chances = scores - np.log(np.exp(scores).sum())
    own = {"data_dir": str(tmp_path), "data_name": "cifar10", "num_gpus": 2, "weight_decay": 0.0}
    own |= {"mixup_alpha": 0.4, "cutmix_alpha": 1.0, "print_training_accuracy": True}
    own["gradient_accumulation_steps"] = passes
    built = build(model="scores", label_smoothing=0.25, image_size=8, **own)
    with make_input(built.inputs.spec, built.inputs.devices) as source:
        batches = [b for _ in range(built.inputs.spec.passes) for b in source.next()]
    targets, hits = [], []
    for batch in batches:
        share = batch.labels["own_share"].numpy()[:, None]
        one_hot = [np.eye(11)[batch.labels[n].numpy()] for n in ("label", "other_label")]
        mixed = share * one_hot[0] + (1 - share) * one_hot[1]
        hits.append(mixed[:, 3].mean())
        targets.append((0.75 * mixed + 0.25 / 11).mean(axis=0))
    target = np.mean(targets, axis=0)
    variable = built.manager.savable_variables()["scores"]
    variable.assign(scores.astype(np.float32))
    result = built.step(1.0)
    assert float(result.loss.numpy()) == pytest.approx(-(target * log_chances).sum(), rel=1e-5)
    assert float(result.metrics["top_1"].numpy()) == pytest.approx(np.mean(hits), abs=1e-6)
    gradient = scores - variable.primary.numpy()
    np.testing.assert_allclose(gradient, np.exp(log_chances) - target, atol=1e-6)
    built.close()
