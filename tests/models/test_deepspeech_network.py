"""DeepSpeech 2's logits against the network of TensorFlow's official models."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import forward
from residual_networks import InOrder, relative_error

from cnnbench.models import declare, get_model

CLASSES = 7


class Reference(InOrder):
    """The network in float64."""

    def conv(self, x, size, strides, zeros, filters):
        """Zeros on both sides of both directions, then a filter wherever it fits."""
        kernel = self.take("kernel", *size, x.shape[3], filters)
        x = tf.pad(x, [(0, 0), (zeros[0],) * 2, (zeros[1],) * 2, (0, 0)])
        return tf.nn.conv2d(x, kernel, strides, "VALID")

    def lstm(self, x, units):
        """States after each frame, of a cell without peepholes, that forgets with a bias of 1."""
        kernel = self.take("kernel", x.shape[2], 4 * units)
        recurrent = self.take("recurrent", units, 4 * units)
        bias = self.take("bias", 4 * units)
        output = memory = tf.zeros([len(x), units], tf.float64)
        states = []
        for frame in range(x.shape[1]):
            gates = tf.split(x[:, frame] @ kernel + output @ recurrent + bias, 4, axis=1)
            take, forget, candidate, put = gates
            memory = tf.sigmoid(forget + 1) * memory + tf.sigmoid(take) * tf.tanh(candidate)
            output = tf.sigmoid(put) * tf.tanh(memory)
            states.append(output)
        return tf.stack(states, axis=1)

    def __call__(self, spectrogram, units, layers):
        x = spectrogram[..., None]
        for size, strides, zeros in (((41, 11), (2, 2), (20, 5)), ((21, 11), (2, 1), (10, 5))):
            # The norm comes behind the ReLU here.
            x = self.norm(tf.nn.relu6(self.conv(x, size, strides, zeros, 32)))
        x = tf.reshape(x, [*x.shape[:2], -1])
        for layer in range(layers):
            x = self.norm(x) if layer else x
            ahead = self.lstm(x, units)
            x = tf.concat([ahead, self.lstm(x[:, ::-1], units)[:, ::-1]], axis=2)
        x = self.norm(x)
        logits = x @ self.take("kernel", x.shape[2], CLASSES) + self.take("bias", CLASSES)
        self.done()
        return logits


@pytest.mark.parametrize(("frames", "training"), [(18, False), (25, True)])
def test_its_logits(frames, training, make_weights):
    model = get_model("deepspeech2", "librispeech")
    model.max_frames, model.units, model.recurrent_layers = frames, 6, 3
    variables = declare(model, CLASSES).variables
    weights = make_weights(variables)
    spectrogram = np.random.default_rng(2).normal(0, 3, (2, frames, 161)).astype(np.float32)
    reference = Reference(weights.values, training=training)
    expected = reference(tf.constant(spectrogram, tf.float64), 6, 3)
    found = forward(model, CLASSES, tf.constant(spectrogram), weights.read, training=training)
    assert found.outputs.shape == (2, -(-frames // 4), CLASSES)
    assert relative_error(found.outputs, expected) < 1e-5
