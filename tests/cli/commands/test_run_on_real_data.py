"""The whole path from files to a report, on one device and on several, and the input alone.

Tests cnnbench/run/driver/input_speed.py.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

from cnnbench import RunRecord
from cnnbench.base.text import number
from cnnbench.data import IMAGENET, InputSpec
from cnnbench.data.pipeline import ArrayPipeline, Pipeline, PipelineStage
from cnnbench.data.prefetch import PipelineInput
from cnnbench.run.driver import input_speed

pytestmark = pytest.mark.usefixtures("quick_start")


@pytest.fixture
def run(call, limits, tmp_path):
    """run(FLAG...): the record of a run, and what it prints."""
    limits(input_speed, _STAGE_SECONDS=0.2, _DRAIN_SECONDS=0.05)

    def run(*flags):
        path = tmp_path / "record.json"
        common = ["--device=cpu", "--num_warmup_batches=1", "--peak_flops=1e12"]
        printed = call(*common, f"--result_json={path}", *flags)
        return RunRecord.from_json(path.read_text()), printed

    return run


@pytest.mark.slow
def test_a_data_set_that_lacks_a_file_is_measured_with_a_warning(run, photo_records, tmp_path):
    part = tmp_path / "imagenet-part"
    part.mkdir()
    for path in photo_records.glob("*-of-*"):
        if path.name != "train-00001-of-00003":
            (part / path.name).symlink_to(path)
    flags = ["--model=trivial", "--batch_size=2", "--num_batches=1"]
    _, printed = run(*flags, f"--data_dir={part}")
    expected = f"--data_dir={part}: 1 of 3 train files are missing, the first train-00001-of-00003"
    assert expected in printed.err
    assert not IMAGENET.file_notices("train", str(photo_records))


@pytest.mark.slow
def test_a_broken_record_ends_the_run_with_its_name(call, run, photo_records, tmp_path):
    broken = tmp_path / "imagenet-broken"
    broken.mkdir()
    for path in photo_records.glob("*-of-*"):
        (broken / path.name).write_bytes(path.read_bytes())
    victim = sorted(broken.glob("train-*"))[1]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(bytes(content))
    flags = ["--device=cpu", "--model=lenet", f"--data_dir={broken}", "--num_batches=12"]
    captured = call(*flags, "--batch_size=4", code=4)
    last = captured.err.splitlines()[-1]
    assert last.startswith("cnnbench: error: ")
    assert victim.name in last
    assert "record" in last
    assert "total images/sec" not in captured.out
    record, printed = run(*flags[1:], "--batch_size=4", "--on_bad_record=skip")
    assert record.skipped_records is not None
    assert record.skipped_records.count == 1
    (named,) = record.skipped_records.first
    assert last == f"cnnbench: error: {named}"
    assert f"warning: skipped {named}" in printed.err


def test_what_is_read_whole_cannot_be_skipped_by_records(call, cifar10):
    flags = ["--model=trivial", f"--data_dir={cifar10}", "--on_bad_record=skip"]
    assert "--on_bad_record=skip: the files of data set cifar10" in call(*flags, code=2).err


@pytest.mark.slow
def test_a_resumed_run_trains_on_what_follows(run, photo_records, tmp_path):
    """The warm-up trains too: one step before three timed ones, and again one before three.

    It goes on with two towers, that is with other batches of each.
    """
    flags = ["--model=trivial", f"--data_dir={photo_records}", "--distortions"]
    flags += ["--init_learning_rate=0.0001"]
    whole, _ = run(*flags, "--batch_size=8", "--num_batches=7")
    parted = [*flags, f"--train_dir={tmp_path / 'train'}"]
    first, _ = run(*parted, "--batch_size=8", "--num_batches=3")
    towers = ["--num_gpus=2", "--batch_size=4", "--variable_update=replicated"]
    second, printed = run(*parted, *towers, "--num_batches=7")
    losses = [one.warmup_losses + one.losses for one in (whole, first, second)]
    assert len(set(losses[0])) == len(losses[0]) == 8
    np.testing.assert_allclose([*losses[1], *losses[2]], losses[0], rtol=1e-5)
    assert "the input continues after the 32 examples trained on" in printed.err


@pytest.mark.slow
def test_data_that_cannot_go_on_starts_over_with_a_notice(run, cifar10, tmp_path, monkeypatch):
    flags = ["--model=trivial", f"--data_dir={cifar10}", f"--train_dir={tmp_path / 'train'}"]
    _, before = run(*flags, "--num_batches=1")
    monkeypatch.setattr(ArrayPipeline, "resumable", False)
    _, after = run(*flags, "--num_batches=3")
    assert [one.err.count("the input starts over: ") for one in (before, after)] == [0, 1]


LENET = ("--model=lenet", "--batch_size=4", "--num_gpus=2")


def test_the_pipeline_alone(run, photo_records):
    flags = ["--input_only", f"--data_dir={photo_records}", "--num_batches=5"]
    record, (out, err) = run(*LENET, *flags)
    assert "Mode:        input only\n" in out
    assert "Generating" not in out
    total = out.splitlines()[-2]
    summary = record.summary()
    assert total == f"total images/sec: {summary.total_images_per_sec:.2f}"
    assert [line.split("\t")[2] for line in out.splitlines() if "jitter" in line] == ["0.000"]
    names = [stage.name for stage in record.input_stages]
    assert names == ["read", "prepare", "batch", "device"]
    whole = record.input_stages[-1]
    assert (whole.examples, whole.seconds) == (5 * 8, record.measured.loop_seconds)
    assert all(stage.examples >= 40 for stage in record.input_stages[:-1])
    assert (summary.achieved_flops_per_sec, summary.input_wait_fraction) == (None, None)
    assert record.config["input_only"] is True
    assert "the input pipeline without training reads " in err
    assert "up to and including each stage: read " in err
    # 24 photographs, 40 images timed: whole epochs need no notice.
    assert "shuffle buffer" not in err


@pytest.mark.slow
def test_less_than_an_epoch_of_a_small_set_is_told(run, photo_records):
    flags = ["--input_only", f"--data_dir={photo_records}", "--num_batches=1"]
    _, printed = run(*LENET, *flags, "--num_warmup_batches=0")
    assert "the whole data set fits into the shuffle buffer" in printed.err


def test_arrays_have_one_stage(run, cifar10):
    flags = ["--data_name=cifar10", "--model=resnet20", "--num_batches=2"]
    record, _ = run("--input_only", f"--data_dir={cifar10}", "--batch_size=4", *flags)
    assert [stage.name for stage in record.input_stages] == ["batch", "device"]


def test_a_training_says_what_the_pipeline_alone_gives(run, photo_records):
    flags = ["--num_batches=2", "--num_warmup_batches=0", "--init_learning_rate=0.001"]
    record, (_, err) = run(*LENET, f"--data_dir={photo_records}", *flags)
    (whole,) = record.input_stages
    assert whole.name == "device"
    assert whole.examples % 8 == 0
    assert (
        f"the input pipeline without training reads {number(whole.examples_per_sec)} images/s\n"
        in err
    )
    assert "of the time spent waiting for input" in err


class SlowPipeline(Pipeline):
    """Takes a fixed time for each batch, and has a long buffer."""

    SECONDS = 0.02

    def tower_batches(self):
        def wait(number):
            time.sleep(self.SECONDS)
            return np.zeros((1, 2, 2, 3), np.float32), np.zeros(1, np.int64)

        def batch(number):
            images, labels = tf.numpy_function(wait, [number], [tf.float32, tf.int64])
            images = tf.ensure_shape(images, [1, 2, 2, 3])
            return {"image": images, "label": tf.ensure_shape(labels, [1])}

        return tf.data.Dataset.counter().map(batch).prefetch(8)

    def stages(self):
        return [PipelineStage("batch", self.tower_batches(), 1)]


def test_batches_that_lie_ready_are_no_throughput(cpu_devices, cpus, limits):
    """With 18 batches ready, 20 would look twice as fast as they are made, or more."""
    cpus({0})
    limits(input_speed, _WHOLE_SECONDS=20 * SlowPipeline.SECONDS, _DRAIN_SECONDS=0.5)
    spec = InputSpec(
        dataset=IMAGENET,
        data_dir="d",
        subset="train",
        batch_per_device=1,
        num_devices=1,
        image_size=2,
        datasets_prefetch_buffer_size=10,
        multi_device_iterator_max_buffer_size=8,
    )
    with PipelineInput(spec, cpu_devices[:1], SlowPipeline(spec, 100)) as inputs:
        inputs.next()
        time.sleep(25 * SlowPipeline.SECONDS)
        whole = input_speed.time_whole(inputs)
        assert whole.examples_per_sec <= 1.1 / SlowPipeline.SECONDS
        inputs.close()
        (one,) = inputs.stages()
        stage = input_speed.time_up_to_stage(one, inputs.spec, 1000)
        assert stage.examples_per_sec <= 1.1 / SlowPipeline.SECONDS
