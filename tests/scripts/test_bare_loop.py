"""The bare loop that the harness is measured against is bare."""

from __future__ import annotations

import json

from peers.children import bare_loop

from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN
from cnnbench.run.step.train_step import TrainStep

STEPS, WARMUP = 6, 2


def test_only_the_harness_goes_through_the_harness(monkeypatch, capsys):
    calls = {"harness": 0, "function": 0}
    call, function = TrainStep.__call__, TrainStep.function.fget

    def counted_call(self):
        calls["harness"] += 1
        return call(self)

    def counted_function(self):
        def step(rate):
            calls["function"] += 1
            return function(self)(rate)

        return step

    monkeypatch.setattr(TrainStep, "__call__", counted_call)
    monkeypatch.setattr(TrainStep, "function", property(counted_function))
    # Puts back what the child, a process of its own otherwise, replaces for good.
    monkeypatch.setattr(BenchmarkCNN, "build", BenchmarkCNN.build)
    flags = ["--model=trivial", "--device=cpu", "--batch_size=2", "--progress=off"]
    bare_loop.main([*flags, f"--num_batches={STEPS}", f"--num_warmup_batches={WARMUP}"])
    assert calls == {"harness": STEPS + WARMUP, "function": 2 * bare_loop.WARMUP + STEPS}
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "MEASURED" in line)
    measured = json.loads(line.removeprefix("MEASURED "))
    assert measured["batch"] == 2
    assert len(measured["step_seconds"]) == STEPS
    assert measured["bare_steps_per_sec"] > 0
