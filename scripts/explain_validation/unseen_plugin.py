"""Six small networks that no rule of cnnbench explain was made with, and plants in them.

The environment variable PLANT names what the network of a process is given, and FILES a folder for
images that its side reads. Plants that change layers are in the bodies of the networks, the others
in `OUTSIDE`.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import planted_plugin
from planted_plugin import Place

from cnnbench.models import Model, register_model
from cnnbench.models.spec import LearningRateSpec

PLANT = os.environ.get("PLANT", "")


class Unseen(Model):
    """A network for CIFAR-10 with a plant."""

    dataset = "cifar10"
    image_size = 32
    batch_size = 32
    learning_rate = LearningRateSpec(0.001)
    place = Place("cifar10", "conv0", 0.004, 6)

    def build(self, net: Any, images: Any) -> Any:
        """The body of the network, with what PLANT names."""
        if PLANT in OUTSIDE and hasattr(net, "moments"):  # with tensors
            OUTSIDE[PLANT](net, self.place)
        return self.body(net, images)

    def body(self, net: Any, x: Any) -> Any:
        """The layers."""
        raise NotImplementedError


class UNet(Unseen):
    """Down to a quarter of the size and up again, with what was there on the way down."""

    name = "unet"
    place = Place("cifar10", "bottom/conv1", 0.004, 6)

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        seen = []
        for number, filters in enumerate((12, 24)):
            with net.scope(f"down{number}"):
                seen.append(net.conv(x, filters, 3))
                x = net.max_pool(seen[-1], 2, 2)
        with net.scope("bottom"):
            x = net.conv(net.conv(x, 48, 3), 48, 3)
        for number, filters in ((1, 24), (0, 12)):
            with net.scope(f"up{number}"):
                x = net.concat([self._twice_as_large(net, x), seen[number]])
                x = net.conv(x, filters, 3)
                if PLANT == "images" and number == 0:
                    x = net.apply(_with_images, x)
        return net.logits(net.affine(net.flatten(net.max_pool(x, 2, 2)), 512))

    def _twice_as_large(self, net: Any, x: Any) -> Any:
        height, width, channels = net.shape(x)
        way = "bicubic" if PLANT == "bicubic" else "nearest"

        def resized(value: Any) -> Any:
            import tensorflow as tf

            return tf.image.resize(value, [2 * height, 2 * width], way)

        return net.apply(resized, x, shape=(2 * height, 2 * width, channels))


class Squeezed(Unseen):
    """Inverted residuals, whose channels are scaled by what the whole image has."""

    name = "squeezed"

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.conv(x, 16, 3, 2, batch_norm=True)
        for number, filters in enumerate((16, 24, 24, 32)):
            with net.scope(f"block{number}"):
                x = self._block(net, x, filters, 1 + (number == 1), number)
        return net.logits(net.global_avg_pool(net.conv(x, 128, 1, batch_norm=True)))

    def _block(self, net: Any, x: Any, filters: int, stride: int, number: int) -> Any:
        channels = net.shape(x)[2]
        expansion = 10 if PLANT == "expansion" and number == 2 else 4
        y = net.conv(x, expansion * channels, 1, batch_norm=True, activation="relu6")
        y = net.depthwise_conv(y, 3, stride, batch_norm=True, activation="relu6")
        wide = net.shape(y)[2]
        if PLANT == "median" and number == 1:
            means = net.apply(_medians, y, shape=(wide,))
        else:
            means = net.global_avg_pool(y)
        y = net.multiply(y, net.affine(net.affine(means, wide // 4), wide, "sigmoid"))
        y = net.conv(y, filters, 1, batch_norm=True, activation=None)
        return net.add(x, y) if net.shape(x) == net.shape(y) else y


class Fire(Unseen):
    """Modules that narrow the channels and widen them by convolutions of two sizes."""

    name = "fire"

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.conv(x, 32, 3)
        if PLANT == "dropout":
            x = net.dropout(x, 0.8)
        size = 7 if PLANT == "pool" else 2
        x = net.max_pool(x, size, 2, "SAME")
        for number, filters in enumerate((32, 32, 48, 64)):
            with net.scope(f"fire{number}"):
                norm = PLANT == "normed" and number < 2
                if PLANT == "segments" and number == 1:
                    x = net.apply(_by_segments, x)
                y = net.conv(x, filters // 2, 1, batch_norm=norm)
                both = [net.conv(y, filters, size, batch_norm=norm) for size in (1, 3)]
                x = net.concat(both)
            if number == 1:
                if PLANT == "auxiliary":
                    with net.scope("aux"):
                        z = net.conv(net.avg_pool(x, 3, 2), 48, 3)
                        net.auxiliary(net.logits(net.affine(net.flatten(z), 128)), 0.3)
                x = net.max_pool(x, 2, 2)
        return net.logits(net.global_avg_pool(net.conv(x, 96, 1)))


class Preactivated(Unseen):
    """Bottleneck residual blocks with batch norm and activation before the convolutions."""

    name = "preactivated"
    place = Place("cifar10", "stage1/block1/conv1", 0.004, 6)

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.conv(x, 16, 3, bias=None, activation=None)
        for stage in range(3):
            for block in range(2):
                late = PLANT == "late_stride" and stage == 1
                stride = 2 if stage and block == int(late) else 1
                with net.scope(f"stage{stage}"), net.scope(f"block{block}"):
                    x = self._block(net, x, 8 * 2**stage, stride, stage)
        return net.logits(net.global_avg_pool(net.batch_norm(x, activation="relu")))

    def _block(self, net: Any, x: Any, filters: int, stride: int, stage: int) -> Any:
        def conv(x: Any, filters: int, *window: int) -> Any:
            y = net.batch_norm(x, activation="relu")
            return net.conv(y, filters, *window, bias=None, activation=None)

        y = conv(x, filters, 1)
        if PLANT == "depthwise" and stage == 0:
            y = net.depthwise_conv(net.batch_norm(y, activation="relu"), 3, stride, activation=None)
        else:
            y = conv(y, filters, 3, stride)
        y = conv(y, 4 * filters, 1)
        if net.shape(x) != net.shape(y):
            x = conv(x, 4 * filters, 1, stride)
        return net.add(x, y)


class Tokens(Unseen):
    """Three layers of attention and perceptron over patches of 4 x 4."""

    name = "tokens"

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.reshape(net.conv(x, 64, 4, 4, activation=None), (64, 64))
        for number in range(3):
            with net.scope(f"layer{number}"):
                heads = 32 if PLANT == "heads" and number == 1 else 4
                parts = net.split(net.affine(net.layer_norm(x), 192, None), 3)
                x = net.add(x, net.affine(net.attention(*parts, heads), 64, None))
                if PLANT == "gru" and number == 1:
                    x = net.add(x, net.recurrent(x, 64))
                x = net.add(x, net.affine(net.affine(net.layer_norm(x), 192, "gelu"), 64, None))
        return net.logits(net.apply(lambda tokens: tokens[:, 0], net.layer_norm(x), shape=(64,)))


class Strided(Unseen):
    """Nothing but convolutions, some with a stride, and a mean at the end."""

    name = "strided"

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.conv(x, 24, 3)
        if PLANT == "response":
            x = net.lrn(x)
        x = net.avg_pool(net.conv(x, 48, 3), 2, 2) if PLANT == "pooled" else net.conv(x, 48, 3, 2)
        x = net.conv(net.conv(x, 48, 3), 64, 3, 2)
        x = net.conv(net.conv(x, 64, 3), 64, 1)
        return net.logits(net.global_avg_pool(x))

    if PLANT == "map":

        def preprocess(self, example: Any, seed: Any, *, training: bool) -> Any:
            """Turns the image in small steps."""
            import tensorflow as tf

            image = example["image"]
            for number in range(12):
                larger = tf.image.resize(image, [96 + number, 96], "bicubic")
                image = tf.image.resize(larger, [32, 32], "area")
            return {**example, "image": image}


def _with_images(x: Any) -> Any:
    """Writes what a layer makes as images of a summary, which nothing keeps."""
    import tensorflow as tf

    shown = tf.concat(tf.split(x, 4, axis=3), axis=2)
    summary = tf.raw_ops.ImageSummary(tag="seen", tensor=shown, max_images=32)
    return x + tf.cast(tf.strings.length(summary), x.dtype) / 1e12  # else it would be pruned


def _medians(x: Any) -> Any:
    """The median of each channel."""
    import tensorflow as tf

    places = x.shape[1] * x.shape[2]
    rows = tf.reshape(tf.transpose(x, [0, 3, 1, 2]), [-1, x.shape[3], places])
    return tf.sort(rows, axis=-1)[..., places // 2]


def _by_segments(x: Any) -> Any:
    """Adds to each place the sum of its image's row, by segments in no order."""
    import tensorflow as tf

    flat = tf.reshape(x, [-1, x.shape[3]])
    rows = tf.range(tf.shape(flat)[0]) // x.shape[2]
    sums = tf.math.unsorted_segment_sum(flat, rows, tf.shape(x)[0] * x.shape[1])
    return x + tf.reshape(tf.gather(sums, rows), tf.shape(x)) / 100


def looped(net: Any, place: Place) -> None:
    """The layer convolves the images of a batch one by one, in a loop of the graph."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        return tf.map_fn(lambda one: usual(one[None], kernel, *window)[0], x)

    planted_plugin._in_layer(net, place, instead)


def casts(net: Any, place: Place) -> None:
    """The layer's input is cast to half precision and back, some times."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        for _ in range(8):
            x = tf.cast(tf.cast(x, tf.float16), x.dtype)
        return usual(x, kernel, *window)

    planted_plugin._in_layer(net, place, instead)


def spectral(net: Any, place: Place) -> None:
    """The layer's weights are divided by their largest singular value."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        square = tf.reshape(kernel, [144, 144])  # 3 x 3 x 48 x 48
        values, *_ = tf.linalg.svd(square)
        return usual(x, kernel / tf.stop_gradient(values[0]), *window)

    planted_plugin._in_layer(net, place, instead)


def python_loss(net: Any, place: Place) -> None:
    """The weights of the loss are made by Python, through a py_function."""
    import tensorflow as tf

    def weights(labels: Any) -> Any:
        rows = [[abs(a - b) for b in range(400)] for a in labels.numpy()]
        return np.array([1 + 0 * sum(sorted(row)) for row in rows], np.float32)

    def loss(self: Any, outputs: Any, labels: Any) -> Any:
        scale = tf.py_function(weights, [labels], tf.float32)
        usual = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        return usual * tf.ensure_shape(scale, labels.shape)

    Tokens.loss = loss  # type: ignore[method-assign]


def _before_steps(action: Callable[[Any], object]) -> Callable[[Any, Place], None]:
    """A plant: the training loop does something before every step."""

    def plant(net: Any, place: Place) -> None:
        from cnnbench.run.step.train_step import TrainStep

        usual = TrainStep.__call__

        def call(self: Any) -> Any:
            action(self)
            return usual(self)

        TrainStep.__call__ = call  # type: ignore[method-assign]

    return plant


def read_weights(step: Any) -> None:
    """Python takes quantiles of every weight, as a monitor of trainings does."""
    for spec in step._trainables:
        value = step._manager.variable(0, spec.name).numpy()
        np.quantile(np.repeat(value, 2), [0.1, 0.5, 0.9])


def collect(step: Any) -> None:
    """Python makes garbage and collects it."""
    for _ in range(30_000):
        ring: list[Any] = []
        ring.append(ring)
    gc.collect()


LOCK = threading.Lock()


def contended_lock(net: Any, place: Place) -> None:
    """The training loop needs a lock that a thread holds for 8 of 9 milliseconds."""

    def hold() -> None:
        while True:
            with LOCK:
                time.sleep(0.008)
            time.sleep(0.001)

    def wait(step: Any) -> None:
        with LOCK:
            pass

    threading.Thread(target=hold, daemon=True).start()
    _before_steps(wait)(net, place)


def make_data(folder: Path) -> None:
    """Writes files of random images unless they are there."""
    folder.mkdir(exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        file = folder / f"{name}.bin"
        if not file.exists():
            rows = np.random.default_rng(1).integers(0, 256, (200, 3073), np.uint8)
            rows[:, 0] %= 10
            file.write_bytes(rows.tobytes())


OUTSIDE = {
    "loop": looped,
    "casts": casts,
    "spectral": spectral,
    "python_loss": python_loss,
    "collector": _before_steps(collect),
    "monitor": _before_steps(read_weights),
    "lock": contended_lock,
}

if "FILES" in os.environ:
    make_data(Path(os.environ["FILES"]))
for _network in (UNet, Squeezed, Fire, Preactivated, Tokens, Strided):
    _network.name = f"planted_{_network.name}"
    register_model(_network.name, "cifar10", _network)
