"""Networks whose step is slower for a cause that the environment variable PLANT names.

The plants are put into cnnbench itself when the network is traced, so that both sides have one
model, plug-in and command line.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import random
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

from cnnbench.models import Model, register_model
from cnnbench.models.registry import get_model
from cnnbench.models.spec import BatchNormLayer


@dataclass(frozen=True)
class Place:
    """Where a network is made slower.

    Attributes:
      dataset: data set of the network.
      layer: the convolution, by the end of its scope.
      seconds: delay of the program or the input, some percent of a step on two CPUs.
      copies: number of copies of every weight in each step.
    """

    dataset: str
    layer: str
    seconds: float
    copies: int


PLACES = {
    "lenet": Place("imagenet", "conv1", 0.004, 4),
    "resnet20": Place("cifar10", "stage1/block1/conv0", 0.01, 40),
    "resnet50": Place("imagenet", "stage1/block1/conv1", 0.1, 4),
}
"""By network, which is registered as "planted_NETWORK"."""


def planted(network: str, place: Place) -> Model:
    """The network with the plant that PLANT names in its graph."""
    model = get_model(network, place.dataset)
    build = model.build

    def built(net: Any, images: Any) -> Any:
        plant = PLANTS.get(os.environ.get("PLANT", ""))
        if plant is not None and hasattr(net, "moments"):  # with tensors
            plant(net, place)
        return build(net, images)

    model.build = built  # type: ignore[method-assign, assignment]
    return model


def _in_layer(net: Any, place: Place, instead: Any) -> None:
    """Replaces the convolution of one layer by a function of the usual one and its arguments."""
    import tensorflow as tf

    usual = net._conv

    def conv(*arguments: Any) -> Any:
        here = f"/{tf.get_current_name_scope()}".endswith(f"/{place.layer}")
        return instead(usual, *arguments) if here else usual(*arguments)

    net._conv = conv


def twice_the_work(net: Any, place: Place) -> None:
    """The layer convolves twice and takes the mean."""

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        return (usual(x, kernel, *window) + usual(x * 1.001, kernel, *window)) / 2

    _in_layer(net, place, instead)


def in_fp32(net: Any, place: Place) -> None:
    """The layer computes in fp32."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        wide = usual(tf.cast(x, tf.float32), tf.cast(kernel, tf.float32), *window)
        return tf.cast(wide, x.dtype)

    _in_layer(net, place, instead)


def unfused_norm(net: Any, place: Place) -> None:
    """Batch norm is made of single operations."""
    import tensorflow as tf

    def batch_norm(x: Any, layer: BatchNormLayer) -> Any:
        value = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(value, [0, 1, 2])
        offset = net._reader(layer.beta, tf.float32)
        scale = None if layer.gamma is None else net._reader(layer.gamma, tf.float32)
        epsilon = layer.settings.epsilon
        return tf.cast(
            tf.nn.batch_normalization(value, mean, variance, offset, scale, epsilon), x.dtype
        )

    net._batch_norm = batch_norm


def copied_weights(net: Any, place: Place) -> None:
    """Every weight is copied some times after its update."""
    import tensorflow as tf

    from cnnbench.run.step.update import Updater

    usual = Updater.__call__

    def call(self: Any, *arguments: Any) -> Any:
        updates, skipped, totals = usual(self, *arguments)
        with tf.control_dependencies(updates):
            copies = [v for s in self._trainables for v in self._manager.updated(s.name).copies]
            updates.extend(tf.raw_ops.DeepCopy(x=v.read_value()) for v in copies * place.copies)
        return updates, skipped, totals

    Updater.__call__ = call  # type: ignore[method-assign, assignment]


def sleeping_program(net: Any, place: Place) -> None:
    """The training loop sleeps before every step."""
    from cnnbench.run.step.train_step import TrainStep

    usual = TrainStep.__call__

    def call(self: Any, learning_rate: float) -> Any:
        time.sleep(place.seconds)
        return usual(self, learning_rate)

    TrainStep.__call__ = call  # type: ignore[method-assign]


def slower_input(net: Any, place: Place) -> None:
    """Every batch comes later."""
    from cnnbench.data.synthetic import SyntheticInput

    usual = SyntheticInput.next

    def later(self: Any) -> Any:
        time.sleep(place.seconds)
        self.wait_seconds += place.seconds
        return usual(self)

    SyntheticInput.next = later  # type: ignore[method-assign]


def _now_and_then(pause: Any, period: int = 3) -> None:
    """Calls `pause` before one step of each period."""
    from cnnbench.run.step.train_step import TrainStep

    usual, steps = TrainStep.__call__, itertools.count()

    def call(self: Any, learning_rate: float) -> Any:
        if next(steps) % period == 0:
            pause()
        return usual(self, learning_rate)

    TrainStep.__call__ = call  # type: ignore[method-assign]


def sleeping_thirds(net: Any, place: Place) -> None:
    """The training loop sleeps before every third step."""
    _now_and_then(lambda: time.sleep(3 * place.seconds))


def collecting_thirds(net: Any, place: Place) -> None:
    """The garbage collector visits many objects before every third step."""
    kept = [[number] for number in range(int(2e7 * place.seconds))]
    _now_and_then(lambda: gc.collect() if kept else None)


def stalling_input(net: Any, place: Place) -> None:
    """Batches come late at random, one in four."""
    from cnnbench.data.synthetic import SyntheticInput

    usual, draw = SyntheticInput.next, random.Random(1)

    def later(self: Any) -> Any:
        if draw.random() < 0.25:
            time.sleep(4 * place.seconds)
            self.wait_seconds += 4 * place.seconds
        return usual(self)

    SyntheticInput.next = later  # type: ignore[method-assign]


def locked_at_random(net: Any, place: Place) -> None:
    """An operation of the step waits at random, one time in four, for a lock that is held."""
    import tensorflow as tf

    draw = random.Random(1)

    def wait() -> None:
        if draw.random() < 0.25:
            lock = threading.Lock()
            with lock:
                lock.acquire(timeout=4 * place.seconds)

    def instead(usual: Any, x: Any, *arguments: Any) -> Any:
        with tf.control_dependencies([tf.py_function(wait, [], [])]):
            return usual(tf.identity(x), *arguments)

    _in_layer(net, place, instead)


def saving_tenths(net: Any, place: Place) -> None:
    """Weights are written to a disk, by some MB that are synchronized, before every tenth step."""
    data = bytes(2**20)

    def save() -> None:
        end = time.monotonic() + 6 * place.seconds
        with tempfile.TemporaryFile() as file:
            while time.monotonic() < end:
                file.write(data)
                os.fsync(file.fileno())

    _now_and_then(save, 10)


def logging_to_a_pipe(net: Any, place: Place) -> None:
    """One step in six, at random, writes more lines than a slow reader has room for."""
    reader, writer = os.pipe()
    line = bytes(2**16)

    def read() -> None:
        while os.read(reader, len(line)):
            time.sleep(place.seconds)

    threading.Thread(target=read, daemon=True).start()
    draw = random.SystemRandom()

    def log() -> None:
        for _ in range(6 if draw.random() < 1 / 6 else 0):
            os.write(writer, line)

    _now_and_then(log, 1)


def contended_interpreter(net: Any, place: Place) -> None:
    """Another thread computes in Python, with the interpreter's lock, a quarter of the time."""

    def compute() -> None:
        while True:
            end = time.monotonic() + 5 * place.seconds
            while time.monotonic() < end:
                sum(range(1000))
            time.sleep(15 * place.seconds)

    threading.Thread(target=compute, daemon=True).start()


PLANTS = {
    "tenth_checkpoint": saving_tenths,
    "random_log": logging_to_a_pipe,
    "other_thread": contended_interpreter,
    "third_program": sleeping_thirds,
    "third_collector": collecting_thirds,
    "random_input": stalling_input,
    "random_lock": locked_at_random,
    "kernel": twice_the_work,
    "precision": in_fp32,
    "batch_norm": unfused_norm,
    "copies": copied_weights,
    "program": sleeping_program,
    "input": slower_input,
}

for _network, _place in PLACES.items():
    register_model(
        f"planted_{_network}", _place.dataset, functools.partial(planted, _network, _place)
    )
