"""Functions of the timed loop are traced once; a call with another signature is named.

That a step is traced once in every mode is shown in test_skipped_steps.py.

Tests cnnbench/run/step/tracing.py.
"""

import pytest
from data_sets import WEATHER, write_weather

from cnnbench import BenchmarkCNN, RunRecord

pytestmark = pytest.mark.usefixtures("quick_start")


@pytest.mark.slow
def test_batches_of_another_size_end_a_run(tmp_path, monkeypatch, call):
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
    last = call(**flags, result_json=path, code=4).err.splitlines()[-1]
    # Argument 0 is the learning rate, so 2 is the batch of the second tower.
    hours = "2.features.hours was float32[3, 24, 3] and is float32[2, 24, 3]"
    changed = f"{hours}; 2.features.station was int64[3] and is int64[2]"
    assert last == f"cnnbench: error: the step would have to be traced again: {changed}"
    record = RunRecord.from_json(path.read_text())
    assert record.error.type == "RetraceError"
    assert len(record.step_seconds) == 2
