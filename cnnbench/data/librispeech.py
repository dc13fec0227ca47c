"""LibriSpeech: the pipeline of spectrograms, and the conversion of LibriSpeech into TFRecord
files.
"""

from __future__ import annotations

import io
import itertools
import random
import wave
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from cnnbench.base.files import read_text
from cnnbench.data import folder as output
from cnnbench.data.dataset import InputSpec
from cnnbench.data.folder import Findings, RecordDefect, read_data_file
from cnnbench.data.imagenet import parse_features, serialize_features, single_value
from cnnbench.data.records import RecordPipeline, assert_in_graph, check_records, pad_rows
from cnnbench.errors import DataError, UsageError

# Records of utterances with their transcripts, and the pipeline that computes spectrograms

SAMPLE_RATE = 16_000
WINDOW, STRIDE = 320, 160
"""Samples per frame of a spectrogram (20 ms), and between the starts of two frames (10 ms)."""

BINS = WINDOW // 2 + 1
"""Number of frequencies in a spectrogram."""

ALPHABET = b" abcdefghijklmnopqrstuvwxyz'"
"""Letters; the index is the class. Class 28, after the last letter, is the blank of CTC."""


PREFIX = "librispeech-"
AUDIO = "audio/encoded"
TEXT = "audio/text"
UTTERANCE = "audio/id"


def count_wav_samples(content: bytes) -> int:
    """Counts the samples in a WAV file. RecordDefect if the file does not have 16 bits, 16 kHz and
    one channel.
    """
    try:
        with wave.open(io.BytesIO(content)) as file:
            audio_format = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            samples: int = file.getnframes()
            there = len(file.readframes(samples)) // max(1, audio_format[0] * audio_format[1])
    except (wave.Error, EOFError) as error:
        raise RecordDefect(
            f"the audio is not PCM in a WAV file: {str(error) or 'it is cut off'}"
        ) from error
    if audio_format != (1, 2, SAMPLE_RATE):
        channels, bytes_of_sample, rate = audio_format
        raise RecordDefect(
            f"the audio has {channels} channels of {8 * bytes_of_sample} bits at {rate} Hz, but "
            f"must have 1 channel of 16 bits at {SAMPLE_RATE} Hz"
        )
    if there < samples:
        raise RecordDefect(f"the audio is cut off after {there} of {samples} samples")
    return samples


def validate_record(
    record: bytes, max_frames: int | None = None, max_letters: int | None = None
) -> tuple[int, int]:
    """Checks audio and transcript in a record. Returns the numbers of frames and letters."""
    features = parse_features(record)
    text = single_value(features, TEXT, "bytes_list")
    strange = next((byte for byte in text if byte not in ALPHABET), None)
    if strange is not None or not text:
        what = "is empty" if strange is None else f"has {chr(strange)!r}"
        raise RecordDefect(f"the transcript {what}; only a to z, blanks and apostrophes are valid")
    samples = count_wav_samples(single_value(features, AUDIO, "bytes_list"))
    frames = max(0, 1 + (samples - WINDOW) // STRIDE)
    if frames < 1:
        raise RecordDefect(f"the audio has {samples} samples, but one frame needs {WINDOW}")
    # For each letter, CTC needs a frame and, between two equal letters, another frame for a blank.
    if len(text) + sum(a == b for a, b in itertools.pairwise(text)) > frames:
        raise RecordDefect(
            f"the transcript of {len(text)} letters is longer than its audio of {frames} frames"
        )
    for noun, value, most in (
        ("frames", frames, max_frames),
        ("letters", len(text), max_letters),
    ):
        if most is not None and value > most:
            raise RecordDefect(f"{value} {noun}, but the model takes at most {most}")
    return frames, len(text)


def check_files(files: Sequence[Path], num_classes: int) -> Findings:
    """Checks every record in the files of a subset; see `Dataset.check`."""
    # The classes are the letters of a fixed alphabet, so `num_classes` is not needed.
    del num_classes
    facts: list[tuple[int, int]] = []
    findings = check_records(files, validate_record, facts.append)
    if facts:
        frames, letters = zip(*facts, strict=True)
        findings.details = [
            f"audio: {min(frames)} to {max(frames)} frames of {BINS} frequencies, "
            f"{sum(frames) / 100 / 3600:,.1f} hours",
            f"transcripts: {min(letters)} to {max(letters)} letters",
        ]
    return findings


def serialize(audio: bytes, text: str, utterance: str) -> bytes:
    """Serializes an utterance as a record: a WAV file (see `count_wav_samples`), and a transcript
    with only letters of `ALPHABET`.
    """
    return serialize_features({}, {}, {AUDIO: audio, TEXT: text, UTTERANCE: utterance})


# Added to the power of each frequency, so that no logarithm of 0 is computed.
_SILENCE = 1e-10
_NUMBERS = np.array([ALPHABET.find(byte) for byte in range(256)])


class LibriSpeechPipeline(RecordPipeline):
    """Pipeline that computes the log-power spectrogram of each utterance, and normalises each
    frequency over the utterance.
    """

    def __init__(self, spec: InputSpec) -> None:
        super().__init__(spec)
        sizes = {element.name: element.sizes for element in spec.examples}
        self._max_frames = sizes["spectrogram"][0]
        self._max_letters = sizes["transcript"][0]

    def decode(self, record: tf.Tensor, position: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """See `RecordPipeline.decode`."""
        # `position` would be the seed of random choices, but this pipeline makes none.
        del position
        keys = {key: tf.io.FixedLenFeature([], tf.string) for key in (AUDIO, TEXT)}
        features = tf.io.parse_single_example(record, keys)
        audio, rate = tf.audio.decode_wav(features[AUDIO])
        letters = tf.gather(_NUMBERS, tf.cast(tf.io.decode_raw(features[TEXT], tf.uint8), tf.int32))
        samples = tf.shape(audio)[0]
        count = tf.size(letters)
        repeated = tf.math.count_nonzero(letters[1:] == letters[:-1], dtype=tf.int32)
        frames = 1 + (samples - WINDOW) // STRIDE
        sound = [
            assert_in_graph(tf.equal(rate, SAMPLE_RATE), rate),
            assert_in_graph(tf.equal(tf.shape(audio)[1], 1), "channels"),
            assert_in_graph(tf.reduce_all(letters >= 0), "letters"),
            assert_in_graph((samples >= WINDOW) & (frames <= self._max_frames), frames),
            assert_in_graph((count >= 1) & (count <= self._max_letters), count),
            assert_in_graph(count + repeated <= frames, count, frames),
        ]
        with tf.control_dependencies(sound):
            rows = log_spectrogram(audio[:, 0])
        return {
            "spectrogram": pad_rows(rows, self._max_frames),
            "num_frames": tf.cast(frames, tf.int64),
            "transcript": pad_rows(letters, self._max_letters),
            "transcript_length": tf.cast(count, tf.int64),
        }

    def examine(self, record: bytes) -> object:
        """See `RecordPipeline.examine`."""
        return validate_record(record, self._max_frames, self._max_letters)


def log_spectrogram(samples: Any) -> tf.Tensor:
    """Computes a spectrogram: the log power of frequencies from 0 to 8 kHz, every 10 ms, float32
    [frames, 161].

    The samples are float32 [n], n >= 320, in [-1, 1] at 16 kHz. For each frequency, the mean over
    all frames is 0 and the standard deviation is 1.
    """
    waves = tf.signal.stft(samples, WINDOW, STRIDE, WINDOW)
    power = tf.math.log(tf.square(tf.abs(waves)) + _SILENCE)
    mean, variance = tf.nn.moments(power, axes=[0], keepdims=True)
    return tf.ensure_shape((power - mean) / (tf.sqrt(variance) + 1e-6), [None, BINS])


# Conversion of LibriSpeech's folders into TFRecord files

Utterance: TypeAlias = tuple[Path, str, str]
"""Audio file, transcript, and where the transcript was read (file and line)."""


def read_transcripts(source: Path, validation: str) -> dict[str, Sequence[Utterance]]:
    """Reads the utterances in the folders ``train-*`` and in the validation folder. Returns them by
    subset.

    These folders contain files SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt with one line per
    utterance: name, space, text. The audio file NAME.wav is in the same folder.
    """
    if not source.is_dir():
        raise UsageError(f"{source}: there is no such folder")
    folders = {
        "train": sorted(path for path in source.glob("train-*") if path.is_dir()),
        "validation": [source / validation] if (source / validation).is_dir() else [],
    }
    by_subset: dict[str, Sequence[Utterance]] = {
        subset: [utterance for folder in some for utterance in _read_utterances(folder)]
        for subset, some in folders.items()
        if some
    }
    if not any(by_subset.values()):
        raise UsageError(f"{source}: contains no transcripts in train-* or {validation}")
    return by_subset


def write_librispeech(
    by_subset: Mapping[str, Sequence[Utterance]], out: Path, shards: Mapping[str, int], seed: int
) -> None:
    """Writes the TFRecord files ``librispeech-<subset>-*-of-*``; see
    `folder.write_dataset_files`.
    """
    subsets = {
        subset: random.Random(seed).sample(utterances, len(utterances))
        for subset, utterances in by_subset.items()
    }
    output.write_dataset_files(out, PREFIX, subsets, shards, _write_records, {})


def _write_records(path: Path, utterances: Sequence[Utterance]) -> None:
    with (
        output.converting_write_errors(path, tf.errors.OpError),
        tf.io.TFRecordWriter(str(path)) as file,
    ):
        for audio, text, where in utterances:
            try:
                record = serialize(read_data_file(audio), text, audio.stem)
                validate_record(record)
            except RecordDefect as defect:
                raise DataError(f"{audio}: {defect} ({where})") from defect
            file.write(record)


def _read_utterances(folder: Path) -> Iterator[Utterance]:
    for listing in sorted(folder.glob("*/*/*.trans.txt")):
        for number, line in enumerate(read_text(listing).splitlines(), start=1):
            name, _, text = line.partition(" ")
            where = f"{listing}: line {number}"
            if not text.strip():
                raise DataError(f"{where}: has no transcript")
            path = listing.with_name(f"{name}.wav")
            if not path.is_file():
                if path.with_suffix(".flac").is_file():
                    raise UsageError(
                        f"{path.with_suffix('.flac')}: TensorFlow cannot decode FLAC; first "
                        "convert each file to WAV in the same folder with sox NAME.flac NAME.wav"
                    )
                raise DataError(f"{where}: there is no file {path}")
            yield path, text.strip().lower(), where
