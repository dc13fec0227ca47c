"""DeepSpeech 2: size, network, loss over all alignments, and error rates against jiwer.

Tests models/networks/deepspeech.py.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import transcripts
from covering import slow_if
from networks import forward
from residual_networks import InOrder, relative_error

from cnnbench.models import declare, get_model
from cnnbench.models.networks.deepspeech import frames_left

A, B, C = 1, 2, 3


@pytest.fixture
def small():
    model = get_model("deepspeech2", "librispeech")
    model.max_frames, model.min_frames, model.max_letters = 24, 20, 4
    model.units, model.recurrent_layers = 6, 2
    return model


def test_its_size():
    spec = declare(get_model("deepspeech2", "librispeech"), 29)
    convolutions = 41 * 11 * 32 + 21 * 11 * 32 * 32 + 2 * 2 * 32
    lstm = [2 * (inputs + 800 + 1) * 3200 for inputs in (81 * 32, *[1600] * 4)]
    norms = 5 * 2 * 1600
    assert spec.parameters == convolutions + sum(lstm) + norms + 1600 * 29 + 29


def labels_of(*transcripts, frames):
    letters = np.zeros((len(transcripts), 4), np.int64)
    for row, transcript in enumerate(transcripts):
        letters[row, : len(transcript)] = transcript
    return {
        "num_frames": tf.constant(frames, tf.int64),
        "transcript": tf.constant(letters),
        "transcript_length": tf.constant([len(t) for t in transcripts], tf.int64),
    }


def every_alignment(logits, transcript, blank):
    """Minus the logarithm of the sum over all ways to tell the transcript."""
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    ways = itertools.product(range(logits.shape[1]), repeat=len(logits))
    total = sum(
        math.prod(share[t, one] for t, one in enumerate(way))
        for way in ways
        if [k for k, _ in itertools.groupby(way) if k != blank] == transcript
    )
    return -math.log(total)


def test_the_loss_sums_over_all_alignments(small):
    logits = np.random.default_rng(1).normal(size=(4, 5, 4)).astype("f4")
    transcripts = [[A, B], [A, A], [0, 2, 1], [B, B]]
    frames = [20, 17, 20, 8]  # 5, 5, 5 and 2 of them are left
    found = small.loss(tf.constant(logits), labels_of(*transcripts, frames=frames)).numpy()
    expected = [
        every_alignment(rows, transcript, 3)
        for rows, transcript in zip(logits[:3], transcripts[:3], strict=True)
    ]
    np.testing.assert_allclose(found[:3], expected, rtol=1e-4)
    assert found[3] == 0  # two equal letters need three frames


@pytest.mark.parametrize(("frames", "left"), [(1, 1), (4, 1), (5, 2), (24, 6), (3494, 874)])
def test_each_convolution_halves_the_frames(frames, left):
    assert frames_left(frames) == left


JIWER = json.loads((Path(__file__).parent / "references/error_rates.json").read_text())
CASES = transcripts.cases()
BLANK = len(transcripts.LETTERS)


def frames_of(rng, letters):
    """Frames that a recogniser may tell the letters by: some several times, some blank."""
    frames = []
    for letter, before in zip(letters, [None, *letters], strict=False):
        frames += [BLANK] * int(rng.integers(letter == before, 3))
        frames += [letter] * int(rng.integers(1, 4))
    return [*frames, *[BLANK] * int(rng.integers(0, 3))]


@pytest.mark.parametrize("case", CASES)
def test_error_rates_are_those_of_jiwer(case, small):
    """See references/transcripts.py for the cases, and how the numbers were made."""
    rng = np.random.default_rng(1)
    said, heard = (
        [[transcripts.LETTERS.index(letter) for letter in text] for text in column]
        for column in zip(*CASES[case], strict=True)
    )
    told = [frames_of(rng, letters) for letters in heard]

    def padded(rows, value):
        width = max(map(len, rows))
        return np.array([[*row, *[value] * (width - len(row))] for row in rows], np.int8)

    rows = {
        "letters": padded([*told, [BLANK]], BLANK)[:-1],
        "blank": np.full(len(told), BLANK),
        "transcript": padded(said, 0),
        "transcript_length": np.array([len(letters) for letters in said]),
    }
    assert small.host_metrics(rows) == pytest.approx(JIWER["error_rates"][case], rel=1e-12)


def test_frames_behind_the_end_tell_nothing(small):
    logits = tf.one_hot([[A, B, C, A, B, C]], 29)
    rows = small.host_rows(None, logits, labels_of([A, B], frames=[8]))
    assert rows["letters"].numpy().tolist() == [[A, B, 28, 28, 28, 28]]
    found = small.host_metrics({name: value.numpy() for name, value in rows.items()})
    assert found == {"word_error_rate": 0.0, "letter_error_rate": 0.0}


# The network -------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(("frames", "training"), slow_if([(18, False)], [(18, False), (25, True)]))
def test_its_logits(frames, training, make_weights):
    model = get_model("deepspeech2", "librispeech")
    model.max_frames, model.units, model.recurrent_layers = frames, 6, 3
    model.num_classes = CLASSES
    variables = declare(model, CLASSES).variables
    weights = make_weights(variables)
    spectrogram = np.random.default_rng(2).normal(0, 3, (2, frames, 161)).astype(np.float32)
    reference = Reference(weights.values, training=training)
    expected = reference(tf.constant(spectrogram, tf.float64), 6, 3)
    found = forward(model, CLASSES, tf.constant(spectrogram), weights.read, training=training)
    assert found.outputs.shape == (2, -(-frames // 4), CLASSES)
    assert relative_error(found.outputs, expected) < 1e-5
