"""Compares runs of Keras models with Keras' own `fit`: losses of ten steps, and step times.

Usage: scripts/check_keras [--speed] [--devices=N] [MODEL ...]

MODEL is a name of keras.applications. Each model and number of devices has its own process.
Without --speed, each model trains on one device and on two logical CPU devices, with Keras' layers
and with cnnbench's layers. cnnbench and `fit` (on two devices with MirroredStrategy) train from
equal weights on equal batches with a learning rate of 0.001. The relative difference of the first
loss must be at most 1e-5, and of ten losses at most 1e-4. If a difference is larger, `fit` runs
once more on slightly different images, which shows how much the training amplifies rounding errors.

With --speed, steps of cnnbench with Keras' layers and with cnnbench's layers, of cnnbench's
resnet50, and of `fit(jit_compile=False)` alternate on one device, and ratios of median times are
printed. For the roofline, use `cnnbench roofline keras:MODEL`. The exit status is 0 if all losses
agree, or if the speed is at least 0.97 (Keras' layers) and 1.05 (cnnbench's layers) times that of
`fit`; 1 if not, and 2 for wrong use.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from command_line import run_script

from cnnbench import BenchmarkCNN, Params
from cnnbench.errors import UsageError
from cnnbench.models.networks.keras import APPLICATIONS
from cnnbench.run.driver.work import NetworkWork

MODELS = ("ResNet50V2", "MobileNetV3Small", "EfficientNetV2B0", "ConvNeXtTiny", "DenseNet121")
STEPS = 10
RATE = 0.001
SEED = 1234
FIRST, ALL = 1e-5, 1e-4
NUDGE = 1e-6
LIMITS = {"own": 0.97, "fused": 1.05}
BATCH, SPEED_BATCH = 2, 8
ROUNDS = 12


def build_run(model: str, devices: int, layers: str, batch: int) -> Any:
    """Builds a run of cnnbench and initializes its variables, ready for the first step."""
    run = BenchmarkCNN(
        Params(
            model=model,
            device="cpu",
            num_gpus=devices,
            variable_update="replicated",
            batch_size=batch,
            weight_decay=0.0,
            num_warmup_batches=0,
            tf_random_seed=SEED,
            keras_layers=layers or "fused",
        )
    ).build()
    assert isinstance(run, NetworkWork)
    run.manager.after_initialization()
    return run


def batch_of(run: Any) -> tuple[Any, Any]:
    """Returns the images and labels of one batch, over all devices of a run."""
    batches = run.inputs.next()
    towers = [
        run.inputs.get_tower_batch(number, batches)
        for number in range(len(run.devices.job.own_tower_devices))
    ]
    images, labels = (np.concatenate([t[part].numpy() for t in towers]) for part in (0, 1))
    return images, labels


def compiled(name: str, devices: int) -> Any:
    """Creates a Keras model and compiles it for `fit`."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(SEED)
    places = [f"CPU:{number}" for number in range(devices)]
    strategy = (
        tf.distribute.MirroredStrategy(places) if devices > 1 else tf.distribute.get_strategy()
    )
    with strategy.scope():
        options = {"input_shape": (224, 224, 3)} if "V3" in name and "Mobile" in name else {}
        model = getattr(keras.applications, name)(
            weights=None, classifier_activation=None, **options
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    return model


def losses_of_fit(name: str, devices: int, images: Any, labels: Any) -> Any:
    """Losses of ten steps of Keras' `fit`, all on the same batch."""
    history = compiled(name, devices).fit(
        *(images, labels), batch_size=len(labels), epochs=STEPS, shuffle=False, verbose=0
    )
    return np.array(history.history["loss"])


def compare_losses_with_fit(name: str, devices: int) -> bool:
    """Prints how much the losses of cnnbench and Keras differ. Returns whether they agree."""
    losses = {}
    for layers in LIMITS:
        run = build_run(f"keras:{name}", devices, layers, BATCH)
        images, labels = batch_of(run)
        losses[layers] = np.array([float(run.step(RATE).loss) for _ in range(STEPS)])
        run.close()
        del run
    theirs = losses_of_fit(name, devices, images, labels)
    agrees = True
    for layers, ours in losses.items():
        gaps = np.abs(ours - theirs) / np.abs(theirs)
        agrees &= bool(gaps[0] <= FIRST and gaps.max() <= ALL)
        row = f"{name}, {devices} device(s), {layers}: first loss {theirs[0]:.6f}"
        print(f"{row}, differs by {gaps[0]:.1e}; ten steps by {gaps.max():.1e}", flush=True)
    # Training may amplify rounding errors, so the effect of slightly different images is printed.
    if not agrees:
        gaps = np.abs(losses_of_fit(name, devices, images * (1.0 + NUDGE), labels) / theirs - 1.0)
        what = f"fit on images times 1 + {NUDGE:.0e} differs from fit"
        print(f"{name}, {devices} device(s): {what} by {gaps.max():.1e}", flush=True)
    return agrees


def _step(run: Any) -> float:
    return float(run.step(RATE).loss)


def compare_speed_with_fit(name: str) -> bool:
    """Prints step times relative to Keras' `fit`. Returns whether they reach the limits."""
    runs = {layers: build_run(f"keras:{name}", 1, layers, SPEED_BATCH) for layers in LIMITS}
    images, labels = batch_of(runs["own"])
    runs["resnet50"] = build_run("resnet50", 1, "", SPEED_BATCH)
    steps: dict[str, Callable[[], object]] = {
        layers: partial(_step, run) for layers, run in runs.items()
    }
    model = compiled(name, 1)
    data = tf.data.Dataset.from_tensors((images, labels)).repeat()
    # An epoch has five steps, because `fit` does additional work between epochs.
    steps["fit"] = lambda: model.fit(data, steps_per_epoch=5, verbose=0)
    seconds: dict[str, list[float]] = {side: [] for side in steps}
    for turn in range(ROUNDS + 2):
        for side in list(steps) if turn % 2 else reversed(list(steps)):
            begin = time.perf_counter()
            for _ in range(1 if side == "fit" else 5):
                steps[side]()
            if turn > 1:
                seconds[side].append((time.perf_counter() - begin) / 5)
    good = True
    for side in ("own", "fused", "resnet50"):
        pairs = [fit / ours for fit, ours in zip(seconds["fit"], seconds[side], strict=True)]
        ratio = statistics.median(pairs)
        quartiles = statistics.quantiles(pairs)
        good &= ratio >= LIMITS.get(side, 0.0)
        spread = f"({quartiles[0]:.3f}-{quartiles[2]:.3f})"
        mean = statistics.median(seconds[side]) * 1e3
        print(f"{name}: {side} {mean:.1f} ms, speed {ratio:.3f} {spread} of fit", flush=True)
    return good


def main(arguments: Sequence[str]) -> int:
    """Compares the models that the arguments name; returns the exit status."""
    names = [word for word in arguments if not word.startswith("--")] or list(MODELS)
    unknown = [name for name in names if name not in APPLICATIONS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is no name of keras.applications")
    known = ("--speed", "--devices=1", "--devices=2")
    if wrong := [word for word in arguments if word.startswith("--") and word not in known]:
        raise UsageError(f"unknown option {wrong[0]}: there are {', '.join(known)}")
    speed = "--speed" in arguments
    given = [word for word in arguments if word.startswith("--devices=")]
    if not given or len(names) > 1:
        counts = given or ["--devices=1", "--devices=2"][: 1 if speed else 2]
        mode = ["--speed"] if speed else []
        cases = [[*mode, count, name] for name in names for count in counts]
        return max(subprocess.run([sys.executable, __file__, *case]).returncode for case in cases)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.zeros([]) + 1.0  # Starts TensorFlow, so that models are declared in this process.
    devices = int(given[0].partition("=")[2])
    return (
        0
        if (
            compare_speed_with_fit(names[0])
            if speed
            else compare_losses_with_fit(names[0], devices)
        )
        else 1
    )


if __name__ == "__main__":
    run_script(main, __doc__)
