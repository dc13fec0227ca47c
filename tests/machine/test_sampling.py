"""Counters and clocks as files write them, and what lies between two readings.

Tests cnnbench/machine/counters.py.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from cnnbench.machine.counters import (
    MachineCounters,
    changes,
    current_clock_mhz,
    process_cpu_seconds,
    read_counters,
)
from cnnbench.machine.cpu import Host, pid_namespace


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
    assert read_counters(machine.host, machine.clock) == MachineCounters(
        at=100.0,
        busy_seconds=12.0,
        steal_seconds=3.0,
        own_seconds=4.0,
        load_average=1.5,
        thermal_events=5,
        quota_seconds=2.5,
        swapped_pages=12,
    )


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu  x", "cpu  1 2 3", "\x00\xff:::", "cpu0 1 2 3", "7 (a) S " + "x " * 50]
)
def test_nonsense_is_unknown(machine, text):
    for path in ("stat", "loadavg", "vmstat", "self/cgroup", "7/stat"):
        machine.put(f"proc/{path}", text)
    assert process_cpu_seconds(machine.host, 7) is None
    load = 7.0 if text.startswith("7 ") else None
    found = read_counters(machine.host, machine.clock)
    assert found == MachineCounters(at=100.0, own_seconds=0.0, load_average=load)


def test_kernel_that_counts_no_steal(machine):
    machine.put("proc/stat", "cpu  100 0 100 900 50 0 0")
    found = read_counters(machine.host, machine.clock)
    assert (found.busy_seconds, found.steal_seconds) == (2.0, None)


def sample(at, busy=None, steal=None, own=None, **others):
    return MachineCounters(at=at, busy_seconds=busy, steal_seconds=steal, own_seconds=own, **others)


BY_HAND = (  # 10 s on two CPUs: 12 CPU seconds used, 9 of them ours; 4 withheld
    sample(5.0, 100.0, 10.0, 50.0, load_average=0.5, thermal_events=3, quota_seconds=1.0),
    sample(15.0, 112.0, 14.0, 59.0, load_average=9.0, thermal_events=4, quota_seconds=1.5),
)
KNOWN = {"load_average": 0.5, "thermal_events": 1, "quota_seconds": 0.5}


@pytest.mark.parametrize(
    ("first", "second", "seconds", "expected"),
    [
        (*BY_HAND, 10.0, {"other_cpus": 0.3, "steal_fraction": 0.25, **KNOWN}),
        (sample(0.0, 0.0, 0.0, 0.0), sample(0.1, 1.0, 1.0, 0.0), 0.1, {}),
        # Three digits, and four of a share.
        (
            sample(0.0, 0.0, 0.0, 0.0, quota_seconds=0.0),
            sample(3.0, 1.0009, 2.0, 0.0, quota_seconds=1.00049),
            3.0,
            {"other_cpus": 0.334, "steal_fraction": 0.6665, "quota_seconds": 1.0},
        ),
        # Our own time may be counted more finely than the machine's.
        (sample(0, 1, 0, 1), sample(1, 1.9, 0, 1.93), 1, {"other_cpus": 0, "steal_fraction": 0}),
        (sample(0, 5, 5, 5), sample(9, 5, 5, 5), 9, {"other_cpus": 0, "steal_fraction": 0}),
        (sample(0, 5, 5, 5), sample(9, 5, 6, 5), 9, {"other_cpus": 0, "steal_fraction": 1}),
        (sample(0, 50, 50, 1, swapped_pages=9), sample(9, 5, 5, 5, swapped_pages=0), 9, {}),
    ],
    ids=[
        "worked by hand",
        "a moment",
        "digits",
        "rounding",
        "idle",
        "all withheld",
        "counters that went back",
    ],
)
def test_changes_between_two_samples(first, second, seconds, expected):
    assert changes(first, second) == {"seconds": seconds, **expected}


BUSY = """
import sys, time
while time.process_time() < 0.2: pass
print("done", flush=True)
sys.stdin.read()
"""

CHILD = "from cnnbench.machine.cpu import *; print(pid_namespace(Host()))"


def test_own_cpu_time_is_finer_than_that_of_the_machine():
    differences = []
    for _ in range(10):
        differences.append(read_counters(Host()).own_seconds - time.process_time())
        end = time.process_time() + 0.003
        while time.process_time() < end:
            pass
    assert max(differences) - min(differences) < 0.008  # that of the machine ticks every 0.01 s


def test_cpu_time_of_another_process():
    with subprocess.Popen(
        [sys.executable, "-S", "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"done\n"
        spent = process_cpu_seconds(Host(), process.pid)
        alone, together = read_counters(Host()), read_counters(Host(), peers=[process.pid])
        process.communicate()
    assert 0.15 < spent < 5
    assert together.own_seconds - alone.own_seconds > 0.15
    assert process_cpu_seconds(Host(), process.pid) is None
    assert read_counters(Host(), peers=[process.pid]).own_seconds is None


def test_processes_that_share_their_pids_say_so(machine):
    other = subprocess.check_output([sys.executable, "-c", CHILD], text=True)
    assert other.strip() == pid_namespace(Host())
    assert pid_namespace(machine.host) is None
    machine.put("proc/sys/kernel/random/boot_id", "0000-1111")
    assert pid_namespace(machine.host) is None
    (machine.root / "proc/self/ns").mkdir(parents=True)
    (machine.root / "proc/self/ns/pid").symlink_to("pid:[42]")
    assert pid_namespace(machine.host) == "0000-1111 pid:[42]"


def cpuinfo(*clocks):
    return "\n".join(
        f"processor\t: {number}\nmodel name\t: Some CPU\ncpu MHz\t\t: {clock}\ncores\t: 2\n"
        for number, clock in enumerate(clocks)
    )


FOUR = (3_400_100, 2_100_000, 3_300_000, 800_000)
MANY = [9_000_000 if number % 16 else 2_000_000 for number in range(128)]


@pytest.mark.parametrize(
    ("usable", "kilohertz", "text", "clock"),
    [
        ({0, 1, 2}, FOUR, "", 3300),  # the median
        ({3}, FOUR, "", 800),
        (range(128), MANY, "", 2000),  # of eight of them
        ({0, 1}, (), "", None),
        ({0, 1}, (), "processor: x", None),
        ({0, 1}, (), "processor : 0\ncpu MHz : fast\n", None),
        ({0, 1}, ("<unknown>", 0), "", None),
        ({0, 1}, ("<unknown>", 1_800_000), "", 1800),
        ({0, 1}, (), cpuinfo("2994.371", "3391.020", "800.000"), 3193),
        ({0, 1}, (), cpuinfo(*["2596.140"] * 3), None),  # nominal: of a virtual machine
    ],
)
def test_the_clock_of_the_usable_cpus(machine, cpus, usable, kilohertz, text, clock):
    cpus(usable)
    machine.put("proc/cpuinfo", text)
    for number, value in enumerate(kilohertz):
        machine.put(f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq", value)
    assert current_clock_mhz(machine.host) == clock
