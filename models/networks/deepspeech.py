"""DeepSpeech 2: predicts letters from the spectrogram of an utterance.

Source: Amodei et al., arXiv:1512.02595, as in tf_cnn_benchmarks and TensorFlow's official models:
two convolutions and five bidirectional LSTMs, trained by connectionist temporal classification.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cnnbench import lazy_tensorflow as tf
from cnnbench.arrays import Array, Tensor
from cnnbench.models import BatchNorm, Element, LearningRateSpec, Model, Network, T, register_model

SPACE = 0
"""Class of the space between two words. The last class is the blank."""

_FILTERS = 32
_SHRINK = 2  # The stride of each convolution over the frames.


class DeepSpeech2(Model):
    """DeepSpeech 2: computes logits of the letters and the blank for every fourth 10-ms frame.

    Synthetic utterances have at least `min_frames` frames, which is enough for `max_letters`
    letters.
    """

    name = "deepspeech2"
    dataset = "librispeech"
    num_classes = 29
    batch_size = 128
    batch_norm = BatchNorm(decay=0.997, epsilon=1e-5)
    learning_rate = LearningRateSpec(0.0005)
    elements = (
        Element("spectrogram", ("max_frames", 161), "feature"),
        Element("num_frames", (), "label", "int64"),
        Element("transcript", ("max_letters",), "label", "int64"),
        Element("transcript_length", (), "label", "int64"),
    )
    metric_names = ()  # Error rates are not means.
    host_metric_names = ("word_error_rate", "letter_error_rate")
    lower_is_better = host_metric_names
    max_frames = 3494
    min_frames = 2800
    max_letters = 576
    units = 800
    recurrent_layers = 5

    def build(self, net: Network[T], spectrogram: T) -> T:
        """Builds convolutions and LSTMs. Returns logits ``(frames / 4, num_classes)``."""
        x = net.reshape(spectrogram, (*net.shape(spectrogram), 1))
        for kernel, stride in (((41, 11), (_SHRINK, 2)), ((21, 11), (_SHRINK, 1))):
            x = net.conv(x, _FILTERS, kernel, stride, "SAME_RESNET", activation="relu6", bias=None)
            # Batch norm follows the ReLU here; in the paper, it comes before the ReLU.
            x = net.batch_norm(x)
        frames, bins, filters = net.shape(x)
        x = net.reshape(x, (frames, bins * filters))
        for layer in range(self.recurrent_layers):
            if layer:
                x = net.batch_norm(x)
            x = net.recurrent(x, self.units, "lstm", bidirectional=True)
        return net.logits(net.batch_norm(x))

    def loss(self, outputs: Tensor, labels: Mapping[str, Tensor]) -> Tensor:
        """Computes the CTC loss: the negative log probability of the transcript.

        The loss is 0 if there are too few frames for the letters of the transcript.
        """
        from cnnbench.models.ctc import ctc_loss

        frames = frames_left(labels["num_frames"])
        return ctc_loss(outputs, labels["transcript"], labels["transcript_length"], frames)

    def host_rows(
        self, features: Tensor, outputs: Tensor, labels: Mapping[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Returns the most likely letter (or blank) of each frame, and the true transcript."""
        del features
        best = tf.argmax(outputs, axis=-1)
        there = tf.range(best.shape[1], dtype=tf.int64) < frames_left(labels["num_frames"])[:, None]
        return {
            "letters": tf.cast(tf.where(there, best, outputs.shape[-1] - 1), tf.int8),
            "blank": tf.fill([tf.shape(best)[0]], outputs.shape[-1] - 1),
            "transcript": tf.cast(labels["transcript"], tf.int8),
            "transcript_length": labels["transcript_length"],
        }

    def host_metrics(self, rows: Mapping[str, Array]) -> Mapping[str, float]:
        """Computes the word and letter error rates: edit distance divided by transcript length."""
        wrong = {"word": 0, "letter": 0}
        total = {"word": 0, "letter": 0}
        columns = (rows[name] for name in ("letters", "blank", "transcript", "transcript_length"))
        for frames, blank, transcript, length in zip(*columns, strict=True):
            # In CTC, equal letters in consecutive frames are merged first, and then blanks are
            # removed.
            heard = [letter for letter, _ in itertools.groupby(frames.tolist()) if letter != blank]
            true = transcript[:length].tolist()
            for unit, hypothesis, reference in (
                ("word", split_words(heard), split_words(true)),
                ("letter", heard, true),
            ):
                wrong[unit] += edit_distance(hypothesis, reference)
                total[unit] += len(reference)
        return {
            f"{unit}_error_rate": wrong[unit] / total[unit] if total[unit] else math.nan
            for unit in wrong
        }


def frames_left(frames: Any) -> Any:
    """Returns the number of frames that remain after the network's two convolutions.

    `frames` is an integer, or a tensor of integers.
    """
    for _ in range(2):
        frames = (frames + _SHRINK - 1) // _SHRINK
    return frames


def split_words(letters: Sequence[int]) -> list[tuple[int, ...]]:
    """Splits a sequence of letter classes into words at spaces; empty words are omitted."""
    parts = itertools.groupby(letters, lambda letter: letter == SPACE)
    return [tuple(word) for is_space, word in parts if not is_space]


def edit_distance(first: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns the Levenshtein distance: the fewest edits that turn one sequence into another.

    An edit inserts, deletes or substitutes one element.
    """
    import numpy as np

    numbers = {value: number for number, value in enumerate(dict.fromkeys([*first, *other]))}
    row_values = np.array([numbers[value] for value in other], dtype=np.int64)
    places = np.arange(len(other) + 1)
    row = places
    for count, value in enumerate(first, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (row_values != numbers[value]))
        # Each insertion costs 1 and moves one position to the right in `row`.
        row = np.minimum.accumulate(np.concatenate([[count], best]) - places) + places
    return int(row[-1])


register_model("deepspeech2", "librispeech", DeepSpeech2)
