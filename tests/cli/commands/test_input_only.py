"""The input pipeline alone, and beside a training."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf

from cnnbench import RunRecord
from cnnbench.base.text.numbers import number
from cnnbench.cli import main
from cnnbench.data import IMAGENET, InputSpec
from cnnbench.data.pipeline import Pipeline, PipelineStage
from cnnbench.data.prefetch import PipelineInput
from cnnbench.run.driver import input_only

FLAGS = ("--model=lenet", "--device=cpu", "--batch_size=4", "--num_gpus=2", "--peak_flops=1e12")


@pytest.fixture(autouse=True)
def _short(limits):
    limits(input_only, _STAGE_SECONDS=0.2, _DRAIN_SECONDS=0.05)


def run(tmp_path, *flags):
    path = tmp_path / "record.json"
    assert main([*FLAGS, f"--result_json={path}", *flags]) == 0
    return RunRecord.from_json(path.read_text())


def test_the_pipeline_alone(photo_records, tmp_path, capsys, quick_start):
    record = run(tmp_path, "--input_only", f"--data_dir={photo_records}", "--num_batches=5")
    out, err = capsys.readouterr()
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
    assert "the input pipeline alone gives " in err
    assert "images/s: read " in err
    # 24 photographs, 40 images timed: whole epochs need no notice.
    assert "shuffle buffer" not in err


def test_less_than_an_epoch_of_a_small_set_is_told(photo_records, tmp_path, capsys, quick_start):
    flags = ("--num_batches=1", "--num_warmup_batches=0")
    run(tmp_path, "--input_only", f"--data_dir={photo_records}", *flags)
    assert "the whole set fits into the shuffle buffer" in capsys.readouterr().err


def test_arrays_have_one_stage(cifar10, tmp_path, quick_start):
    flags = ("--data_name=cifar10", "--model=resnet20", "--num_batches=2")
    record = run(tmp_path, "--input_only", f"--data_dir={cifar10}", *flags)
    assert [stage.name for stage in record.input_stages] == ["batch", "device"]


def test_a_training_says_what_the_pipeline_alone_gives(
    photo_records, tmp_path, capsys, quick_start
):
    flags = ("--num_batches=2", "--num_warmup_batches=0", "--init_learning_rate=0.001")
    record = run(tmp_path, f"--data_dir={photo_records}", *flags)
    (whole,) = record.input_stages
    assert whole.name == "device"
    assert whole.examples % 8 == 0
    err = capsys.readouterr().err
    assert f"the input pipeline alone gives {number(whole.examples_per_sec)} images/s\n" in err
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
    limits(input_only, _WHOLE_SECONDS=20 * SlowPipeline.SECONDS)
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
        whole = input_only.time_whole(inputs)
        assert whole.examples_per_sec <= 1.1 / SlowPipeline.SECONDS
        inputs.close()
        (one,) = inputs.stages()
        stage = input_only.time_stage(one, inputs.spec, 1000)
        assert stage.examples_per_sec <= 1.1 / SlowPipeline.SECONDS
