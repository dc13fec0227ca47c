"""Six small networks that no rule of cnnbench explain was made with, and plants in them.

The environment variable PLANT names what the network of a process is given. Plants that change
layers are in the bodies of the networks, the others in `OUTSIDE` and in planted_plugin.py.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

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
    place = Place("cifar10", "conv1", 0.004, 6)

    def build(self, net: Any, images: Any) -> Any:
        """The body of the network, with what PLANT names."""
        plant = {**planted_plugin.PLANTS, **OUTSIDE}.get(PLANT)
        if plant is not None and hasattr(net, "moments"):  # with tensors
            plant(net, self.place)
        return self.body(net, images)

    def body(self, net: Any, x: Any) -> Any:
        """The layers."""
        raise NotImplementedError


class Plain(Unseen):
    """Four convolutions of 3 x 3, two of them behind a pooling layer, then 256 units."""

    name = "plain"

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.conv(x, 32, 3)
        if PLANT != "removed":
            x = net.conv(x, 32, 5 if PLANT == "kernel_size" else 3)
        x = net.conv(net.max_pool(x, 2, 2), 96 if PLANT == "wider" else 64, 3)
        if PLANT == "inserted":
            x = net.conv(x, 64, 1)
        x = net.max_pool(net.conv(x, 64, 3), 2, 2)
        return net.logits(net.affine(net.flatten(x), 256))


class Residual(Unseen):
    """Three stages of two residual blocks with batch norm."""

    name = "residual"
    prefix = "part" if PLANT == "kernel_renamed" else "stage"
    place = Place("cifar10", f"{prefix}0/block0/conv1", 0.004, 6)

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.conv(x, 16, 3, batch_norm=True)
        for stage in range(3):
            for block in range(4 if PLANT == "deeper" and stage == 1 else 2):
                with net.scope(f"{self.prefix}{stage}"), net.scope(f"block{block}"):
                    x = self._block(net, x, 16 * 2**stage, 2 if stage and not block else 1)
        return net.logits(net.global_avg_pool(x))

    def _block(self, net: Any, x: Any, filters: int, stride: int) -> Any:
        y = net.conv(x, filters, 3, stride, batch_norm=True)
        y = net.conv(y, filters, 3, batch_norm=True, activation=None)
        if stride > 1:
            x = net.conv(x, filters, 1, stride, batch_norm=True, activation=None)
        return net.relu(net.add(x, y))


class Separable(Unseen):
    """Depthwise and 1 x 1 convolutions in turn."""

    name = "separable"
    place = Place("cifar10", "conv2", 0.0015, 6)

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.conv(x, 32, 3, batch_norm=True)
        for number, filters in enumerate((32, 64, 64, 128)):
            size = 7 if PLANT == "kernel_size" and number == 1 else 3
            x = net.depthwise_conv(x, size, 1 + number % 2, batch_norm=True, activation="relu6")
            x = net.conv(x, filters, 1, batch_norm=True, activation="relu6")
        return net.logits(net.global_avg_pool(x))


class Branches(Unseen):
    """Three blocks of parallel convolutions."""

    name = "branches"
    place = Place("cifar10", "mixed1/conv1", 0.004, 12)

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.max_pool(net.conv(x, 32, 3), 2, 2)
        order = [16, 24, 32]
        for number, filters in enumerate(order):
            with net.scope(f"mixed{number}"):
                branches = [net.conv(x, filters, 1), net.conv(x, filters, 3)]
                if PLANT != "removed" or number != 1:
                    branches.append(net.conv(net.conv(x, filters, 1), filters, 5))
                if PLANT == "inserted" and number == 2:
                    branches.append(net.conv(x, filters, 7))
                x = net.concat(branches)
        return net.logits(net.global_avg_pool(x))


class Connected(Unseen):
    """Convolutions that each see the values of all before, with batch norm."""

    name = "connected"
    place = Place("cifar10", "conv4", 0.0015, 6)

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        x = net.conv(x, 24, 3, 2, batch_norm=True)
        for number in range(9 if PLANT == "deeper" else 6):
            wide = PLANT == "wider" and number == 5
            y = net.conv(x, 48 if wide else 12, 3, batch_norm=True)
            x = net.concat([x, y])
        x = net.conv(x, 64, 1, batch_norm=True)
        return net.logits(net.global_avg_pool(x))


class Perceptron(Unseen):
    """Four layers of 768 units."""

    name = "perceptron"
    place = Place("cifar10", "affine1", 0.004, 4)

    def body(self, net: Any, x: Any) -> Any:
        """See the class."""
        if PLANT == "family":
            return Plain.body(self, net, x)  # type: ignore[arg-type]
        x = net.flatten(x)
        for number in range(4):
            x = net.affine(x, 1536 if PLANT == "wider" and number == 1 else 768)
            if PLANT == "inserted" and number == 2:
                x = net.affine(x, 512)
        return net.logits(x)


def burning_thread(net: Any, place: Place) -> None:
    """A thread of the program counts as fast as Python can."""

    def burn() -> None:
        number = 0
        while True:
            number += 1

    threading.Thread(target=burn, daemon=True).start()


def through_numpy(net: Any, place: Place) -> None:
    """The input of one layer goes through NumPy, too."""
    import numpy as np
    import tensorflow as tf

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        same = tf.numpy_function(lambda v: np.sort(v, axis=-1) * np.float32(0), [x], x.dtype)
        same.set_shape(x.shape)
        return usual(x + tf.stop_gradient(same), kernel, *window)

    planted_plugin._in_layer(net, place, instead)


def transposed(net: Any, place: Place) -> None:
    """The layer's input is transposed and back."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        turned = tf.transpose(x, [0, 3, 2, 1])
        turned = tf.roll(turned, 1, axis=0)
        return usual(tf.transpose(turned, [0, 3, 2, 1]), kernel, *window)

    planted_plugin._in_layer(net, place, instead)


def in_fp64(net: Any, place: Place) -> None:
    """The layer computes in double precision."""
    import tensorflow as tf

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        wide = usual(tf.cast(x, tf.float64), tf.cast(kernel, tf.float64), *window)
        return tf.cast(wide, x.dtype)

    planted_plugin._in_layer(net, place, instead)


def slow_backward(net: Any, place: Place) -> None:
    """The gradient of one layer's output is sorted on its way back."""
    import tensorflow as tf

    @tf.custom_gradient
    def slow(y: Any) -> Any:
        return tf.identity(y), lambda dy: dy + 0 * tf.sort(tf.sort(dy, axis=-1), axis=1)

    def instead(usual: Any, x: Any, kernel: Any, *window: Any) -> Any:
        return slow(usual(x, kernel, *window))

    planted_plugin._in_layer(net, place, instead)


OUTSIDE = {
    "kernel_renamed": planted_plugin.twice_the_work,
    "burner": burning_thread,
    "numpy": through_numpy,
    "transposes": transposed,
    "float64": in_fp64,
    "backward": slow_backward,
}

for _network in (Plain, Residual, Separable, Branches, Connected, Perceptron):
    _network.name = f"planted_{_network.name}"
    register_model(_network.name, "cifar10", _network)
