"""LibriSpeech: spectrograms and transcripts."""

from __future__ import annotations

import contextlib
import wave

import numpy as np
import pytest
import tensorflow as tf
from data_sets import SMALL, TEXTS, sound, transcripts, wav, write_records

from cnnbench.data import make_input
from cnnbench.data.librispeech import log_spectrogram, serialize
from cnnbench.errors import DataError


def reference(samples):
    """The spectrogram by NumPy's own Fourier transform."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(320) / 320)
    starts = range(0, len(samples) - 319, 160)
    waves = np.array([np.fft.rfft(window * samples[i : i + 320] / 32768) for i in starts])
    power = np.log(np.abs(waves) ** 2 + 1e-10)
    return (power - power.mean(axis=0)) / (power.std(axis=0) + 1e-6)


def test_an_example_is_the_spectrogram_and_the_transcript(small_set, sources, cpu_devices):
    chapter = sources("librispeech") / "test-clean" / "7" / "21"
    spec = SMALL["librispeech"].spec(small_set("librispeech"), "validation")
    with make_input(spec, cpu_devices[:1]) as inputs:
        batches = [inputs.next()[0] for _ in range(inputs.steps_per_epoch)]
    for batch in batches:
        (text,) = transcripts(batch)
        i = TEXTS.index(text.upper())
        with wave.open(str(chapter / f"7-21-{i:04d}.wav")) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        expected = reference(samples.astype(float))
        frames = int(batch.labels["num_frames"][0])
        assert (frames, 161) == expected.shape
        np.testing.assert_allclose(batch.features[0, :frames], expected, atol=2e-3)
        assert not batch.features[0, frames:].numpy().any()
        assert not batch.labels["transcript"][0, len(text) :].numpy().any()


def test_silence_and_a_single_frame_stay_finite():
    for samples in (np.zeros(640), sound(320) / 32768):
        assert np.isfinite(log_spectrogram(tf.constant(samples, tf.float32))).all()


def test_equal_letters_need_a_frame_between_them(tmp_path, cpu_devices):
    four = sound(320 + 3 * 160)  # frames
    read_one(tmp_path, cpu_devices, four, "abab", None)
    message = "record 0: the transcript of 4 letters is longer than its audio of 4 frames"
    read_one(tmp_path, cpu_devices, four, "abba", message)


def read_one(folder, devices, samples, text, message):
    """Reads the record of an utterance, which the message refuses."""
    path = folder / "librispeech-validation-00000-of-00001"
    write_records(path, [serialize(wav(samples), text, "a")])
    spec = SMALL["librispeech"].spec(folder, "validation")
    refused = pytest.raises(DataError, match=message) if message else contextlib.nullcontext()
    with refused, make_input(spec, devices[:1]) as inputs:
        inputs.next()
