"""Plug-in networks that the environment variable PLANT slows down by the causes that it names.

The slowdowns (plants) are added to cnnbench itself when the network is traced, so that A and B have
the same model, plug-in and command line. SLOWED is LeNet after a matrix product with EXTRA_ROWS
rows, on which its first convolution depends. Plants change no results, variables, FLOPs and flags.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cnnbench.models import Model, register_model
from cnnbench.models.declaration import ShapeNetwork
from cnnbench.models.registry import get_model
from cnnbench.models.spec import BatchNormLayer

SLOWED, ROWS, _WIDTH = "slowed_lenet", "EXTRA_ROWS", 512


@dataclass(frozen=True)
class SlowdownSettings:
    """Settings of the slowdowns for one network.

    Attributes:
      dataset: data set of the network.
      layer: end of the name scope of the convolution that is slowed down.
      seconds: delay of the program or the input in seconds, some percent of a step on two CPUs.
      copies: number of copies of every weight in each step.
    """

    dataset: str
    layer: str
    seconds: float
    copies: int


PLACES = {
    "lenet": SlowdownSettings("imagenet", "conv1", 0.004, 4),
    "resnet20": SlowdownSettings("cifar10", "stage1/block1/conv0", 0.01, 40),
    "resnet50": SlowdownSettings("imagenet", "stage1/block1/conv1", 0.1, 4),
}
"""Settings by network, which is registered as "planted_NETWORK"."""

PLANTS: dict[str, tuple[Callable[[Any, SlowdownSettings], None], tuple[str, ...]]] = {}
"""For each plant, the function that adds the slowdown, and the kinds of causes that are right."""


def plant(*kinds: str) -> Callable[[Callable[[Any, SlowdownSettings], None]], None]:
    """Returns a decorator that adds a function to `PLANTS` under the function's name."""
    return lambda function: PLANTS.update({function.__name__: (function, kinds)})


def planted(network: str) -> Model:
    """Creates a network whose graph contains the slowdowns that PLANT names."""
    model = get_model(network, PLACES[network].dataset)
    build = model.build

    def built(net: Any, images: Any) -> Any:
        if not isinstance(net, ShapeNetwork):  # with tensors
            for name in filter(None, os.environ.get("PLANT", "").split(",")):
                PLANTS[name][0](net, PLACES[network])
        if rows := int(os.environ.get(ROWS, "0")):
            images = net.apply(functools.partial(_delayed, rows=rows), images)
        return build(net, images)

    model.build = built  # type: ignore[method-assign, assignment]
    return model


def _delayed(images: Any, rows: int) -> Any:
    """Returns the images, after a matrix product of [rows, _WIDTH] and [_WIDTH, _WIDTH]."""
    import tensorflow as tf

    # The factors depend on the images, so TensorFlow cannot compute the product earlier.
    seed = tf.cast(tf.reshape(images, [-1])[0], tf.float32)
    product = tf.matmul(tf.fill([rows, _WIDTH], seed), tf.fill([_WIDTH, _WIDTH], seed))
    nothing = tf.stop_gradient(tf.reduce_sum(product) * 1e-30)
    return images + tf.cast(nothing, images.dtype)


def _replace_convolution(net: Any, settings: SlowdownSettings, instead: Any) -> None:
    """Replaces the convolution of one layer by a function of the original and its arguments."""
    import tensorflow as tf

    usual = net._conv

    def conv(*arguments: Any) -> Any:
        here = f"/{tf.get_current_name_scope()}".endswith(f"/{settings.layer}")
        return instead(usual, *arguments) if here else usual(*arguments)

    net._conv = conv


def _after_update(operations: Callable[[list[Any]], Iterable[Any]]) -> None:
    """Adds operations on all trained variables to a step, after the update."""
    import tensorflow as tf

    from cnnbench.run.step.update import Updater

    usual = Updater.__call__

    def call(self: Any, *arguments: Any) -> Any:
        updates, skipped, totals = usual(self, *arguments)
        with tf.control_dependencies(updates):
            trained = (self._manager.updated(one.name).copies for one in self._trainables)
            updates.extend(operations([*itertools.chain.from_iterable(trained)]))
        return updates, skipped, totals

    Updater.__call__ = call  # type: ignore[method-assign, assignment]


def _compute(seconds: float) -> None:
    """Computes in Python for this many seconds."""
    _repeat(lambda: sum(range(1000)), seconds)


def _repeat(work: Callable[[], object], seconds: float) -> None:
    """Repeats a function for this many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        work()


def _late_batches(
    seconds: float,
    wait: Callable[[float], None] = time.sleep,
    is_late: Callable[[], bool] = lambda: True,
) -> None:
    """Delays some batches when the step requests them."""
    from cnnbench.data.synthetic import SyntheticInput

    usual = SyntheticInput.next

    def later(self: Any) -> Any:
        if is_late():
            wait(seconds)
            self.wait_seconds += seconds
        return usual(self)

    SyntheticInput.next = later  # type: ignore[method-assign]


def _before_steps(pause: Callable[[], object], is_due: Callable[[], bool] = lambda: True) -> None:
    """Calls `pause` in the training loop before some steps."""
    from cnnbench.run.step.train_step import TrainStep

    usual = TrainStep.__call__

    def call(self: Any, *learning_rates: float) -> Any:
        if is_due():
            pause()
        return usual(self, *learning_rates)

    TrainStep.__call__ = call  # type: ignore[method-assign]


def _every(period: int, first: int = 0) -> Callable[[], bool]:
    """Creates a function that is true once in each period, from call `first` on."""
    calls = itertools.count()
    return lambda: next(calls) % period == first


def _at_random(share: float, draw: random.Random) -> Callable[[], bool]:
    return lambda: draw.random() < share


def _in_operation(
    net: Any, settings: SlowdownSettings, delay: Callable[[float], object], seed: int
) -> None:
    """Delays an operation of the layer in one of four steps, at random."""
    import tensorflow as tf

    is_due = _at_random(0.25, random.Random(seed))

    def wait() -> None:
        if is_due():
            delay(4 * settings.seconds)

    def instead(usual: Any, x: Any, *arguments: Any) -> Any:
        with tf.control_dependencies([tf.py_function(wait, [], [])]):
            return usual(tf.identity(x), *arguments)

    _replace_convolution(net, settings, instead)


_WORK = ("operations", "work", "kernel")


@plant(*_WORK)
def kernel(net: Any, settings: SlowdownSettings) -> None:
    """The layer computes its convolution twice, and returns the mean."""

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        return (usual(x, kernel, *window) + usual(x * 1.001, kernel, *window)) / 2

    _replace_convolution(net, settings, instead)


@plant("precision")
def precision(net: Any, settings: SlowdownSettings) -> None:
    """The layer computes in fp32."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        wide = usual(tf.cast(x, tf.float32), tf.cast(kernel, tf.float32), *window)
        return tf.cast(wide, x.dtype)

    _replace_convolution(net, settings, instead)


@plant("batch norm")
def batch_norm(net: Any, settings: SlowdownSettings) -> None:
    """The layer's batch norm consists of single operations."""
    import tensorflow as tf

    def unfused(x: Any, layer: BatchNormLayer) -> Any:
        value = tf.cast(x, tf.float32)
        moments = tf.nn.moments(value, [0, 1, 2])
        offset = net._reader(layer.beta, tf.float32)
        scale = None if layer.gamma is None else net._reader(layer.gamma, tf.float32)
        epsilon = layer.settings.epsilon
        return tf.cast(tf.nn.batch_normalization(value, *moments, offset, scale, epsilon), x.dtype)

    net._batch_norm = unfused


@plant("copies")
def copies(net: Any, settings: SlowdownSettings) -> None:
    """Every weight is copied several times after its update."""
    import tensorflow as tf

    _after_update(
        lambda all: [tf.raw_ops.DeepCopy(x=v.read_value()) for v in all * settings.copies]
    )


@plant("program")
def program(net: Any, settings: SlowdownSettings) -> None:
    """The training loop sleeps before every step."""
    _before_steps(lambda: time.sleep(settings.seconds))


@plant("input")
def input(net: Any, settings: SlowdownSettings) -> None:
    """Every batch arrives later."""
    _late_batches(settings.seconds)


@plant("pauses")
def third_program(net: Any, settings: SlowdownSettings) -> None:
    """The training loop sleeps before every third step."""
    _before_steps(lambda: time.sleep(3 * settings.seconds), _every(3))


@plant("pauses")
def third_collector(net: Any, settings: SlowdownSettings) -> None:
    """The garbage collector visits many objects before every third step."""
    kept = [[number] for number in range(int(2e7 * settings.seconds))]
    _before_steps(lambda: gc.collect() if kept else None, _every(3))


@plant("pauses")
def random_input(net: Any, settings: SlowdownSettings) -> None:
    """Batches arrive late at random, one in four."""
    _late_batches(4 * settings.seconds, is_late=_at_random(0.25, random.Random(1)))


@plant("pauses")
def random_lock(net: Any, settings: SlowdownSettings) -> None:
    """An operation of the step waits for a lock at random, one time in four."""
    lock = threading.Lock()
    lock.acquire()
    _in_operation(net, settings, lambda seconds: lock.acquire(timeout=seconds), 1)


@plant("pauses")
def tenth_checkpoint(net: Any, settings: SlowdownSettings) -> None:
    """Before every tenth step, weights are written to disk and synchronized."""
    data = bytes(2**20)

    def save() -> None:
        with tempfile.TemporaryFile() as file:

            def write() -> None:
                file.write(data)
                os.fsync(file.fileno())

            _repeat(write, 6 * settings.seconds)

    _before_steps(save, _every(10))


@plant("pauses")
def random_log(net: Any, settings: SlowdownSettings) -> None:
    """In one of six steps, at random, more lines are printed than a slow reader can receive."""
    reader, writer = os.pipe()
    line = bytes(2**16)

    def read() -> None:
        while os.read(reader, len(line)):
            time.sleep(settings.seconds)

    def log() -> None:
        for _ in range(6):
            os.write(writer, line)

    threading.Thread(target=read, daemon=True).start()
    _before_steps(log, _at_random(1 / 6, random.SystemRandom()))


@plant("pauses", "program")
def other_thread(net: Any, settings: SlowdownSettings) -> None:
    """Another thread holds Python's interpreter lock for a quarter of the time."""

    def compute() -> None:
        while True:
            _compute(5 * settings.seconds)
            time.sleep(15 * settings.seconds)

    threading.Thread(target=compute, daemon=True).start()


@plant(*_WORK)
def padded(net: Any, settings: SlowdownSettings) -> None:
    """The layer pads its input with zeros and crops it again."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, *arguments: Any) -> Any:
        wide = tf.pad(x, [[0, 0], *([[4, 4]] * 3)])
        return usual(tf.slice(wide, [0, 4, 4, 4], tf.shape(x)), *arguments)

    _replace_convolution(net, settings, instead)


@plant(*_WORK)
def pieces(net: Any, settings: SlowdownSettings) -> None:
    """The layer convolves the images in four parts, one after the other."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, *arguments: Any) -> Any:
        parts = tf.split(x, math.gcd(4, x.shape[0]))
        return tf.concat([usual(part, *arguments) for part in parts], 0)

    _replace_convolution(net, settings, instead)


@plant("copies")
def norms(net: Any, settings: SlowdownSettings) -> None:
    """Norms of all weights are computed after their update."""
    import tensorflow as tf

    centres = range(settings.copies)  # TensorFlow would merge equal operations.
    _after_update(
        lambda all: [tf.norm(v.read_value() - float(centre)) for centre in centres for v in all]
    )


@plant("program")
def computing_program(net: Any, settings: SlowdownSettings) -> None:
    """The training loop computes in Python before every step, like a log line."""
    _before_steps(lambda: _compute(settings.seconds))


@plant("input")
def computing_input(net: Any, settings: SlowdownSettings) -> None:
    """Every batch is decoded in Python when the step asks for it."""
    _late_batches(settings.seconds, _compute)


@plant("pauses")
def fifth_input(net: Any, settings: SlowdownSettings) -> None:
    """A buffer is shuffled before every fifth batch."""
    _late_batches(5 * settings.seconds, _compute, _every(5, first=4))


@plant("pauses")
def fourth_program(net: Any, settings: SlowdownSettings) -> None:
    """Matrices are multiplied before every fourth step, like an evaluation."""
    import numpy as np

    values = np.ones((256, 256), np.float32)
    _before_steps(lambda: _repeat(lambda: values.dot(values), 4 * settings.seconds), _every(4))


@plant("pauses")
def random_memory(net: Any, settings: SlowdownSettings) -> None:
    """New memory is written before one of five steps, at random."""
    is_due = _at_random(0.2, random.Random(1))
    _before_steps(lambda: _repeat(lambda: bytearray(2**24), 5 * settings.seconds), is_due)


@plant("pauses")
def second_barrier(net: Any, settings: SlowdownSettings) -> None:
    """Every second step waits for another thread, as if at a barrier."""
    start, end = threading.Semaphore(0), threading.Semaphore(0)

    def work() -> None:
        while start.acquire():
            time.sleep(2 * settings.seconds)
            end.release()

    def meet() -> None:
        start.release()
        end.acquire()

    threading.Thread(target=work, daemon=True).start()
    _before_steps(meet, _every(2))


@plant("pauses")
def random_operation(net: Any, settings: SlowdownSettings) -> None:
    """An operation of the step computes longer at random, one time in four."""
    _in_operation(net, settings, _compute, 9)


if __name__ != "validation.planted_plugin":  # Scripts need only the table.
    for _network, _place in PLACES.items():
        _model = functools.partial(planted, _network)
        register_model(f"planted_{_network}", _place.dataset, _model)
    register_model(SLOWED, "imagenet", functools.partial(planted, "lenet"))
