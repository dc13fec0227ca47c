"""Interrupts of runs within a native operation that does not end."""

from __future__ import annotations

import re
import signal
import time

import pytest
from forked import Forked, hasty, until

from cnnbench.records.run import RunRecord

pytestmark = pytest.mark.slow

# Every step takes an element of a queue, which has four: one of the warm-up and three timed steps.
MODEL = """
import tensorflow as tf
from cnnbench.models import LearningRateSpec, Model, register_model

class Hangs(Model):
    name, dataset, image_size, batch_size = "hangs", "imagenet", 8, 2
    learning_rate = LearningRateSpec(0.1)

    def build(self, net, images):
        return net.logits(net.flatten(images))

    def loss(self, outputs, labels):
        if not hasattr(self, "queue"):
            with tf.init_scope():
                self.queue = tf.queue.FIFOQueue(4, [tf.float32], [[]])
                self.queue.enqueue_many([tf.zeros([4])])
        return super().loss(outputs, labels) + self.queue.dequeue()

register_model("hangs", "imagenet", Hangs)
"""
FLAGS = ("--model=hangs", "--plugin=model.py", "--device=cpu", "--display_every=1")
FLAGS += ("--num_batches=1000", "--num_warmup_batches=1", "--quiet_conditions=all")
JOB = ("launch", "--workers=2", "--", "--variable_update=collective_all_reduce")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("words", "signals"),
    [(["run"], [signal.SIGINT, signal.SIGTERM]), (JOB, [signal.SIGUSR2])],
    ids=["a run", "a job"],
)
def test_the_record_has_all_steps(tmp_path, words, signals):
    (tmp_path / "model.py").write_text(MODEL)
    out, err = tmp_path / "out", tmp_path / "err"
    words = [*words, *FLAGS, "--result_json=r.json", "--result_csv=r.csv"]
    with Forked(hasty, words, out, err, tmp_path) as process:
        until(lambda: "\n3\t" in out.read_text(), 90, process, err)
        time.sleep(0.5)
        began = time.monotonic()
        for number in signals:
            process.send_signal(number)
            time.sleep(1.2)
        assert process.wait(30) == 130, err.read_text()
        assert time.monotonic() - began < 9
    record = RunRecord.from_json((tmp_path / "r.json").read_text())
    assert (record.status, len(record.step_seconds)) == ("interrupted", 3)
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 2
    told = err.read_text()
    assert re.search("cnnbench: interrupted; waiting up to [2-4] s for the running step", told)
    assert told.splitlines()[-1] == "cnnbench: error: interrupted"
