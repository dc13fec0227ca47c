"""Counters as files write them, and what lies between two readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnnbench.machine.host import Host
from cnnbench.machine.sampling import CounterChanges, Counters, take


def test_counters(machine):
    machine.cpu(busy=12.0, steal=3.0)
    machine.load(1.5)
    machine.own = 4.0
    machine.put("proc/vmstat", "nr_free 1\npswpin 5\npswpout 7\npswpinned 9")
    machine.put("proc/self/cgroup", "0::/job")
    machine.put("sys/fs/cgroup/job/cpu.stat", "usage_usec 9\nthrottled_usec 2000000")
    machine.put("sys/fs/cgroup/cpu/cpu.stat", "nr_throttled 1\nthrottled_time 500000000")
    for cpu in (0, 1):
        folder = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        machine.put(f"{folder}/core_throttle_count", cpu)
        machine.put(f"{folder}/package_throttle_count", 2)
    assert take(machine.host, machine.clock) == Counters(
        at=100.0,
        busy_seconds=12.0,
        steal_seconds=3.0,
        own_seconds=4.0,
        load_average=1.5,
        thermal_events=5,
        quota_seconds=2.5,
        swapped_pages=12,
    )


def test_machine_that_tells_nothing(machine):
    assert take(machine.host, machine.clock) == Counters(at=100.0, own_seconds=0.0)


@pytest.mark.parametrize("text", ["", "cpu", "cpu  x", "cpu  1 2 3", "\x00\xff:::", "cpu0 1 2 3"])
def test_nonsense_is_unknown(machine, text):
    for path in ("proc/stat", "proc/loadavg", "proc/vmstat", "proc/self/cgroup"):
        machine.put(path, text)
    found = take(machine.host, machine.clock)
    assert (found.busy_seconds, found.steal_seconds, found.load_average) == (None, None, None)


def test_kernel_that_counts_no_steal(machine):
    machine.put("proc/stat", "cpu  100 0 100 900 50 0 0")
    found = take(machine.host, machine.clock)
    assert (found.busy_seconds, found.steal_seconds) == (2.0, None)


def test_this_machine():
    found = take(Host())
    assert found.own_seconds > 0
    assert found.at > 0


def sample(at, busy=None, steal=None, own=None, **others):
    return Counters(at=at, busy_seconds=busy, steal_seconds=steal, own_seconds=own, **others)


def test_shares_worked_by_hand():
    # 10 s on two CPUs: 12 CPU seconds used, 9 of them ours; 4 withheld.
    first = sample(5.0, 100.0, 10.0, 50.0, load_average=0.5, thermal_events=3, quota_seconds=1.0)
    second = sample(15.0, 112.0, 14.0, 59.0, load_average=9.0, thermal_events=4, quota_seconds=1.5)
    interval = CounterChanges.between(first, second)
    expected = {
        "seconds": 10.0,
        "other_cpus": 0.3,
        "steal_fraction": 0.25,
        "load_average": 0.5,
        "thermal_events": 1,
        "quota_seconds": 0.5,
    }
    assert interval == CounterChanges(**expected)
    assert interval.facts() == expected


@pytest.mark.parametrize(
    ("first", "second", "others", "stolen"),
    [
        (sample(0.0, 0.0, 0.0, 0.0), sample(0.1, 1.0, 1.0, 0.0), None, None),
        # Our own time may be counted more finely than the machine's.
        (sample(0.0, 1.0, 0.0, 1.0), sample(1.0, 1.9, 0.0, 1.93), 0.0, 0.0),
        (sample(0, 5, 5, 5), sample(9, 5, 5, 5), 0.0, 0.0),
    ],
    ids=["a moment", "rounding", "idle"],
)
def test_shares_at_their_limits(first, second, others, stolen):
    interval = CounterChanges.between(first, second)
    assert (interval.other_cpus, interval.steal_fraction) == (others, stolen)


def test_counters_that_went_back_are_unknown():
    interval = CounterChanges.between(
        sample(0, 50, 50, 1, swapped_pages=9), sample(9, 5, 5, 5, swapped_pages=0)
    )
    assert interval.facts() == {"seconds": 9}


numbers = st.one_of(st.none(), st.floats(0, 1e9))


@given(numbers, numbers, numbers, numbers, st.floats(0, 1e6))
def test_shares_are_shares(busy, steal, more_busy, more_steal, seconds):
    second = None if busy is None or more_busy is None else busy + more_busy
    stolen = None if steal is None or more_steal is None else steal + more_steal
    interval = CounterChanges.between(
        sample(0, busy, steal, 0.0), sample(seconds, second, stolen, 0.0)
    )
    assert interval.steal_fraction is None or 0 <= interval.steal_fraction <= 1
    assert interval.other_cpus is None or interval.other_cpus >= 0
