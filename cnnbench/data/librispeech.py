"""LibriSpeech: spectrograms and their transcripts, from TFRecord files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cnnbench.data import librispeech_records
from cnnbench.data.librispeech_records import (
    ALPHABET,
    AUDIO,
    BINS,
    SAMPLE_RATE,
    STRIDE,
    TEXT,
    WINDOW,
)
from cnnbench.data.records import RecordPipeline, padded, require
from cnnbench.data.spec import InputSpec

_SILENCE = 1e-10  # added to the power, whose logarithm is taken
_NUMBERS = np.array([ALPHABET.find(byte) for byte in range(256)])


class LibriSpeechPipeline(RecordPipeline):
    """Log-power spectrograms, each frequency normalised over its utterance."""

    def __init__(self, spec: InputSpec) -> None:
        super().__init__(spec)
        sizes = {element.name: element.sizes for element in spec.examples}
        self._max_frames = sizes["spectrogram"][0]
        self._max_letters = sizes["transcript"][0]

    def decode(self, record: tf.Tensor, position: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """See `RecordPipeline.decode`."""
        del position  # nothing is random
        keys = {key: tf.io.FixedLenFeature([], tf.string) for key in (AUDIO, TEXT)}
        found = tf.io.parse_single_example(record, keys)
        audio, rate = tf.audio.decode_wav(found[AUDIO])
        letters = tf.gather(_NUMBERS, tf.cast(tf.io.decode_raw(found[TEXT], tf.uint8), tf.int32))
        samples = tf.shape(audio)[0]
        count = tf.size(letters)
        repeated = tf.math.count_nonzero(letters[1:] == letters[:-1], dtype=tf.int32)
        frames = 1 + (samples - WINDOW) // STRIDE
        sound = [
            require(tf.equal(rate, SAMPLE_RATE), rate),
            require(tf.equal(tf.shape(audio)[1], 1), "channels"),
            require(tf.reduce_all(letters >= 0), "letters"),
            require((samples >= WINDOW) & (frames <= self._max_frames), frames),
            require((count >= 1) & (count <= self._max_letters), count),
            require(count + repeated <= frames, count, frames),
        ]
        with tf.control_dependencies(sound):
            rows = spectrogram(audio[:, 0])
        return {
            "spectrogram": padded(rows, self._max_frames),
            "num_frames": tf.cast(frames, tf.int64),
            "transcript": padded(letters, self._max_letters),
            "transcript_length": tf.cast(count, tf.int64),
        }

    def examine(self, record: bytes) -> object:
        """See `RecordPipeline.examine`."""
        return librispeech_records.examine(record, self._max_frames, self._max_letters)


def spectrogram(samples: Any) -> tf.Tensor:
    """Log power, float32 [frames, 161], of the frequencies from 0 to 8 kHz, every 10 ms.

    The samples are float32 [n >= 320] in [-1, 1] at 16 kHz. Over the frames each frequency has mean
    0 and deviation 1.
    """
    waves = tf.signal.stft(samples, WINDOW, STRIDE, WINDOW)
    power = tf.math.log(tf.square(tf.abs(waves)) + _SILENCE)
    mean, variance = tf.nn.moments(power, axes=[0], keepdims=True)
    return tf.ensure_shape((power - mean) / (tf.sqrt(variance) + 1e-6), [None, BINS])
