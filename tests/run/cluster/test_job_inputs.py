"""The input of jobs of several processes: its speed, and how long the job waits for it.

The oracle is the data set: its workers deliver batches at known, different speeds, and note the
time of each batch in a file. Where the input is fast, a job must not seem to wait for it.
"""

from __future__ import annotations

import pytest
import tensorflow as tf
from forked import cnnbench, cnnbench_unshortened
from jobs import record_of, started

from cnnbench.data.imagenet import serialize

pytestmark = pytest.mark.usefixtures("quick_start")

BATCH = 8
STEPS = 40
FEW = 15
"""Steps of a job whose input is not slow."""
PACES = (0.1, 0.15)
"""Seconds between the batches of the two workers: long, so a busy machine waits for them, too."""
BUFFERED = STEPS / (STEPS - 16)
"""How much faster than its input a job may be, because its buffers contain up to 16 batches."""

PLUGIN = """
from pathlib import Path
from cnnbench.data import Dataset, register_dataset
from cnnbench.data.folder import Findings
from cnnbench.models import LearningRateSpec, Model, register_model

ROWS = {batch}
PACES = {paces}
KIND = "{kind}"

def open_files(spec):
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import testing
    from cnnbench.data.pipeline import Pipeline

    def examples(number):
        return {{"image": tf.fill([ROWS, 8, 8, 3], 0.5), "label": tf.zeros([ROWS], tf.int64)}}

    def generated():
        while True:
            yield {{"image": np.zeros([ROWS, 8, 8, 3], "f4"), "label": np.zeros([ROWS], "i8")}}

    def noted(number):
        note = f"file://{{spec.data_dir}}/{{spec.shard_index}}.txt"
        time = tf.strings.as_string(tf.timestamp(), precision=6)
        with tf.control_dependencies([tf.print(time, output_stream=note)]):
            return examples(tf.identity(number))

    class Paced(Pipeline):
        def tower_batches(self):
            numbers = tf.data.Dataset.counter()
            if KIND == "generator":
                signature = {{
                    "image": tf.TensorSpec([ROWS, 8, 8, 3], tf.float32),
                    "label": tf.TensorSpec([ROWS], tf.int64),
                }}
                return tf.data.Dataset.from_generator(generated, output_signature=signature)
            if KIND == "numpy":
                called = numbers.map(lambda n: tf.numpy_function(abs, [n], tf.int64))
                return called.map(examples)
            if KIND == "fast":
                return numbers.map(examples)
            paced = numbers.apply(testing.sleep(int(1e6 * PACES[spec.shard_index])))
            return paced.map(noted)

    return Paced(spec, 4096)

class Tiny(Model):
    name, dataset, image_size, batch_size = "tinynet", "paced", 8, ROWS
    learning_rate = LearningRateSpec(0.001)

    def build(self, net, images):
        x = net.conv(images, 4, 3, 2)
        if KIND == "fast":
            for _ in range(4):
                x = net.conv(x, 256, 3)
        return net.logits(net.flatten(x))

register_dataset(
    Dataset(
        name="paced",
        num_classes=10,
        examples={{"train": 4096, "validation": 4096}},
        files="plugin.py",
        find=lambda folder, subset: [Path(folder) / "plugin.py"],
        count=lambda files, subset: 4096,
        open=open_files,
        check=lambda files, classes: Findings(),
    )
)
register_model("tinynet", "paced", Tiny)
"""

WORKERS = ["worker:1", "worker:0"]
SERVED = ["ps:0", *WORKERS]
TOGETHER = {
    "distributed_replicated": SERVED,
    "distributed_all_reduce": [*WORKERS, "controller:0"],
    "multi_worker_mirrored_strategy": WORKERS,
}
APART = {
    "parameter_server --nocross_replica_sync": SERVED,
    "parameter_server_strategy": [*SERVED, "controller:0"],
}


def flags_of(folder, mode, kind="paced"):
    """The flags of a job that trains on the data set."""
    plugin = folder / "plugin.py"
    plugin.write_text(PLUGIN.format(batch=BATCH, paces=PACES, kind=kind))
    name, *others = mode.split(" --no")
    spec = {"all_reduce_spec": "xring"} if name == "distributed_all_reduce" else {}
    return {
        "plugin": plugin,
        "model": "tinynet",
        "data_dir": folder,
        "device": "cpu",
        "variable_update": name,
        "num_batches": STEPS if kind == "paced" else FEW,
        "peak_flops": 1e12,
        **spec,
        **dict.fromkeys(others, "false"),
    }


def job_record(folder, mode, kind="paced"):
    """The record of a job that trains on the data set, and measures slow input for two seconds."""
    order = {**TOGETHER, **APART}[mode]
    program = cnnbench_unshortened if kind == "paced" else cnnbench
    how = {"controller": "controller:0" in order, "program": program}
    return record_of(folder, flags_of(folder, mode, kind), order, **how)


def delivered_per_second(folder, worker):
    """Images per second that a worker noted in the last second, in which nothing was trained."""
    times = [float(line) for line in (folder / f"{worker}.txt").read_text().split()]
    times = [time for time in times if time > times[-1] - 1.0]
    return BATCH * (len(times) - 1) / (times[-1] - times[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["distributed_all_reduce", "multi_worker_mirrored_strategy", *APART]
)
def test_speed_and_wait_are_those_of_the_whole_job(tmp_path, mode):
    record = job_record(tmp_path, mode)
    rates = [delivered_per_second(tmp_path, worker) for worker in (0, 1)]
    expected = sum(rates) if mode in APART else 2 * min(rates)
    summary = record["summary"]
    assert summary["input_images_per_sec"] == pytest.approx(expected, rel=0.15)
    limit = sum if mode in APART else lambda rates: 2 * min(rates)
    assert summary["input_images_per_sec"] < 1.02 * limit([BATCH / pace for pace in PACES])
    # The job trains as fast as its input is read, except for the batches that buffers contain
    # before the first timed step.
    assert summary["total_images_per_sec"] < BUFFERED * summary["input_images_per_sec"]
    # The network is tiny, so all modes wait for input.
    assert 0.4 < summary["input_wait_fraction"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["distributed_replicated", "parameter_server --nocross_replica_sync"]
)
def test_a_job_that_computes_does_not_wait_for_input(tmp_path, mode):
    assert job_record(tmp_path, mode, "fast")["summary"]["input_wait_fraction"] < 0.4


@pytest.mark.slow
def test_asynchronous_workers_read_pipelines_that_call_numpy(tmp_path):
    record = job_record(tmp_path, "parameter_server --nocross_replica_sync", "numpy")
    assert len(record["step_seconds"]) == FEW
    assert record["summary"]["input_images_per_sec"] > 0


@pytest.mark.slow
def test_input_only_measures_the_stages_of_all_workers(tmp_path):
    flags = {**flags_of(tmp_path, "parameter_server"), "input_only": True, "num_batches": 25}
    record = record_of(tmp_path, flags, SERVED, program=cnnbench_unshortened)
    assert [stage["name"] for stage in record["input_stages"]] == ["batch", "device"]
    for stage in record["input_stages"]:
        assert stage["examples"] / stage["seconds"] == pytest.approx(
            2 * BATCH / max(PACES), rel=0.2
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("parameter_server_strategy", "numpy"),
        ("parameter_server --nocross_replica_sync", "generator"),
    ],
)
def test_asynchronous_workers_refuse_pipelines_that_call_python_code(tmp_path, mode, kind):
    texts = [f"--{name}={value}" for name, value in flags_of(tmp_path, mode, kind).items()]
    order = APART[mode]
    driver = order[-1]
    with started(tmp_path, texts, order, controller=driver == "controller:0") as tasks:
        assert tasks.wait()[driver] == 2
    (line,) = (line for line in tasks.printed(driver, "err").splitlines() if "error: " in line)
    assert f"{tmp_path / 'plugin.py'}:" in line
    assert "the pipeline of data set paced calls" in line


@pytest.mark.slow
def test_skipped_records_of_all_workers_are_recorded(tmp_path):
    images = tf.random.stateless_uniform([10, 8, 8, 3], (1, 2), maxval=256, dtype=tf.int32)
    records = [
        serialize(tf.io.encode_jpeg(tf.cast(image, tf.uint8)).numpy(), 8, 8, 1, "", "", "")
        for image in images
    ]
    files = [f"train-0000{number}-of-00002" for number in (0, 1)]
    for name in files:
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            for record in (b"no", *records):
                writer.write(record)
    flags = {"model": "lenet", "data_name": "imagenet", "data_dir": tmp_path, "batch_size": 2}
    flags |= {"variable_update": "collective_all_reduce", "on_bad_record": "skip"}
    flags |= {"device": "cpu", "num_batches": 8}
    skipped = record_of(tmp_path, flags, WORKERS)["skipped_records"]
    assert skipped["count"] == 2
    for name, defect in zip(files, skipped["first"], strict=True):
        assert name in defect
