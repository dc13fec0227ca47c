"""Names of devices and the choosers among them."""

from __future__ import annotations

import pytest

from cnnbench.base.jobs.devices import cpu_of, greedy_by_bytes, round_robin


def test_choosers():
    choose = round_robin(["a", "b"])
    assert [choose(size) for size in (1, 100, 1, 7)] == ["a", "b", "a", "b"]
    choose = greedy_by_bytes(["a", "b", "c"])
    sizes = [100, 10, 10, 10, 5, 0, 90, 90]
    assert [choose(size) for size in sizes] == ["a", "b", "c", "b", "c", "c", "c", "b"]


@pytest.mark.parametrize("kind", ["CPU:0", "CPU:3", "GPU:1"])
def test_the_cpu_of_a_device(kind):
    task = "/job:worker/replica:0/task:1"
    assert cpu_of(f"{task}/device:{kind}") == f"{task}/device:CPU:0"
