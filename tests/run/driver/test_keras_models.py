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
from networks import forward, normal
from short_runs import build, run

from cnnbench import Params
from cnnbench.errors import UsageError
from cnnbench.models import declare, get_model, registry
from cnnbench.models.declaration import scope_flops
from cnnbench.models.networks.keras import APPLICATIONS, KerasModel
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
    "broken": "ZeroDivisionError",
}


@pytest.mark.parametrize("name", slow_if(lambda name: name not in ("compiled", "broken"), REFUSED))
def test_other_models_are_refused_in_one_line(name, module):
    with pytest.raises(UsageError, match=REFUSED[name]) as refused:
        get_model(name, "cifar10")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"data_format": "NCHW"}, "--data_format=NCHW: --model=plain has only NHWC layers"),
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


# Layers and models by themselves -----------------------------------------------------------------


def branches():
    """Layers beside one another: those that the network's operations replace, and others."""
    from keras import Input, Model, layers

    images = Input((8, 8, 3))
    tokens = layers.Reshape((64, 3))(images)
    parts = [
        layers.BatchNormalization(momentum=0.8, epsilon=0.01)(images),
        layers.BatchNormalization(center=False)(images),
        layers.BatchNormalization(scale=False, axis=3)(images),
        layers.BatchNormalization(axis=1)(images),
        layers.BatchNormalization(trainable=False)(images),
        layers.BatchNormalization()(tokens),
        layers.BatchNormalization()(layers.Flatten()(images)),
        layers.Dense(2)(tokens),
        layers.Dense(2, use_bias=False, activation="relu")(layers.Flatten()(images)),
        layers.Conv2D(4, (1, 3), strides=2, padding="same")(images),
        layers.Conv2D(4, 3, dilation_rate=2)(images),
        layers.Conv2D(6, 3, groups=3)(images),
        layers.DepthwiseConv2D(3, depth_multiplier=2, activation="relu")(images),
        layers.SeparableConv2D(4, 3, use_bias=False)(images),
    ]
    joined = layers.Concatenate()([layers.Flatten()(part) for part in parts])
    return Model(images, layers.Dense(11)(joined))


def test_faster_layers_compute_what_those_of_keras_do():
    fused, own = (KerasModel("probe", "cifar10", lambda policy: branches()) for _ in range(2))
    own.keras_layers = "own"
    draw = np.random.default_rng(0)
    values = {one.name: draw.uniform(0.5, 1.5, one.shape) for one in fused.variables}
    images = tf.constant(normal(4, 8, 8, 3))

    def read(spec, dtype):
        return tf.constant(values[spec.name], dtype)

    for training in (True, False):
        made, expected = (
            forward(model, 11, images, read, training=training) for model in (fused, own)
        )
        np.testing.assert_allclose(made.outputs, expected.outputs, rtol=1e-4)
        found, wanted = (
            {
                one.variable.name: one.decay * values[one.variable.name]
                + (1 - one.decay) * one.value.numpy()
                for one in each.updates
            }
            for each in (made, expected)
        )
        assert found.keys() == wanted.keys()
        assert len(found) == 2 * 6 * training  # a frozen one keeps its averages
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)


def test_batch_norm_of_an_older_keras_is_faster_too(monkeypatch):
    """Keras before 3.14 has no renorm."""
    import keras

    from cnnbench.models import keras_build

    def without_renorm(layer, name):
        if name == "renorm":
            raise AttributeError(name)
        return object.__getattribute__(layer, name)

    def build():
        images = keras.layers.Input((8, 8, 3))
        outputs = keras.layers.BatchNormalization(epsilon=0.01)(images)
        return keras.Model(images, keras.layers.Dense(11)(keras.layers.Flatten()(outputs)))

    model = KerasModel("probe", "cifar10", lambda policy: build())
    declared = model.variables
    monkeypatch.setattr(keras_build._BatchNormalization, "__getattribute__", without_renorm)
    draw = np.random.default_rng(0)
    values = {one.name: draw.uniform(0.5, 1.5, one.shape) for one in declared}
    images = normal(4, 8, 8, 3)
    made = forward(
        model,
        11,
        tf.constant(images),
        lambda spec, dtype: tf.constant(values[spec.name], dtype),
        training=True,
    )
    gamma, beta, kernel, bias = (
        next(value for name, value in values.items() if name.endswith(end))
        for end in ("gamma", "beta", "kernel", "bias")
    )
    mean, variance = images.mean((0, 1, 2)), images.var((0, 1, 2))
    normed = (images - mean) / np.sqrt(variance + 0.01) * gamma + beta
    expected = normed.reshape(4, -1) @ kernel + bias
    np.testing.assert_allclose(made.outputs, expected, rtol=1e-4)


def test_the_reason_of_a_layer_that_fails_in_training_is_named():
    import keras

    class Picky(keras.layers.Layer):
        def call(self, inputs, training=None):
            if training:
                raise ValueError("only for inference")
            return inputs

    def build(policy):
        images = keras.layers.Input((8, 8, 3))
        return keras.Model(images, keras.layers.Flatten()(Picky(name="picky")(images)))

    with pytest.raises(UsageError) as refused:
        declare(KerasModel("probe", "cifar10", build), 192)
    assert str(refused.value).endswith(
        r"layer picky (Picky) cannot be called in training: ValueError: only for inference"
    )


def test_the_flops_of_every_kind_of_layer_by_hand():
    """FLOPs of the forward pass, of the gradient of the input and of that of the kernel."""
    from keras import Input, Sequential, layers

    def make():
        return Sequential(
            [
                Input((8, 8, 3)),
                layers.Conv2D(4, 3, name="conv"),  # to 6 x 6
                layers.DepthwiseConv2D(3, depth_multiplier=2, name="depthwise"),  # to 4 x 4 x 8
                layers.Conv2DTranspose(5, 2, strides=2, name="transposed"),  # to 8 x 8
                layers.Reshape((64, 5)),
                layers.Dense(7, name="of_tokens"),
                layers.EinsumDense("abc,cd->abd", (64, 2), name="by_einsum"),
                layers.Flatten(),
                layers.Dense(11, name="dense"),
            ]
        )

    model = KerasModel("probe", "cifar10", lambda policy: make())
    forward_flops = {
        "conv": 2 * 6 * 6 * 4 * 27,
        "depthwise": 2 * 4 * 4 * 8 * 9,
        "transposed": 2 * 4 * 4 * 8 * 2 * 2 * 5,
        "of_tokens": 2 * 64 * 5 * 7,
        "by_einsum": 2 * 64 * 7 * 2,
        "dense": 2 * 128 * 11,
    }
    found = {name: tuple(flops) for name, flops in scope_flops(model, 11, training=True).items()}
    for name, flops in forward_flops.items():
        assert found[name] == (flops, 0 if name == "conv" else flops, flops), name
    assert declare(model, 11).forward_flops_per_image == sum(forward_flops.values())


@pytest.mark.parametrize(
    ("image", "outputs", "size", "expected"),
    [
        ((8, 8, 3), 5, None, (8, 3, 5)),
        ((8, 8, 1), 5, 8, (8, 1, 5)),
        ((None, None, 3), 5, 6, (6, 3, 5)),
        ((None, 6, 3), 5, 6, (6, 3, 5)),
        ((8, 8, 3), 5, 6, None),
        ((8, 6, 3), 5, None, None),
        ((None, 8, 3), 5, 6, None),
        ((None, None, 3), 5, None, None),
        ((8, 8, None), 5, None, None),
        ((8, 8), 5, None, None),
        ((8, 8, 3), None, None, None),  # a value for each row
    ],
)
def test_sizes_that_a_model_declares(image, outputs, size, expected):
    import keras

    from cnnbench.models.keras_declaration import declare_keras_model

    images = keras.Input(image)
    x = keras.ops.mean(images, list(range(1, len(images.shape))))
    x = keras.layers.Dense(outputs or 2)(keras.ops.reshape(x, (-1, 1)))
    if outputs is None:
        x = keras.ops.reshape(x, (-1, 1, 2))
    model = keras.Model(images, x)
    if expected is None:
        with pytest.raises(UsageError):
            declare_keras_model(model, size)
        return
    found = declare_keras_model(model, size)
    assert (found.size, found.channels, found.classes) == expected


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 1), (1, 2)])
def test_models_of_several_inputs_or_outputs_are_refused(inputs, outputs):
    import keras

    from cnnbench.models.keras_declaration import declare_keras_model

    images = [keras.Input((4, 4, 3)) for _ in range(inputs)]
    flat = keras.layers.Flatten()(sum(images))
    ends = [keras.layers.Dense(5)(flat) for _ in range(outputs)]
    with pytest.raises(UsageError):
        declare_keras_model(keras.Model(images, ends), None)


def test_variables_of_equal_paths_have_names_of_their_own():
    import keras

    from cnnbench.models.keras_declaration import declare_keras_model

    class Alike(keras.layers.Layer):
        def build(self, shape):
            for trainable in (True, True, True, False):
                self.add_weight(shape=(1,), name="weight", trainable=trainable)
            self.embeddings = self.add_weight(shape=(1,), name="embeddings")
            self.kept = self.add_weight(shape=(1,), name="kept", trainable=False, dtype="int32")

        def call(self, inputs):
            return inputs

    images = keras.Input((4, 4, 3))
    x = keras.layers.Flatten()(Alike(name="alike")(images))
    found = declare_keras_model(keras.Model(images, x), None).variables
    assert {
        one.name: (one.trainable, one.weight_decay, one.statistic, one.dtype) for one in found
    } == {
        "alike/weight": (True, True, False, "float32"),
        "alike/weight_1": (True, True, False, "float32"),
        "alike/weight_2": (True, True, False, "float32"),
        "alike/embeddings": (True, False, False, "float32"),
        "alike/weight_3": (False, False, True, "float32"),
        "alike/kept": (False, False, True, "int64"),
    }


def test_initial_values_depend_on_the_seed_and_draws_of_the_process_go_on():
    import random

    from keras import Input, Sequential, layers

    from cnnbench.models.keras_build import FUSED, build_keras_model

    def make(policy):
        return Sequential([Input((4, 4, 3)), layers.Conv2D(2, 3), layers.Flatten()])

    before = random.getstate(), np.random.get_state()
    one, same, other = (
        build_keras_model(make, "float32", seed, None, fuses=seed == 3) for seed in (3, 3, 4)
    )
    after = random.getstate(), np.random.get_state()
    assert after[0] == before[0]
    np.testing.assert_array_equal(after[1][1], before[1][1])
    assert after[1][2:] == before[1][2:]
    kernel, bias = one.values()
    assert (kernel.dtype, bias.dtype) == (np.float32, np.float32)
    np.testing.assert_array_equal(same.values()[0], kernel)
    assert not np.array_equal(other.values()[0], kernel)
    kinds = [type(built.model.layers[0]) for built in (one, other)]
    assert kinds == [FUSED[layers.Conv2D], layers.Conv2D]
    assert one.takes_training  # as every model of layers


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        ("DenseNet121", None, {}),
        ("MobileNetV3Small", None, {"input_shape": (224, 224, 3)}),
        ("MobileNetV3Small", (64, 7), {"input_shape": (64, 64, 3), "classes": 7}),
        ("DenseNet121", (64, 7), {"input_shape": (64, 64, 3), "classes": 7}),
    ],
)
def test_applications_are_made_without_weights_and_softmax(name, sizes, expected, monkeypatch):
    import keras

    from cnnbench.models.keras_build import make_application

    monkeypatch.setattr(keras.applications, name, lambda **options: options)
    options = {"weights": None, "classifier_activation": None, **expected}
    assert make_application(name, sizes) == options


@pytest.mark.parametrize("end", ["layer", "activation", "nested"])
def test_a_softmax_at_the_end_is_left_out(end):
    from keras import Input, Sequential, layers

    from cnnbench.models.keras_build import build_keras_model

    def make(policy):
        ends = {
            "layer": [layers.Dense(3), layers.Softmax()],
            "activation": [layers.Dense(3, activation="softmax")],
            "nested": [Sequential([Input((12,)), layers.Dense(3, activation="softmax")])],
        }
        return Sequential([Input((2, 2, 3)), layers.Flatten(), *ends[end]])

    built = build_keras_model(make, "float32", 0, None, fuses=False)
    images = normal(2, 2, 2, 3)
    kernel, bias = built.values()
    expected = images.reshape(2, 12) @ kernel + bias
    np.testing.assert_allclose(built.model(images), expected, rtol=1e-5)


@pytest.mark.parametrize(("dataset", "classes"), [("imagenet", 999), ("cifar10", 1000)])
def test_only_the_thousand_classes_of_imagenet_begin_with_label_1(dataset, classes):
    from keras import Input, Sequential, layers

    def make(policy):
        return Sequential([Input((2, 2, 3)), layers.Flatten(), layers.Dense(classes)])

    model = KerasModel("probe", dataset, make)
    example = {"image": tf.zeros([2, 2, 3]), "label": tf.constant([0, classes - 1, classes])}
    found = model.preprocess(example, None, training=False)
    np.testing.assert_array_equal(found["label"], [0, classes - 1, 0])
    assert found["image"] is example["image"]
