"""Checkpoints of tf_cnn_benchmarks, written here under its names, read from the command line.

Tests cnnbench/run/driver/stored_checkpoint.py.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from covering import slow_if
from short_runs import NETWORKS

from cnnbench.models import register_model
from cnnbench.models.networks.resnet import ResNetCifar10

pytestmark = pytest.mark.usefixtures("quick_start")

CPU = ("--device=cpu", "--batch_size=2", "--num_warmup_batches=0")
STEP = 7


def write(folder, values, data_format=None):
    """A checkpoint as tf.compat.v1.train.Saver writes it, with the graph of one convolution.

    Beside each variable there are a slot of momentum and the copy of a second device; of what is
    not an array, the value is random, of that shape.
    """
    draw = np.random.default_rng(0)
    values = {
        name: draw.uniform(0.1, 0.3, value).astype(np.float32)
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }
    more = {f"{name}/Momentum": np.full_like(value, 9) for name, value in values.items()}
    more |= {f"v1{name[name.index('/') :]}": np.full_like(v, 8) for name, v in values.items()}
    stored = {**values, **more, "global_step": np.int64(STEP), "loss_scale": np.float32(128)}
    folder.mkdir(exist_ok=True)
    prefix = str(folder / f"model.ckpt-{STEP}")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=[*stored],
        shape_and_slices=[""] * len(stored),
        tensors=[tf.constant(value) for value in stored.values()],
    )
    if data_format is not None:
        with tf.Graph().as_default() as graph:
            if data_format:
                ones = tf.ones([2, 3, 3, 3])
                tf.nn.conv2d(ones, ones[:1], 1, "SAME", data_format=data_format)
            tf.nn.bias_add(tf.ones([2, 3]), tf.ones([3]))
            # As the old program did: the file also lists all values that an attribute may have.
            export = tf.compat.v1.train.export_meta_graph  # noqa: TID251
            export(f"{prefix}.meta", graph=graph)
    return values


def exported(call, folder, model, *flags):
    """Logits of the network that an evaluation exports, a function of images."""
    out = folder / "export"
    flags = (f"--model={model}", f"--train_dir={folder}", f"--export_dir={out}", *flags)
    said = call(*CPU, *flags, "--eval", "--num_eval_batches=1").out
    assert f"Successfully loaded model from {folder}/model.ckpt-{STEP}." in said
    return lambda x: tf.saved_model.load(str(out)).signatures["serving_default"](image=x)["logits"]


def images(size):
    return tf.random.stateless_uniform([2, size, size, 3], [1, 2], -1.0, 1.0)


LENET = {
    "conv0/conv2d/kernel": (5, 5, 3, 32),
    "conv0/biases": (32,),
    "conv1/conv2d/kernel": (5, 5, 32, 64),
    "conv1/biases": (64,),
    "affine0/weights": (7 * 7 * 64, 512),
    "affine0/biases": (512,),
    "affine1/weights": (512, 1001),
    "affine1/biases": (1001,),
}


@pytest.mark.parametrize(
    ("copy", "data_format"), slow_if([("v0", "NHWC")], [("v", "NCHW"), ("v0", "NHWC")])
)
def test_images_are_flattened_as_they_were_in_the_training(copy, data_format, tmp_path, call):
    stored = write(tmp_path, {f"{copy}/cg/{k}": v for k, v in LENET.items()}, data_format)
    logits = exported(call, tmp_path, "lenet", "--data_format=NHWC")
    value = {name.removeprefix(f"{copy}/cg/"): v for name, v in stored.items()}
    x = images(28)
    for layer in ("conv0", "conv1"):
        x = tf.nn.conv2d(x, value[f"{layer}/conv2d/kernel"], 1, "SAME") + value[f"{layer}/biases"]
        x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID")
    if data_format == "NCHW":
        x = tf.transpose(x, [0, 3, 1, 2])
    x = tf.nn.relu(tf.reshape(x, [2, -1]) @ value["affine0/weights"] + value["affine0/biases"])
    expected = x @ value["affine1/weights"] + value["affine1/biases"]
    np.testing.assert_allclose(logits(images(28)), expected, rtol=1e-5)
    assert np.ptp(expected, axis=0).max() > 1e-2  # images make a difference


def resnet8():
    """Names and shapes in the order of creation."""
    names, number = {}, 0

    def conv(scope, channels, filters):
        nonlocal number
        layer = f"v0/cg/{scope}conv{number}"
        names[f"{layer}/conv2d/kernel"] = (3, 3, channels, filters)
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            names[f"{layer}/batchnorm{number}/{name}"] = (filters,)
        number += 1

    conv("", 3, 16)
    channels = 16
    for filters in (16, 32, 64):
        conv("", channels, filters)
        conv("", filters, filters)
        channels = filters
    return {**names, "v0/cg/affine0/weights": (64, 11), "v0/cg/affine0/biases": (11,)}


def resnet8_logits(x, stored):
    left = iter(stored.values())

    def conv(x, stride=1):
        kernel, gamma, beta, mean, variance = (next(left) for _ in range(5))
        x = tf.nn.conv2d(x, kernel, stride, "SAME")
        return (x - mean) / tf.sqrt(variance + 1e-5) * gamma + beta

    x = conv(x)
    for stride in (1, 2, 2):
        y = conv(tf.nn.relu(conv(x, stride)))
        missing = (y.shape[3] - x.shape[3]) // 2
        x = tf.pad(x[:, ::stride, ::stride], [[0, 0]] * 3 + [[missing, missing]])
        x = tf.nn.relu(x + y)
    return tf.reduce_mean(x, [1, 2]) @ next(left) + next(left)


@pytest.mark.slow
def test_a_network_with_batch_norm(tmp_path, call, own_registry):
    """Its last layer follows a mean, so that no data format is asked for."""
    register_model("resnet8", "cifar10", lambda: ResNetCifar10(8, "v1"))
    stored = write(tmp_path, resnet8())
    logits = exported(call, tmp_path, "resnet8", "--data_name=cifar10")(images(32))
    expected = resnet8_logits(images(32), stored)
    np.testing.assert_allclose(logits, expected, rtol=1e-4)
    assert np.ptp(expected, axis=0).max() > 1e-2


@pytest.mark.slow
def test_a_training_goes_on_after_its_steps(tmp_path, call):
    stored = write(tmp_path, {f"v0/cg/{name}": shape for name, shape in LENET.items()}, "NHWC")
    flags = [*CPU, "--model=lenet", f"--train_dir={tmp_path}"]
    flags += ["--optimizer=momentum", "--init_learning_rate=0", "--weight_decay=0"]
    flags += ["--num_gpus=2", "--variable_update=replicated", "--max_ckpts_to_keep=1"]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    err = call(*flags, f"--num_batches={STEP + 1}").err
    path = f"{tmp_path}/model.ckpt-{STEP}"
    assert f"resuming from {path} at global step {STEP}\n" in err
    assert f"{path} is from tf_cnn_benchmarks: the optimizer's state is not restored\n" in err
    assert "--optimizer=" not in err
    # The next checkpoint is one of cnnbench, with the weights unchanged.
    reader = tf.train.load_checkpoint(f"{tmp_path}/model.ckpt-{STEP + 1}")
    shapes = reader.get_variable_to_shape_map()
    (last,) = (key for key in shapes if key.startswith("model/affine1.Skernel/"))
    np.testing.assert_array_equal(reader.get_tensor(last), stored["v0/cg/affine1/weights"])
    assert f"at global step {STEP + 1}\n" in call(*flags, f"--num_batches={STEP + 2}").err
    assert not (tmp_path / f"model.ckpt-{STEP + 1}.index").exists()
    # What the other program wrote is not deleted.
    assert {path: path.read_bytes() for path in before} == before


def without(values, name):
    return {key: value for key, value in values.items() if key != name}


OTHERS = {
    "another network": (
        resnet8(),
        "NHWC",
        r"but does not fit --model=lenet \(cnnbench docs migrating\): .*",
    ),
    "a shape": ({**LENET, "conv1/biases": (32,)}, "NHWC", r"but does not fit .*: conv1/bias"),
    "one less": (without(LENET, "affine1/biases"), "NHWC", r"but does not fit .*: affine1/bias"),
    "one more": (
        {**LENET, "affine2/biases": (3,)},
        "NHWC",
        r"but does not fit .*: v/cg/affine2/biases",
    ),
    "other layers": ({"cnn_1/kernel": (3, 3, 3, 8)}, "NHWC", r"but does not fit .*: affine0/bias"),
    "no graph": (LENET, None, r"and /.*/model.ckpt-7.meta does not show its data format .*"),
    "no convolution": (LENET, "", r"and /.*/model.ckpt-7.meta does not show its data format .*"),
}


@pytest.mark.parametrize(
    ("other", "task"),
    slow_if(
        lambda case: case[0] in ("a shape", "one less", "other layers", "no convolution"),
        zip(OTHERS, itertools.cycle(["--eval", "--nodistortions"])),
    ),
)
def test_what_cannot_be_read_is_told_before_the_network_is_built(other, task, tmp_path, call):
    values, data_format, reason = OTHERS[other]
    stored = {k if k.startswith("v0/") else f"v/cg/{k}": value for k, value in values.items()}
    write(tmp_path, stored, data_format)
    before = sorted(path.name for path in tmp_path.iterdir())
    said = call(*CPU, "--model=lenet", task, f"--train_dir={tmp_path}", "--num_batches=9", code=2)
    (line,) = (line for line in said.err.splitlines() if "error" in line)
    start = (
        f"cnnbench: error: --train_dir={tmp_path}/model.ckpt-{STEP}: is from tf_cnn_benchmarks, "
    )
    assert line.startswith(start)
    assert re.fullmatch(reason, line.removeprefix(start))
    assert "Generating" not in said.out
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_backbone_is_not_read_from_them(tmp_path, call):
    write(tmp_path, {f"v/cg/{name}": shape for name, shape in LENET.items()}, "NHWC")
    flags = [f"--plugin={NETWORKS}", "--model=detector", "--data_name=cifar10"]
    err = call(*CPU, *flags, f"--backbone_model_path={tmp_path}", "--num_batches=1", code=4).err
    assert err.endswith("; checkpoints of tf_cnn_benchmarks can be read only from --train_dir\n")
