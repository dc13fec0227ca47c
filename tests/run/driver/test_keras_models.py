"""Keras models: equal to Keras' own training in every mode; what they declare; what is refused.

Tests models/keras_build.py and models/keras_declaration.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from short_runs import build, run

from cnnbench import Params
from cnnbench.errors import UsageError
from cnnbench.models import declare, get_model, registry
from cnnbench.models.declaration import scope_flops
from cnnbench.models.networks.keras import APPLICATIONS
from cnnbench.models.registry import load_plugin
from cnnbench.plan import make_plan

pytestmark = pytest.mark.usefixtures("quick_start")

ROOT = Path(__file__).parents[3]
PLUGIN = str(ROOT / "tests" / "plugins" / "keras_plugin.py")
SEED = 1234
RATE = 0.05
STEPS = 3
FLAGS = {
    "plugin": PLUGIN,
    "data_name": "cifar10",
    "batch_size": 3,
    "init_learning_rate": RATE,
    "tf_random_seed": SEED,
}


@pytest.fixture
def module():
    """The plug-in's module."""
    load_plugin(PLUGIN)
    return sys.modules["cnnbench_plugin_keras_plugin"]


def made(make):
    """A new Keras model with the initial values of a run."""
    import keras  # here, as it takes long and few tests need it

    keras.utils.set_random_seed(SEED)
    return make()


def batches_of(built):
    """Images and labels of each tower, as the network gets them."""
    batches = built.inputs.next()
    towers = [
        built.inputs.get_tower_batch(t, batches)
        for t in range(len(built.devices.job.own_tower_devices))
    ]
    return [(tower.features, tower.labels) for tower in towers]


def reference(make, batches, policy="first"):
    """Losses of steps of SGD on the mean over towers, and the final values, by Keras alone."""
    import keras

    model = made(make)
    trained = [tf.identity(v.value) for v in model.trainable_variables]
    others = [tf.identity(v.value) for v in model.non_trainable_variables]
    losses = []
    for _ in range(STEPS):
        results = []
        for images, labels in batches:
            with tf.GradientTape() as tape:
                tape.watch(trained)
                outputs, states, added = model.stateless_call(
                    trained, others, images, training=True, return_losses=True
                )
                # The models end in a softmax.
                entropy = keras.losses.sparse_categorical_crossentropy(labels, outputs)
                loss = tf.reduce_mean(entropy) + sum(added)
            results.append((loss, tape.gradient(loss, trained), states))
        losses.append(np.mean([loss.numpy() for loss, _, _ in results]))
        means = [tf.add_n(list(g)) / len(g) for g in zip(*(r[1] for r in results), strict=True)]
        trained = [v - RATE * mean for v, mean in zip(trained, means, strict=True)]
        others = results[0][2]
        if policy == "mean":
            rows = zip(*(states for _, _, states in results), strict=True)
            others = [
                tf.add_n(list(row)) / len(row) if row[0].dtype.is_floating else row[0]
                for row in rows
            ]
    return losses, [v.numpy() for v in (*trained, *others)]


WAYS = [
    {"variable_update": "parameter_server", "keras_layers": "own"},
    {"variable_update": "parameter_server"},
    {"variable_update": "mirrored_strategy", "num_gpus": 2, "keras_layers": "own"},
    {"variable_update": "replicated", "num_gpus": 2, "bn_stats": "mean", "keras_layers": "own"},
]


@pytest.mark.parametrize("flags", slow_if(WAYS[1:], WAYS), ids=str)
def test_runs_train_as_keras_does(flags, module):
    built = build("every_kind", **FLAGS, **flags)
    losses, values = reference(module.every_kind, batches_of(built), flags.get("bn_stats", "first"))
    np.testing.assert_allclose([built.step(RATE).loss for _ in range(STEPS)], losses, rtol=2e-5)
    variables = built.manager.savable_variables()
    assert len(variables) == len(values)
    for (name, variable), expected in zip(variables.items(), values, strict=True):
        found = variable.primary.numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "made_by"), [("by_subclassing", "Inner"), ("untold", "Untold")])
def test_a_model_by_subclassing_trains_as_fit_trains_it(name, made_by, module):
    import keras

    built = build(name, **FLAGS)
    ((images, labels),) = batches_of(built)
    model = made(getattr(module, made_by))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    history = model.fit(images, labels, batch_size=3, epochs=STEPS, shuffle=False, verbose=0)
    ours = [built.step(RATE).loss for _ in range(STEPS)]
    np.testing.assert_allclose(ours, history.history["loss"], rtol=2e-5)


CHANNELS_FIRST = """
import keras
from cnnbench.models import register_keras_model

def first():
    convolution = keras.layers.Conv2D(4, 3, strides=4, data_format="channels_first")
    ends = [keras.layers.Flatten(), keras.layers.Dense(11, activation="softmax")]
    return keras.Sequential(
        [keras.Input((32, 32, 3)), keras.layers.Permute((3, 1, 2)), convolution, *ends]
    )

register_keras_model("first", first, dataset="cifar10")
"""


@pytest.mark.slow
def test_a_layer_with_channels_first_trains_as_keras_does(tmp_path):
    path = tmp_path / "channels_first.py"
    path.write_text(CHANNELS_FIRST)
    built = build("first", **{**FLAGS, "plugin": str(path)})
    make = sys.modules["cnnbench_plugin_channels_first"].first
    losses, _ = reference(make, batches_of(built))
    np.testing.assert_allclose([built.step(RATE).loss for _ in range(STEPS)], losses, rtol=2e-5)
    del registry.MODELS["cifar10", "first"]


def test_declarations_have_the_names_counts_and_flops_of_keras(module):
    spec = declare(get_model("every_kind", "cifar10"), 11)
    model = made(module.every_kind)
    trained = sum(int(np.prod(v.shape)) for v in model.trainable_weights)
    assert spec.trainable_parameters == trained
    assert spec.parameters + spec.statistics == model.count_params()
    kinds = {v.name: (v.trainable, v.weight_decay, v.statistic, v.dtype) for v in spec.variables}
    assert kinds["norm/gamma"] == (True, False, False, "float32")
    assert kinds["norm/moving_mean"] == (False, False, True, "float32")
    assert kinds["narrow/kernel"] == (False, False, False, "float32")  # frozen
    assert kinds["shared/kernel"] == (True, True, False, "float32")
    assert kinds["seed_generator/seed_generator_state"] == (False, False, False, "int64")
    flops = scope_flops(get_model("every_kind", "cifar10"), 11, training=True)
    first = 2 * 8 * 8 * 6 * 27
    assert flops["conv2d"] == (first, 0, first)  # of images there is no gradient
    assert flops["narrow"] == (2 * 288 * 16, 2 * 288 * 16, 0)
    assert flops["shared"] == (4 * 16 * 16, 4 * 16 * 16, 4 * 16 * 16)  # called twice
    assert flops["norm"] == (0, 0, 0)
    assert spec.forward_flops_per_image == sum(one.forward for one in flops.values())


@pytest.mark.slow
def test_names_do_not_depend_on_what_the_process_has_built(module):
    names = [v.name for v in declare(get_model("every_kind", "cifar10"), 11).variables]
    module.every_kind()
    assert names == [v.name for v in declare(get_model("every_kind", "cifar10"), 11).variables]


@pytest.mark.slow
def test_independent_towers_draw_their_own_values():
    built = build("every_kind", **FLAGS, num_gpus=2, variable_update="independent")
    for name in ("shared/kernel", "seed_generator/seed_generator_state"):
        one, other = (v.numpy() for v in built.manager.savable_variables()[name].copies)
        assert (one != other).any(), name


@pytest.mark.slow
def test_another_precision_computes_about_the_same_loss(module):
    import keras

    built = build("plain", **FLAGS, precision="fp16", fp16_vars=True)
    ((images, labels),) = batches_of(built)
    logits = made(module.plain)(tf.cast(images, tf.float32), training=True)
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    assert float(built.step(RATE).loss) == pytest.approx(np.mean(losses), rel=0.02)


@pytest.mark.slow
def test_synchronised_batch_norm_has_the_moments_of_all_towers(module):
    import keras

    split = build("every_kind", **FLAGS, num_gpus=2, variable_update="replicated", bn_stats="sync")
    whole = [tf.concat(parts, 0) for parts in zip(*batches_of(split), strict=True)]
    model = made(module.every_kind)
    with keras.StatelessScope() as scope:
        model(whole[0], training=True)
    split.step(RATE)
    norm = model.get_layer("norm")
    variables = split.manager.savable_variables()
    for name, one in (("mean", norm.moving_mean), ("variance", norm.moving_variance)):
        found = variables[f"norm/moving_{name}"].primary.numpy()
        np.testing.assert_allclose(found, scope.get_current_value(one).numpy(), rtol=1e-5)


@pytest.mark.slow
def test_a_checkpoint_of_one_mode_is_resumed_in_another_and_evaluated(tmp_path):
    common = {**FLAGS, "model": "every_kind", "train_dir": str(tmp_path), "num_batches": 2}
    run(**common, num_gpus=2, variable_update="replicated")
    common |= {"num_batches": 6, "eval_during_training_every_n_steps": 8, "num_eval_batches": 1}
    resumed = run(**common, variable_update="parameter_server").record
    assert len(resumed.losses) < 6
    (evaluation,) = resumed.evaluations
    assert evaluation.global_step == 8
    assert np.isfinite(evaluation.loss)


@pytest.fixture
def saved(tmp_path, module):
    """A .keras file of the model, and its weights."""
    model = made(module.headed)
    model.save(tmp_path / "model.keras")
    return str(tmp_path / "model.keras"), model.get_weights()


@pytest.mark.parametrize("precision", slow_if(["bf16"], ["fp32", "bf16"]))
def test_a_file_begins_with_its_weights(precision, saved):
    path, weights = saved
    flags = {**FLAGS, "precision": precision, "tf_random_seed": 5}
    built = build(f"keras:{path}", **flags)
    found = [v.primary.numpy() for v in built.manager.savable_variables().values()]
    for one, weight in zip(found, weights, strict=True):
        np.testing.assert_array_equal(one, weight)
    assert np.isfinite(built.step(RATE).loss)


def test_the_code_of_a_file_is_not_run(tmp_path):
    import keras

    images = keras.Input((32, 32, 3))
    unsafe = keras.layers.Lambda(lambda x: x[:, 0, 0, :])
    keras.Model(images, unsafe(images)).save(tmp_path / "unsafe.keras")
    with pytest.raises(UsageError, match=r"unsafe\.keras: cannot be loaded in safe mode"):
        get_model(f"keras:{tmp_path / 'unsafe.keras'}", "cifar10")


def test_the_applications_are_those_of_keras():
    import keras

    theirs = {name for name in dir(keras.applications) if name[0].isupper()}
    assert set(APPLICATIONS) == theirs
    assert {f"keras:{name}" for name in theirs} < set(registry.all_model_names())


def test_images_and_labels_of_an_application_are_those_that_keras_prepares(monkeypatch):
    import keras

    small = lambda *, weights, classifier_activation: keras.Sequential(  # noqa: E731
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(1000)]
    )
    small.__module__ = "keras.src.applications.densenet"
    monkeypatch.setattr(keras.applications, "DenseNet121", small)
    model = get_model("keras:DenseNet121", "imagenet")
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.float32)
    example = {"image": tf.constant(image / 127.5 - 1.0), "label": tf.constant(1, tf.int64)}
    prepared = model.preprocess(example, None, training=True)
    expected = keras.applications.densenet.preprocess_input(image.copy())
    np.testing.assert_allclose(prepared["image"], expected, atol=1e-4)
    assert prepared["label"] == 0  # 0 in the files of ImageNet is no class
    spec = declare(model, 1001)
    assert (spec.num_classes, spec.elements[0].shape) == (1000, (8, 8, 3))


REFUSED = {
    "compiled": "the Keras model has an optimizer; do not call compile()",
    "no_model": "build must return a keras.Model, not Dense",
    "ragged": "layer photos takes a RaggedTensor or SparseTensor; use a dense tensor",
    "late": r"layer slow \(LateVariable\) creates a variable when it is called",
    "flat": r"the Keras model maps \(7,\) to \(11,\)",
    "oblong": "the Keras model takes images of 32 x 16",
    "shapeless": "the Keras model has no input shape; give its image_size",
    "broken": "ZeroDivisionError",
}


@pytest.mark.parametrize(
    "name", slow_if(lambda name: name not in ("compiled", "flat", "broken"), REFUSED)
)
def test_other_models_are_refused_in_one_line(name, module):
    with pytest.raises(UsageError, match=REFUSED[name]) as refused:
        get_model(name, "cifar10")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"data_format": "NCHW"}, "--data_format=NCHW: --model=plain has only NHWC layers"),
        (
            {"keras_layers": "own", "bn_stats": "sync", "num_gpus": 2},
            "--keras_layers=own: Keras' own batch norm uses the moments of one device",
        ),
        (
            {"precision": "int8", "forward_only": True, "freeze_when_forward_only": True},
            "--precision=int8: Keras models run in fp32, bf16 and fp16",
        ),
        ({"model": "trivial", "keras_layers": "own"}, "--model=trivial is not a Keras model"),
        ({"model": "keras:no.keras"}, "--model=keras:no.keras: there is no such file"),
        ({"model": "keras:VGG17"}, "--model=keras:VGG17: unknown; did you mean keras:VGG1"),
    ],
    ids=str,
)
def test_flags_that_do_not_fit_are_refused(flags, text):
    given = {"model": "plain", "device": "cpu", **FLAGS, **flags}
    with pytest.raises(UsageError) as refused:
        make_plan(Params.from_dict(given))
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("KERAS_BACKEND", "jax", "Keras models run on TensorFlow; unset KERAS_BACKEND=jax"),
        ("TF_USE_LEGACY_KERAS", "1", "Keras models need Keras 3; unset TF_USE_LEGACY_KERAS"),
    ],
)
def test_another_keras_is_refused(variable, value, text, monkeypatch):
    monkeypatch.setitem(os.environ, variable, value)
    with pytest.raises(UsageError, match=f"--model=keras:VGG16: {text}"):
        get_model("keras:VGG16", "imagenet")
