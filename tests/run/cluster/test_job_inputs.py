"""The input of jobs of several processes: its speed, and how long the job waits for it.

The oracle is the data set: its workers deliver batches at known, different speeds, and note the
time of each batch in a file.
"""

from __future__ import annotations

import pytest
from forked import cnnbench_unshortened
from jobs import record_of, started

from cnnbench.records.run import InputStage
from cnnbench.run.driver.input_speed import combine_pipelines

pytestmark = pytest.mark.usefixtures("quick_start")

BATCH = 8
PACES = (0.1, 0.15)
"""Seconds between the batches of the two workers: long, so a busy machine waits for them, too."""

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
            paced = numbers.apply(testing.sleep(int(1e6 * PACES[spec.shard_index])))
            return paced.map(noted)

    return Paced(spec, 4096)

class Tiny(Model):
    name, dataset, image_size, batch_size = "tinynet", "paced", 8, ROWS
    learning_rate = LearningRateSpec(0.001)

    def build(self, net, images):
        return net.logits(net.flatten(net.conv(images, 4, 3, 2)))

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
    "parameter_server": SERVED,
    "distributed_replicated": SERVED,
    "collective_all_reduce": WORKERS,
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
    return {
        "plugin": plugin,
        "model": "tinynet",
        "data_dir": folder,
        "device": "cpu",
        "variable_update": name,
        "num_batches": 20,
        **dict.fromkeys(others, "false"),
    }


def delivered_per_second(folder, worker):
    """Images per second that a worker noted in the last second, in which nothing was trained."""
    times = [float(line) for line in (folder / f"{worker}.txt").read_text().split()]
    times = [time for time in times if time > times[-1] - 1.0]
    return BATCH * (len(times) - 1) / (times[-1] - times[0])


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*TOGETHER, *APART])
def test_speed_and_wait_are_those_of_the_whole_job(tmp_path, mode):
    order = {**TOGETHER, **APART}[mode]
    controller = "controller:0" in order
    how = {"controller": controller, "program": cnnbench_unshortened}
    record = record_of(tmp_path, flags_of(tmp_path, mode), order, **how)
    rates = [delivered_per_second(tmp_path, worker) for worker in (0, 1)]
    expected = sum(rates) if mode in APART else 2 * min(rates)
    summary = record["summary"]
    assert summary["input_images_per_sec"] == pytest.approx(expected, rel=0.15)
    limit = sum if mode in APART else lambda rates: 2 * min(rates)
    assert summary["input_images_per_sec"] < 1.02 * limit([BATCH / pace for pace in PACES])
    # The network is tiny, so all modes wait for input.
    assert 0.1 < summary["input_wait_fraction"] <= 1


@pytest.mark.slow
def test_input_only_measures_the_stages_of_all_workers(tmp_path):
    flags = {**flags_of(tmp_path, "parameter_server"), "input_only": True}
    record = record_of(tmp_path, flags, SERVED, program=cnnbench_unshortened)
    assert [stage["name"] for stage in record["input_stages"]] == ["batch", "device"]
    for stage in record["input_stages"]:
        assert stage["examples"] / stage["seconds"] == pytest.approx(
            2 * BATCH / max(PACES), rel=0.2
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numpy", "generator"])
def test_a_coordinator_refuses_pipelines_that_call_python_code(tmp_path, kind):
    flags = flags_of(tmp_path, "parameter_server_strategy", kind)
    texts = [f"--{name}={value}" for name, value in flags.items()]
    with started(tmp_path, texts, [*SERVED, "controller:0"], controller=True) as tasks:
        assert tasks.wait()["controller:0"] == 2
    assert "the pipeline of data set paced calls Python code" in tasks.printed(
        "controller:0", "err"
    )


def test_workers_that_train_together_are_limited_by_the_slowest():
    stages = [InputStage(name="device", examples=n, seconds=2.0) for n in (400, 100)]
    together = combine_pipelines(stages, in_step=True)
    apart = combine_pipelines(stages, in_step=False)
    assert together.examples_per_sec == pytest.approx(100)
    assert (apart.examples, apart.examples_per_sec) == (500, pytest.approx(250))
