"""--export_dir: what is written serves by itself and says what an evaluation says.

Tests cnnbench/run/driver/saved_model.py.
"""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from data_sets import WEATHER
from networks import cut, forward
from short_runs import NETWORKS, command

from cnnbench import BenchmarkCNN, Params
from cnnbench.data.dataset import find_dataset
from cnnbench.models import registry
from cnnbench.models.elements import elements_of_role, group_values, resolve_sizes
from cnnbench.models.networks.nasnet import NasNet

pytestmark = pytest.mark.usefixtures("quick_start")

ROOT = Path(__file__).parents[3]
CLASSIFIER = {
    "plugin": NETWORKS,
    "model": "classifier",
    "data_name": "cifar10",
    "device": "cpu",
    "num_batches": 3,
}


def run(*flags, **own):
    return command(*flags, **{**CLASSIFIER, "num_warmup_batches": 0, **own})


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder for the export that all tests share."""
    return tmp_path_factory.mktemp("first") / "export"


@pytest.fixture
def exported(first, tmp_path, quick_start):
    """A folder with what a run of one step has exported."""
    if not first.exists():
        assert run(export_dir=first, num_batches=1) == 0
    return Path(shutil.copytree(first, tmp_path / "export"))


def evaluation_logits(images, **flags):
    """What an evaluation of the newest checkpoint computes of some images."""
    built = BenchmarkCNN(Params.from_dict({**CLASSIFIER, "eval": True, **flags})).build()
    evaluator = built.evaluator
    built.checkpoints.restore(f"{flags['train_dir']}/model.ckpt-3")

    @tf.function(autograph=False)
    def logits(images):
        return forward(
            evaluator._model,
            evaluator._plan.network.spec.num_classes,
            images,
            lambda spec, dtype: built.manager.read(0, spec.name, dtype),
            training=False,
            compute_dtype=evaluator._plan.numerics.dtype,
        ).outputs

    return logits(images).numpy()


@pytest.mark.parametrize(
    ("mode", "precision"),
    slow_if([("independent", "fp32")], [("parameter_server", "bf16"), ("independent", "fp32")]),
)
def test_a_saved_model_says_what_the_evaluation_says(mode, precision, tmp_path):
    flags = {"variable_update": mode, "precision": precision, "train_dir": str(tmp_path / "train")}
    made = tmp_path / "deep" / "export"
    more = {"num_gpus": 2, "optimizer": "momentum", "init_learning_rate": 0.1}
    assert run(**flags, **more, export_dir=made) == 0
    images = tf.random.stateless_uniform([5, 8, 8, 3], [1, 2], -1.0, 1.0)
    served = tf.saved_model.load(str(made)).signatures["serving_default"](image=images)
    expected = evaluation_logits(images, **flags)
    # What is fused, and so not rounded, may differ.
    near = {"rtol": 1e-5, "atol": 1e-6} if precision == "fp32" else {"rtol": 2e-2, "atol": 4e-3}
    np.testing.assert_allclose(served["logits"], expected, **near)
    assert np.ptp(expected, axis=0).max() > 1e-2  # images make a difference
    # An evaluation exports what it has evaluated.
    evaluated = {**flags, "num_eval_batches": 1, "export_dir": tmp_path / "again"}
    assert run("--eval", **evaluated) == 0
    again = tf.saved_model.load(str(tmp_path / "again")).signatures["serving_default"](image=images)
    np.testing.assert_array_equal(served["logits"], again["logits"])
    chances = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(served["probabilities"], chances, rtol=1e-2)
    # One copy of the variables and nothing else.
    assert [path.name for path in made.parent.iterdir()] == ["export"]
    stored = tf.train.list_variables(str(made / "variables" / "variables"))
    names = [
        name.split("/")[1].replace(".S", "/") for name, _ in stored if "VARIABLE_VALUE" in name
    ]
    assert sorted(names) == sorted(
        [
            *("conv0/kernel", "conv1/kernel", "conv1/bias", "affine0/kernel", "affine0/bias"),
            *(f"batchnorm0/{part}" for part in ("gamma", "beta", "moving_mean", "moving_variance")),
        ]
    )
    graph = tf.saved_model.load(str(made)).signatures["serving_default"].graph.as_graph_def()
    kinds = {node.op for function in graph.library.function for node in function.node_def}
    assert {"Conv2D", "Softmax"} <= kinds
    assert not kinds & {"PyFunc", "EagerPyFunc", "AssignVariableOp", "IteratorGetNext"}


@pytest.mark.slow
def test_an_export_takes_the_place_of_an_older_one(exported, tmp_path):
    def logits():
        function = tf.saved_model.load(str(exported)).signatures["serving_default"]
        return function(image=tf.ones([1, 8, 8, 3]))["logits"].numpy()

    before = logits()
    assert run(export_dir=exported, tf_random_seed=2, num_batches=1) == 0
    assert not np.allclose(before, logits())
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize("failing", slow_if([1], [1, 2]))
def test_an_older_one_is_never_lost(failing, exported, tmp_path, monkeypatch, capsys):
    rename, calls = os.rename, []

    def limited(old, new):
        if str(new) == str(exported):
            calls.append(old)
            if len(calls) <= failing:
                raise PermissionError(errno.EACCES, "Permission denied", str(old), None, str(new))
        rename(old, new)

    monkeypatch.setattr(os, "rename", limited)
    assert run(export_dir=exported, num_batches=1) == 4
    (kept,) = tmp_path.rglob("saved_model.pb")
    assert (kept.parent == exported) == (failing == 1)
    assert failing == 1 or str(kept.parent) in capsys.readouterr().err
    tf.saved_model.load(str(kept.parent))


def test_files_of_a_user_beside_an_export_are_not_removed(exported, capsys):
    (exported / "work").mkdir()
    (exported / "work" / "thesis").write_text("mine")
    assert run(export_dir=exported, num_batches=1) == 2
    reason = "contains work, which is not part of a SavedModel; name another folder"
    assert capsys.readouterr().err.endswith(f"--export_dir={exported}: {reason}\n")
    assert (exported / "work" / "thesis").read_text() == "mine"


@pytest.mark.slow
def test_several_inputs_and_outputs_keep_their_names(tmp_path):
    assert command(**WEATHER, num_batches=1, export_dir=tmp_path / "export") == 0
    function = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    made = function(hours=tf.ones([3, 24, 3]), station=tf.constant([1, 2, 3], tf.int64))
    assert {name: tuple(value.shape) for name, value in made.items()} == {
        "rain": (3, 2),
        "degrees": (3, 1),
    }


@pytest.mark.parametrize(
    ("name", "dataset"),
    slow_if(
        lambda case: case[0] in ("swin_t", "nasnet"),
        [
            *(("vit_b16", "imagenet"), ("swin_t", "imagenet")),
            *(("nasnet", "cifar10"), ("ncf", "ratings")),
        ],
    ),
)
def test_networks_of_every_kind_can_be_traced_for_any_number_of_examples(name, dataset):
    model, classes = cut(registry.get_model(name, dataset)), find_dataset(dataset, None).num_classes
    if isinstance(model, NasNet):
        model.size = model.size._replace(cells=3, filters=8)
    features = elements_of_role(resolve_sizes(model.elements, model, classes), "feature")
    signature = {one.name: tf.TensorSpec([None, *one.sizes], one.dtype) for one in features}

    @tf.function(autograph=False)
    def serve(**given):
        return forward(
            model,
            classes,
            group_values(features, "feature", given),
            lambda spec, dtype: tf.zeros(spec.shape, dtype),  # the graph needs no values
            training=False,
        ).outputs

    assert serve.get_concrete_function(**signature).structured_outputs.shape[0] is None


def test_a_network_that_needs_a_fixed_batch_is_named(tmp_path, capsys):
    plugin = tmp_path / "fixed.py"
    plugin.write_text(
        "from cnnbench.models import LearningRateSpec, Model, register_model\n"
        "import tensorflow as tf\n"
        "class Fixed(Model):\n"
        "    name, dataset, image_size, batch_size = 'fixed', 'cifar10', 4, 2\n"
        "    learning_rate = LearningRateSpec(1.0)\n"
        "    def build(self, net, images):\n"
        "        add = lambda x: x + tf.zeros([x.shape[0], 4, 4, 3])\n"
        "        return net.logits(net.flatten(net.apply(add, images, shape=(4, 4, 3))))\n"
        "register_model('fixed', 'cifar10', Fixed)\n"
    )
    assert run(plugin=plugin, model="fixed", export_dir=tmp_path / "export") == 4
    error = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "--model=fixed cannot be exported with a variable number of examples: " in error[0]
    assert not (tmp_path / "export").exists()
