"""Names of devices and the choosers among them."""

from __future__ import annotations

import pytest

from cnnbench.base.jobs.devices import GreedyByBytes, RoundRobin, cpu_of


def test_round_robin_begins_with_the_first_and_goes_on_where_it_stopped():
    choose = RoundRobin(["a", "b"])
    assert [choose(size) for size in (1, 100, 1)] == ["a", "b", "a"]
    assert choose(7) == "b"


def test_greedy_by_bytes_takes_the_first_of_equals():
    choose = GreedyByBytes(["a", "b", "c"])
    sizes = [100, 10, 10, 10, 5, 0, 90, 90]
    assert [choose(size) for size in sizes] == ["a", "b", "c", "b", "c", "c", "c", "b"]


def test_greedy_refuses_negative_sizes():
    with pytest.raises(ValueError, match="-1 bytes"):
        GreedyByBytes(["a"])(-1)


@pytest.mark.parametrize("chooser", [RoundRobin, GreedyByBytes])
def test_choosers_need_devices(chooser):
    with pytest.raises(ValueError, match="no devices"):
        chooser([])


@pytest.mark.parametrize("kind", ["CPU:0", "CPU:3", "GPU:1"])
def test_the_cpu_of_a_device(kind):
    task = "/job:worker/replica:0/task:1"
    assert cpu_of(f"{task}/device:{kind}") == f"{task}/device:CPU:0"
