"""Inputs that never deliver a batch, or never end, in real processes."""

from __future__ import annotations

import json
import signal
import time

import forked
import pytest

pytestmark = pytest.mark.slow

# A training example may never be delivered, and the end of an iterator may take seconds.
DATA = """
import time
from cnnbench.data import Dataset, register_dataset
from cnnbench.models import LearningRateSpec, Model, register_model

HANGS, LASTS = %r, %r


def open_files(spec):
    import tensorflow as tf
    from cnnbench.data.pipeline import Pipeline

    def numbers():
        try:
            for number in range(10**9):
                if spec.training and number == HANGS:
                    time.sleep(600)
                yield number
        finally:
            time.sleep(LASTS * spec.training)

    class Numbers(Pipeline):
        def tower_batches(self):
            read = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([]))
            read = read if spec.training else read.take(8)
            return read.map(
                lambda n: {"image": tf.fill([8, 8, 3], n), "label": tf.cast(n, tf.int64) %% 10}
            ).batch(spec.batch_per_device, drop_remainder=spec.training)

    return Numbers(spec, 8)


class Tiny(Model):
    name, dataset, image_size, batch_size = "tiny", "numbers", 8, 2
    learning_rate = LearningRateSpec(0.05)

    def build(self, net, images):
        return net.logits(net.flatten(images))


register_dataset(Dataset(
    name="numbers", num_classes=10, examples={"train": 8, "validation": 8}, files="numbers",
    find=lambda folder, subset: [folder], count=lambda files, subset: 8,
    check=lambda files, classes: None, open=open_files,
))
register_model("tiny", "numbers", Tiny)
"""


def started(folder, *flags, hangs=-1, lasts=0.0):
    (folder / "numbers.py").write_text(DATA % (hangs, lasts))
    flags = (
        "--result_json=r.json",
        "--num_warmup_batches=1",
        "--device=cpu",
        "--peak_flops=0",
        *flags,
    )
    return forked.Forked(
        forked.cnnbench,
        ["--plugin=numbers.py", "--data_dir=.", "--model=tiny", *flags],
        folder / "out",
        folder / "err",
        folder,
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "flags",
    [
        ["--num_batches=50"],
        ["--num_batches=50", "--eval_during_training_every_n_steps=2", "--num_eval_batches=9"],
        ["--num_batches=50", "--input_only"],
    ],
)
def test_an_interrupted_run_writes_its_record_before_it_waits_for_its_input(tmp_path, flags):
    process = started(tmp_path, *flags, "--display_every=1", hangs=12)
    table = tmp_path / "out"
    forked.until(lambda: "\n2\timages/sec" in table.read_text(), 200, process, tmp_path / "err")
    time.sleep(0.5)  # until the step waits
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.end(60) == (130, False), (tmp_path / "err").read_text()
    assert time.monotonic() - begin < 9
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["status"] == "interrupted"
    assert len(record["step_seconds"]) >= 2


@pytest.mark.timeout(240)
@pytest.mark.parametrize("flag", ["--datasets_use_prefetch=false", "--input_only"])
def test_a_run_does_not_wait_for_the_end_of_its_iterators(tmp_path, flag):
    process = started(tmp_path, "--num_batches=4", flag, lasts=60.0)
    assert process.end(50) == (0, False), (tmp_path / "err").read_text()
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "ok"
