"""DeepSpeech 2's logits against a NumPy version of the network of TensorFlow's official models."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.models import declare, get_model
from cnnbench.models.graph import forward

CLASSES = 7


class Reference:
    """Layers in float64; weights are taken in the order of creation."""

    def __init__(self, variables, values, training):
        self.variables, self.values, self.training = iter(variables), values, training

    def take(self, ending, *shape):
        variable = next(self.variables)
        assert variable.name.endswith(ending)
        assert tuple(variable.shape) == shape
        return self.values[variable.name].numpy().astype(np.float64)

    def conv(self, x, size, strides, zeros, filters):
        """Zeros on both sides of both directions, then a filter wherever it fits."""
        kernel = self.take("kernel", *size, x.shape[3], filters)
        x = np.pad(x, [(0, 0), (zeros[0],) * 2, (zeros[1],) * 2, (0, 0)])
        counts = [(x.shape[1 + i] - size[i]) // strides[i] + 1 for i in (0, 1)]
        y = np.empty((len(x), *counts, filters))
        for row, column in itertools.product(*map(range, counts)):
            top, left = row * strides[0], column * strides[1]
            part = x[:, top : top + size[0], left : left + size[1]]
            y[:, row, column] = np.tensordot(part, kernel, 3)
        return y

    def norm(self, x):
        names = ("gamma", "beta", "moving_mean", "moving_variance")
        gamma, beta, mean, variance = (self.take(name, x.shape[-1]) for name in names)
        if self.training:
            others = tuple(range(x.ndim - 1))
            mean, variance = x.mean(others), x.var(others)
        return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    def lstm(self, x, units):
        """States after each frame, of a cell without peepholes, that forgets with a bias of 1."""

        def sigmoid(z):
            return 1 / (1 + np.exp(-z))

        kernel = self.take("kernel", x.shape[2], 4 * units)
        recurrent = self.take("recurrent", units, 4 * units)
        bias = self.take("bias", 4 * units)
        output, memory, states = np.zeros((len(x), units)), np.zeros((len(x), units)), []
        for frame in range(x.shape[1]):
            gates = np.split(x[:, frame] @ kernel + output @ recurrent + bias, 4, axis=1)
            take, forget, candidate, put = gates
            memory = sigmoid(forget + 1) * memory + sigmoid(take) * np.tanh(candidate)
            output = sigmoid(put) * np.tanh(memory)
            states.append(output)
        return np.stack(states, axis=1)

    def __call__(self, spectrogram, units, layers):
        x = spectrogram[..., None]
        for size, strides, zeros in (((41, 11), (2, 2), (20, 5)), ((21, 11), (2, 1), (10, 5))):
            # The norm comes behind the ReLU here.
            x = self.norm(np.clip(self.conv(x, size, strides, zeros, 32), 0, 6))
        x = x.reshape(*x.shape[:2], -1)
        for layer in range(layers):
            x = self.norm(x) if layer else x
            ahead = self.lstm(x, units)
            x = np.concatenate([ahead, self.lstm(x[:, ::-1], units)[:, ::-1]], axis=2)
        x = self.norm(x)
        return x @ self.take("kernel", x.shape[2], CLASSES) + self.take("bias", CLASSES)


@pytest.mark.parametrize(("frames", "training"), [(18, False), (25, True)])
def test_its_logits(frames, training, make_weights):
    model = get_model("deepspeech2", "librispeech")
    model.max_frames, model.units, model.recurrent_layers = frames, 6, 3
    variables = declare(model, CLASSES).variables
    weights = make_weights(variables)
    spectrogram = np.random.default_rng(2).normal(0, 3, (2, frames, 161)).astype(np.float32)
    reference = Reference(variables, weights.values, training)
    expected = reference(spectrogram.astype(np.float64), 6, 3)
    assert next(reference.variables, None) is None
    found = forward(model, CLASSES, tf.constant(spectrogram), weights.read, training=training)
    assert found.outputs.shape == (2, -(-frames // 4), CLASSES)
    assert np.linalg.norm(found.outputs - expected) < 1e-5 * np.linalg.norm(expected)
