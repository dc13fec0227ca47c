"""Residual networks written from their papers with plain functions in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


class Layers:
    """Layers whose weights are taken by name.

    Attributes:
      used: names of the weights taken so far.
    """

    def __init__(self, values: Mapping[str, Any], training: bool = False) -> None:
        self.values, self.training = values, training
        self.used: set[str] = set()

    def get(self, name: str) -> tf.Tensor:
        self.used.add(name)
        return tf.cast(self.values[name], tf.float64)

    def conv(self, x: Any, name: str, stride: int = 1, groups: int = 1) -> tf.Tensor:
        """As many zeros on both sides as the kernel asks for, whatever the image."""
        kernel = self.get(f"{name}/kernel")
        before = (kernel.shape[0] - 1) // 2
        around = [before, kernel.shape[0] - 1 - before]
        x = tf.pad(x, [[0, 0], around, around, [0, 0]])
        parts = zip(tf.split(x, groups, 3), tf.split(kernel, groups, 3), strict=True)
        return tf.concat([tf.nn.conv2d(p, k, stride, "VALID") for p, k in parts], 3)

    def norm(self, x: Any, name: str, scale: bool = True) -> tf.Tensor:
        gamma = self.get(f"{name}/gamma") if scale else 1.0
        mean, variance = (self.get(f"{name}/moving_{what}") for what in ("mean", "variance"))
        if self.training:
            mean, variance = tf.nn.moments(x, [0, 1, 2])
        return gamma * (x - mean) / tf.sqrt(variance + 1e-5) + self.get(f"{name}/beta")

    def affine(self, x: Any, name: str) -> tf.Tensor:
        return x @ self.get(f"{name}/kernel") + self.get(f"{name}/bias")

    def logits(self, x: Any) -> tf.Tensor:
        """Of the mean over the image; all weights have been taken."""
        result = self.affine(tf.reduce_mean(x, [1, 2]), "affine0")
        assert self.used == set(self.values)
        return result


class InOrder:
    """Layers whose weights are taken in the order of creation; `done` checks that all were."""

    def __init__(
        self, values: Mapping[str, Any], epsilon: float = 1e-5, *, training: bool = False
    ) -> None:
        self.left, self.epsilon, self.training = iter(values.items()), epsilon, training

    def take(self, ending: str, *shape: int) -> tf.Tensor:
        name, value = next(self.left)
        assert name.endswith(ending)
        assert not shape or tuple(value.shape) == shape
        return tf.cast(value, tf.float64)

    def norm(self, x: Any) -> tf.Tensor:
        names = ("gamma", "beta", "moving_mean", "moving_variance")
        gamma, beta, mean, variance = (self.take(name, x.shape[-1]) for name in names)
        if self.training:
            mean, variance = tf.nn.moments(x, list(range(len(x.shape) - 1)))
        return (x - mean) / tf.sqrt(variance + self.epsilon) * gamma + beta

    def done(self) -> None:
        assert next(self.left, None) is None


class ResNet(Layers):
    """The networks of He et al. and of TensorFlow's official models.

    Args:
      blocks: per stage.
      strides: of the convolutions of a block that strides by two.
      preactivation: whether norms come before the convolutions (v2).
      scale: whether the first norm of a block of v2 and the last of the network have a scale.
      norms_stem: whether a norm follows the first convolution.
      projects: whether the first block of the first stage has a projection, and those of others.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        blocks: Sequence[int],
        strides: Sequence[int],
        *,
        training: bool = False,
        preactivation: bool = False,
        scale: bool = True,
        norms_stem: bool = True,
        projects: tuple[bool, bool] = (True, True),
    ) -> None:
        super().__init__(values, training)
        self.blocks, self.strides, self.preactivation = blocks, strides, preactivation
        self.scale, self.norms_stem, self.projects = scale, norms_stem, projects

    def __call__(self, images: Any) -> tf.Tensor:
        """The logits."""
        x = self.stem(tf.cast(images, tf.float64))
        for stage, blocks in enumerate(self.blocks):
            for number in range(blocks):
                strides = self.strides if stage and not number else [1] * len(self.strides)
                project = number == 0 and self.projects[min(stage, 1)]
                block = self._preactivated if self.preactivation else self._block
                x = block(x, f"stage{stage}/block{number}", strides, project)
        if self.preactivation:
            x = tf.nn.relu(self.norm(x, f"batchnorm{int(self.norms_stem)}", self.scale))
        return self.logits(x)

    def stem(self, images: Any) -> tf.Tensor:
        x = self.conv(images, "conv0", 2)
        if self.norms_stem:
            x = tf.nn.relu(self.norm(x, "batchnorm0"))
        return tf.nn.max_pool2d(x, 3, 2, "SAME")

    def shortcut(self, x: Any, active: Any, at: str, stride: int, project: bool) -> tf.Tensor:
        if not project:
            return x
        projected = self.conv(active, f"{at}/conv0", stride)
        return projected if self.preactivation else self.norm(projected, f"{at}/batchnorm0")

    def _block(self, x: Any, at: str, strides: Sequence[int], project: bool) -> tf.Tensor:
        shortcut = self.shortcut(x, x, at, max(strides), project)
        for i, stride in enumerate(strides, start=int(project)):
            x = self.norm(self.conv(x, f"{at}/conv{i}", stride), f"{at}/batchnorm{i}")
            if i + 1 < len(strides) + int(project):
                x = tf.nn.relu(x)
        return tf.nn.relu(x + shortcut)

    def _preactivated(self, x: Any, at: str, strides: Sequence[int], project: bool) -> tf.Tensor:
        y = tf.nn.relu(self.norm(x, f"{at}/batchnorm0", self.scale))
        shortcut = self.shortcut(x, y, at, max(strides), project)
        for i, stride in enumerate(strides):
            y = self.conv(y, f"{at}/conv{i + int(project)}", stride)
            if i + 1 < len(strides):
                y = tf.nn.relu(self.norm(y, f"{at}/batchnorm{i + 1}"))
        return y + shortcut


def relative_error(found: Any, expected: Any) -> float:
    """Distance in the norm, as a share of what is expected."""
    found, expected = tf.cast(found, tf.float64), tf.cast(expected, tf.float64)
    return float(tf.norm(found - expected) / tf.norm(expected))
