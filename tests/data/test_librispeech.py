"""LibriSpeech: made from its folders with WAV files, read, checked and trained on."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
import tensorflow as tf

from cnnbench.cli import main
from cnnbench.data import LIBRISPEECH, InputSpec, find_dataset, make_input
from cnnbench.data.check import check
from cnnbench.data.librispeech import spectrogram
from cnnbench.data.librispeech_records import serialize
from cnnbench.errors import DataError
from cnnbench.models.elements import resolve

TEXTS = ["HELLO", "IT'S A BEE", "OF ALL", "SPEECH IS FINE", "NO"]
FRAMES, LETTERS = 60, 16

MODEL = """
from cnnbench.models import Draw, Element, LearningRateSpec, Model, register_model

class Words(Model):
    '''Tells the length of a transcript.'''
    name, dataset, batch_size = "words", "librispeech", 2
    max_frames, min_frames, max_letters = 60, 40, 16
    elements = (
        Element("spectrogram", ("max_frames", 161), "feature", draw=Draw.normal()),
        Element("transcript_length", (), "label", "int64", Draw.integers(1, "max_letters")),
    )
    metric_names = ("off",)
    learning_rate = LearningRateSpec(0.0001)

    def build(self, net, spectrogram):
        return net.affine(net.flatten(spectrogram), 1, None)

    def loss(self, outputs, lengths):
        import tensorflow as tf
        return tf.square(outputs[:, 0] - tf.cast(lengths, tf.float32))

    def metrics(self, outputs, lengths):
        return {"off": self.loss(outputs, lengths)}

register_model("words", "librispeech", Words)
"""


def wav(samples, rate=16_000, channels=1):
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples, "<i2").tobytes())
    return content.getvalue()


def noise(samples, seed=0):
    return np.random.default_rng(seed).integers(-9000, 9000, samples)


@pytest.fixture
def source(tmp_path):
    """Five utterances for training in two folders, and two for validation."""
    root = tmp_path / "LibriSpeech"
    texts = {"train-clean-100": TEXTS[:3], "train-other-500": TEXTS[3:], "test-clean": TEXTS[:2]}
    for folder, some in texts.items():
        chapter = root / folder / "7" / "21"
        chapter.mkdir(parents=True)
        lines = []
        for i, text in enumerate(some):
            lines.append(f"7-21-{i:04d} {text}")
            (chapter / f"7-21-{i:04d}.wav").write_bytes(wav(noise(4800 + 700 * i, len(text))))
        (chapter / "7-21.trans.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def made(source, tmp_path):
    arguments = [str(source), str(tmp_path / "out"), "--train_shards=2", "--validation_shards=1"]
    assert main(["data", "make-librispeech", *arguments]) == 0
    return tmp_path / "out"


def spec(folder, subset, batch=1, frames=FRAMES, letters=LETTERS, **fields):
    class Sizes:
        max_frames, min_frames, max_letters = frames, 1, letters

    return InputSpec(
        dataset=LIBRISPEECH,
        data_dir=str(folder),
        subset=subset,
        batch_per_device=batch,
        num_devices=1,
        examples=resolve(LIBRISPEECH.elements, Sizes(), 29),
        **fields,
    )


def decoded(labels):
    numbers = labels["transcript"].numpy()[0, : int(labels["transcript_length"][0])]
    return "".join(" abcdefghijklmnopqrstuvwxyz'"[number] for number in numbers)


def reference(samples):
    """The spectrogram by NumPy's own Fourier transform."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(320) / 320)
    starts = range(0, len(samples) - 319, 160)
    waves = np.array([np.fft.rfft(window * samples[i : i + 320] / 32768) for i in starts])
    power = np.log(np.abs(waves) ** 2 + 1e-10)
    return (power - power.mean(axis=0)) / (power.std(axis=0) + 1e-6)


def test_what_is_made(made, capsys):
    assert sorted(path.name for path in made.iterdir()) == [
        *(f"librispeech-train-0000{i}-of-00002" for i in range(2)),
        "librispeech-validation-00000-of-00001",
    ]
    assert find_dataset(None, str(made)) is LIBRISPEECH
    assert LIBRISPEECH.num_examples("train", str(made)) == 5
    assert main(["data", "check", str(made)]) == 0
    out = capsys.readouterr().out
    assert "train: 5 valid records in 2 files" in out
    assert "audio: 29 to 37 frames of 161 frequencies, " in out
    assert "transcripts: 2 to 14 letters" in out


def test_an_example_is_the_spectrogram_and_the_transcript(made, source, cpu_devices):
    chapter = source / "test-clean" / "7" / "21"
    found = {}
    with make_input(spec(made, "validation"), cpu_devices[:1]) as inputs:
        assert inputs.steps_per_epoch == 2
        for _ in range(2):
            (batch,) = inputs.next()
            found[decoded(batch.labels)] = batch
    assert set(found) == {"hello", "it's a bee"}
    for i, text in enumerate(["hello", "it's a bee"]):
        batch = found[text]
        with wave.open(str(chapter / f"7-21-{i:04d}.wav")) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        expected = reference(samples.astype(float))
        frames = int(batch.labels["num_frames"][0])
        assert (frames, 161) == expected.shape
        np.testing.assert_allclose(batch.features[0, :frames], expected, atol=2e-3)
        assert not batch.features[0, frames:].numpy().any()
        assert not batch.labels["transcript"][0, len(text) :].numpy().any()


def test_silence_and_a_single_frame_stay_finite():
    for samples in (np.zeros(640), noise(320) / 32768):
        assert np.isfinite(spectrogram(tf.constant(samples, tf.float32))).all()


def test_training_shuffles_all_utterances(made, cpu_devices):
    with make_input(spec(made, "train", batch=5), cpu_devices[:1]) as inputs:
        orders = set()
        for _ in range(4):
            (batch,) = inputs.next()
            lengths = batch.labels["transcript_length"].numpy().tolist()
            assert sorted(lengths) == sorted(map(len, TEXTS))
            orders.add(tuple(lengths))
    assert len(orders) > 1


def test_a_model_trains_from_the_files_in_two_modes_and_without(
    made, tmp_path, quick_start, capsys
):
    plugin = tmp_path / "words.py"
    plugin.write_text(MODEL)
    flags = [f"--model_plugin={plugin}", "--model=words", "--device=cpu", "--num_gpus=2"]
    flags += ["--num_batches=2", "--num_warmup_batches=0"]
    for mode in ("parameter_server", "replicated"):
        assert main([*flags, f"--data_dir={made}", f"--variable_update={mode}"]) == 0
        assert "Dataset:     librispeech\n" in capsys.readouterr().out
    assert main([*flags, "--data_name=librispeech"]) == 0


SOUND = (wav(noise(4800)), "hello")
HIGH_RATE = wav(noise(4800), rate=44_100)
STEREO = wav(noise(4800), channels=2)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (serialize(wav(noise(800)), "hello", "a"), "of 5 letters is longer than its audio of 4 fr"),
        (serialize(wav(noise(960)), "hello", "a"), "of 5 letters is longer than its audio of 5 fr"),
        (
            serialize(wav(noise(300)), "a", "a"),
            "has 300 samples, but one frame takes 320",
        ),
        (serialize(SOUND[0], "HELLO", "a"), "the transcript has 'H'"),
        (serialize(SOUND[0], "", "a"), "the transcript is empty"),
        (serialize(HIGH_RATE, "a", "a"), "1 channels of 16 bits and 44100 samples a second"),
        (serialize(STEREO, "a", "a"), "2 channels of 16 bits and 16000 samples a second"),
        (serialize(SOUND[0][:30], "a", "a"), "the audio is no WAV of PCM"),
        (serialize(SOUND[0][:-100], "a", "a"), "the audio is cut off after 4750 of 4800 samples"),
        (serialize(b"fLaC....", "a", "a"), "the audio is no WAV of PCM"),
        (tf.train.Example().SerializeToString(), "key audio/text is missing"),
    ],
)
def test_check_and_reader_refuse_the_same_with_file_and_record(tmp_path, cpu_devices, bad, message):
    path = tmp_path / "librispeech-validation-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(serialize(*SOUND, "a"))
        writer.write(bad)
    (defect,) = check(str(tmp_path), LIBRISPEECH, 29)[1].found.defects
    assert defect.startswith(f"{path}: record 1: ")
    assert message in defect
    with (
        pytest.raises(DataError) as caught,
        make_input(spec(tmp_path, "validation"), cpu_devices[:1]) as inputs,
    ):
        list(iter(inputs.next, None))
    assert str(caught.value) == defect


def test_bad_records_are_skipped_and_named(tmp_path, cpu_devices):
    path = tmp_path / "librispeech-validation-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(serialize(SOUND[0][:100], SOUND[1], "b"))
        writer.write(serialize(*SOUND, "a"))
    (defect,) = check(str(tmp_path), LIBRISPEECH, 29)[1].found.defects
    with make_input(spec(tmp_path, "validation", on_bad_record="skip"), cpu_devices[:1]) as inputs:
        seen = [inputs.next() for _ in range(inputs.steps_per_epoch)]
        assert sum(float(weight) for (tower,) in seen for weight in tower.weights) == 1
        assert (inputs.skipped().count, inputs.skipped().first) == (1, (defect,))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"frames": 28}, "record 0: 29 frames, but the model takes at most 28"),
        ({"letters": 4}, "record 0: 5 letters, but the model takes at most 4"),
    ],
)
def test_what_is_too_long_for_the_model_is_named(tmp_path, cpu_devices, sizes, message):
    path = tmp_path / "librispeech-validation-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(serialize(*SOUND, "a"))
    with (
        pytest.raises(DataError, match=message),
        make_input(spec(tmp_path, "validation", **sizes), cpu_devices[:1]) as inputs,
    ):
        inputs.next()


def test_sources_that_cannot_be_used(source, made, tmp_path, capsys):
    def said(status):
        out = tmp_path / "other"
        assert main(["data", "make-librispeech", str(source), str(out)]) == status
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert not list(out.glob("*"))
        return err

    assert main(["data", "make-librispeech", str(source), str(made)]) == 2
    assert "holds librispeech-train-00000-of-00002 already" in capsys.readouterr().err
    chapter = source / "test-clean" / "7" / "21"
    audio, listing = chapter / "7-21-0000.wav", chapter / "7-21.trans.txt"
    sound = audio.read_bytes()
    audio.write_bytes(wav(noise(400)))
    longer = "the transcript of 5 letters is longer than its audio of 1 frames"
    assert f"{audio}: {longer} ({listing}: line 1)" in said(4)
    audio.write_bytes(sound)
    listing.write_text("7-21-0000 HELLO\n7-21-0001\n")
    assert f"{listing}: line 2: has no transcript" in said(4)
    audio.unlink()
    assert f"{listing}: line 1: there is no file {audio}" in said(4)
    audio.with_suffix(".flac").write_bytes(b"fLaC")
    assert "7-21-0000.flac: TensorFlow cannot decode FLAC; convert the files to WAV" in said(2)
    source = tmp_path / "nowhere"
    assert "nowhere: there is no such folder" in said(2)
    source.mkdir()
    assert "holds no transcripts in train-* or test-clean" in said(2)
