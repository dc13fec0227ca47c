"""Networks whose step is slower for causes that the environment variable PLANT names, with commas.

The plants are put into cnnbench itself when the network is traced, so that both sides have one
model, plug-in and command line.
"""

from __future__ import annotations

import functools
import gc
import itertools
import math
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cnnbench.models import Model, register_model
from cnnbench.models.model import get_model
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
    """The network with the plants that PLANT names in its graph."""
    model = get_model(network, place.dataset)
    build = model.build

    def built(net: Any, images: Any) -> Any:
        if hasattr(net, "moments"):  # with tensors
            for name in filter(None, os.environ.get("PLANT", "").split(",")):
                PLANTS[name](net, place)
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


def padded_by_hand(net: Any, place: Place) -> None:
    """The layer pads its input with zeros and crops it again."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, *arguments: Any) -> Any:
        edges = [[0, 0], *([[4, 4]] * 3)]
        wide = tf.pad(x, edges)
        return usual(tf.slice(wide, [0, 4, 4, 4], tf.shape(x)), *arguments)

    _in_layer(net, place, instead)


def in_pieces(net: Any, place: Place) -> None:
    """The layer convolves the images in four parts, one after the other."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, *arguments: Any) -> Any:
        parts = tf.split(x, math.gcd(4, x.shape[0]))
        return tf.concat([usual(part, *arguments) for part in parts], 0)

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


def norms_of_weights(net: Any, place: Place) -> None:
    """Norms of all weights are computed after their update."""
    import tensorflow as tf

    from cnnbench.run.step.update import Updater

    usual = Updater.__call__

    def call(self: Any, *arguments: Any) -> Any:
        updates, skipped, totals = usual(self, *arguments)
        with tf.control_dependencies(updates):
            copies = [v for s in self._trainables for v in self._manager.updated(s.name).copies]
            for centre in range(place.copies):  # equal operations would be merged
                updates.extend(tf.norm(v.read_value() - float(centre)) for v in copies)
        return updates, skipped, totals

    Updater.__call__ = call  # type: ignore[method-assign, assignment]


def _compute(seconds: float) -> None:
    """Computes in Python."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def formatting_program(net: Any, place: Place) -> None:
    """The training loop computes in Python before every step, as for a line of a log."""
    _now_and_then(lambda: _compute(place.seconds), 1)


def decoding_input(net: Any, place: Place) -> None:
    """Every batch is decoded in Python when the step asks for it."""
    _late_batches(place.seconds, _compute)


def sleeping_program(net: Any, place: Place) -> None:
    """The training loop sleeps before every step."""
    _now_and_then(lambda: time.sleep(place.seconds), 1)


def slower_input(net: Any, place: Place) -> None:
    """Every batch comes later."""
    _late_batches(place.seconds)


def _late_batches(
    seconds: float,
    wait: Callable[[float], None] = time.sleep,
    is_late: Callable[[], bool] = lambda: True,
) -> None:
    """Some batches come later."""
    from cnnbench.data.pipeline import SyntheticInput

    usual = SyntheticInput.next

    def later(self: Any) -> Any:
        if is_late():
            wait(seconds)
            self.wait_seconds += seconds
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
    draw = random.Random(1)
    _late_batches(4 * place.seconds, is_late=lambda: draw.random() < 0.25)


def shuffled_fifths(net: Any, place: Place) -> None:
    """A buffer is shuffled before every fifth batch."""
    steps = itertools.count()
    _late_batches(5 * place.seconds, _compute, lambda: next(steps) % 5 == 4)


def evaluated_fourths(net: Any, place: Place) -> None:
    """Some matrices are multiplied before every fourth step, as by an evaluation."""
    import numpy as np

    values = np.ones((256, 256), np.float32)

    def evaluate() -> None:
        end = time.monotonic() + 4 * place.seconds
        while time.monotonic() < end:
            values.dot(values)

    _now_and_then(evaluate, 4)


def allocating_at_random(net: Any, place: Place) -> None:
    """New memory is touched before one step in five, at random."""
    draw = random.Random(1)

    def allocate() -> None:
        end = time.monotonic() + (5 * place.seconds if draw.random() < 0.2 else 0)
        while time.monotonic() < end:
            bytearray(2**24)

    _now_and_then(allocate, 1)


def waiting_seconds(net: Any, place: Place) -> None:
    """Every second step waits for another thread, as at a barrier."""
    start, end = threading.Semaphore(0), threading.Semaphore(0)

    def work() -> None:
        while start.acquire():
            time.sleep(2 * place.seconds)
            end.release()

    threading.Thread(target=work, daemon=True).start()

    def meet() -> None:
        start.release()
        end.acquire()

    _now_and_then(meet, 2)


def _in_operation(net: Any, place: Place, delay: Callable[[float], None], seed: int) -> None:
    """An operation of the layer is delayed at random, one time in four."""
    import tensorflow as tf

    draw = random.Random(seed)

    def wait() -> None:
        if draw.random() < 0.25:
            delay(4 * place.seconds)

    def instead(usual: Any, x: Any, *arguments: Any) -> Any:
        with tf.control_dependencies([tf.py_function(wait, [], [])]):
            return usual(tf.identity(x), *arguments)

    _in_layer(net, place, instead)


def locked_at_random(net: Any, place: Place) -> None:
    """An operation of the step waits at random, one time in four, for a lock that is held."""

    def wait(seconds: float) -> None:
        lock = threading.Lock()
        with lock:
            lock.acquire(timeout=seconds)

    _in_operation(net, place, wait, 1)


def computing_at_random(net: Any, place: Place) -> None:
    """An operation of the step computes longer at random, one time in four."""
    _in_operation(net, place, _compute, 9)


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
            _compute(5 * place.seconds)
            time.sleep(15 * place.seconds)

    threading.Thread(target=compute, daemon=True).start()


PLANTS = {
    "padded": padded_by_hand,
    "pieces": in_pieces,
    "norms": norms_of_weights,
    "computing_program": formatting_program,
    "computing_input": decoding_input,
    "fifth_input": shuffled_fifths,
    "fourth_program": evaluated_fourths,
    "random_memory": allocating_at_random,
    "second_barrier": waiting_seconds,
    "random_operation": computing_at_random,
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
