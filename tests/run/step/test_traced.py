"""Functions of the timed loop are traced once; a call with another signature is named.

That a step is traced once in every mode is shown in test_skipped_steps.py.
"""

import pytest
import tensorflow as tf
from data_sets import WEATHER, write_weather

from cnnbench import BenchmarkCNN, RunRecord
from cnnbench.cli import main
from cnnbench.data.source import TowerBatch
from cnnbench.errors import RetraceError
from cnnbench.run.step.traced import TracedFunction

pytestmark = pytest.mark.usefixtures("quick_start")


def batch(rows=2, dtype=tf.float32, weights=False):
    labels = {"rain": tf.zeros([rows], tf.int64)}
    return TowerBatch(tf.ones([rows, 3], dtype), labels, tf.ones([rows]) if weights else None)


SIGNATURE = (
    TowerBatch(tf.TensorSpec([2, 3]), {"rain": tf.TensorSpec([2], tf.int64)}),
    TowerBatch(tf.TensorSpec([None, 3]), {"rain": tf.TensorSpec([None], tf.int64)}),
)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (
            (batch(3), batch()),
            "0.features was float32[2, 3] and is float32[3, 3]; "
            "0.labels.rain was int64[2] and is int64[3]",
        ),
        (
            (batch(dtype=tf.float16), batch()),
            "0.features was float32[2, 3] and is float16[2, 3]",
        ),
        ((batch(weights=True), batch()), "0.weights was not there and is float32[2]"),
    ],
)
def test_what_has_changed_is_named(arguments, changed):
    traced = TracedFunction("the step", lambda a, b: tf.reduce_sum(a.features), SIGNATURE)
    with pytest.raises(RetraceError) as error:
        traced(*arguments)
    assert str(error.value).startswith("the step would have to be traced again: ")
    assert changed in str(error.value)


def test_batches_of_another_size_end_a_run(tmp_path, monkeypatch, capsys):
    write_weather(tmp_path, 7, 7)
    build = BenchmarkCNN.build

    def with_a_short_batch(self):
        built = build(self)
        whole, calls = built.inputs.next, []

        def following():
            calls.append(1)
            batches = whole()
            if len(calls) < 4:
                return batches
            hours = {name: tensor[:2] for name, tensor in batches[1].features.items()}
            return batches[0], batches[1]._replace(features=hours)

        built.inputs.next = following
        return built

    monkeypatch.setattr(BenchmarkCNN, "build", with_a_short_batch)
    path = tmp_path / "record.json"
    flags = {**WEATHER, "data_dir": tmp_path, "device": "cpu", "num_gpus": 2, "batch_size": 3}
    flags |= {"num_warmup_batches": 1, "num_batches": 5, "quiet_conditions": "all"}
    assert main([f"--{n}={v}" for n, v in {**flags, "result_json": path}.items()]) == 4
    last = capsys.readouterr().err.splitlines()[-1]
    # Argument 0 is the learning rate, so 2 is the batch of the second tower.
    assert last.startswith("cnnbench: error: the step would have to be traced again: 2.features.")
    record = RunRecord.from_json(path.read_text())
    assert record.error.type == "RetraceError"
    assert len(record.step_seconds) == 2
