"""The first guess of how long a run takes."""

from __future__ import annotations

import pytest

from cnnbench.flags import Params
from cnnbench.run.driver import duration
from cnnbench.run.driver.duration import work_of
from cnnbench.run.driver.plan import make_plan


@pytest.fixture(autouse=True)
def known_rate(monkeypatch):
    monkeypatch.setattr(duration, "cpu_rate", lambda: 1e11)


def work(**flags):
    params = Params(**{"device": "cpu", "model": "lenet", "num_batches": 30, **flags})
    return work_of(params, make_plan(params))


def test_steps_images_and_devices_count():
    one = work(num_warmup_batches=10)
    assert (one.kind, one.dtype, one.steps) == ("cpu", "float32", 40)
    assert work(num_warmup_batches=50).flops == pytest.approx(2 * one.flops)
    assert work(batch_size=64).flops == pytest.approx(2 * one.flops)
    # Devices on the CPU share it.
    assert work(num_gpus=2).flops == pytest.approx(2 * one.flops)
    assert work(forward_only=True).flops < one.flops / 2
    assert work(input_only=True).flops == 0


def test_evaluations_count():
    plain = work()
    evaluated = work(eval_during_training_every_n_steps=10, num_eval_batches=5)
    assert evaluated.steps == plain.steps + 2 * 5
    assert evaluated.flops > plain.flops


def test_seconds_follow_from_the_speed_of_the_device():
    small, large = work().seconds({}), work(model="resnet50", batch_size=8).seconds({})
    assert 7 < small < 10
    # 40 steps of 8 images of 25 GFLOP at half of 100 GFLOP/s.
    assert 100 < large < 250


def test_gpus_are_known_by_name():
    one = work(device="gpu", model="resnet50", batch_size=64)
    assert one.seconds({"gpu_names": ["NVIDIA H200"]}) < 30
    assert one.seconds({"gpu_names": ["Unheard-of"]}) is None
    assert one.seconds({}) is None


def test_the_rate_of_the_cpu_is_measured_once(monkeypatch):
    monkeypatch.undo()
    assert 1e8 < duration.cpu_rate() < 1e14
    assert duration.cpu_rate() == duration.cpu_rate()
