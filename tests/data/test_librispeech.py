"""LibriSpeech: spectrograms and transcripts."""

from __future__ import annotations

import contextlib
import io
import wave

import numpy as np
import pytest
import tensorflow as tf
from data_sets import SMALL, TEXTS, sound, transcripts, wav, write_records

from cnnbench.data import make_input
from cnnbench.data.folder import RecordDefect
from cnnbench.data.librispeech import (
    count_wav_samples,
    log_spectrogram,
    serialize,
    validate_record,
)
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


def wide(samples):
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 1, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(samples))
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the audio is not PCM in a WAV file: it is cut off"),
        (b"RIFX" + bytes(60), "the audio is not PCM in a WAV file: file does not start with RIFF"),
        (wav(sound(40), rate=8000), "the audio has 1 channels of 16 bits at 8000 Hz, but must"),
        (wav(sound(40), channels=2), "the audio has 2 channels of 16 bits at 16000 Hz, but must"),
        (wide(40), "the audio has 1 channels of 8 bits at 16000 Hz, but must"),
        (wav(sound(40))[:-2], "the audio is cut off after 39 of 40 samples"),
    ],
)
def test_audio_of_another_form_is_refused(content, message):
    with pytest.raises(RecordDefect, match=message):
        count_wav_samples(content)


@pytest.mark.parametrize(
    ("samples", "text", "limits", "found"),
    [
        (320, "a", (1, 1), (1, 1)),
        (319, "a", (), "the audio has 319 samples, but one frame needs 320"),
        (100, "a", (), "the audio has 100 samples, but one frame needs 320"),
        (479, "ab", (), "the transcript of 2 letters is longer than its audio of 1 frames"),
        (480, "ab", (2, 2), (2, 2)),
        (480, "aa", (), "the transcript of 2 letters is longer than its audio of 2 frames"),
        (640, "aa", (None, None), (3, 2)),
        (640, "aa", (2, 2), "3 frames, but the model takes at most 2"),
        (640, "aa", (3, 1), "2 letters, but the model takes at most 1"),
        (640, "", (), "the transcript is empty"),
        (640, "a B", (), "the transcript has 'B'"),
        (800, "a 'z", (), (4, 4)),
    ],
)
def test_frames_and_letters_of_a_record(samples, text, limits, found):
    record = serialize(wav(sound(samples)), text, "a")
    if isinstance(found, tuple):
        assert count_wav_samples(wav(sound(samples))) == samples
        assert validate_record(record, *limits) == found
    else:
        with pytest.raises(RecordDefect, match=found):
            validate_record(record, *limits)


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
