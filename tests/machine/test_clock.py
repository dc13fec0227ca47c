"""The clock of CPUs, as kernels tell it or do not."""

from __future__ import annotations

import pytest

from cnnbench.machine import watch as watch_module
from cnnbench.machine.checks import RunFlags
from cnnbench.machine.sampling import clock_mhz
from cnnbench.machine.watch import Watch

CPUINFO = """\
processor	: 0
model name	: Some CPU
cpu MHz		: {0}
cache size	: 512 KB

processor	: 1
model name	: Some CPU
cpu MHz		: {1}
cache size	: 512 KB

processor	: 2
model name	: Some CPU
cpu MHz		: {2}
cache size	: 512 KB
"""


def current(machine, number, kilohertz):
    machine.put(f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_cur_freq", kilohertz)


def test_the_median_of_the_usable_cpus(machine):
    for number, kilohertz in enumerate((3_400_100, 2_100_000, 3_300_000, 800_000)):
        current(machine, number, kilohertz)
    assert clock_mhz(machine.host, {0, 1, 2}) == 3300
    assert clock_mhz(machine.host, {3}) == 800


def test_of_many_cpus_a_few_are_read(machine, monkeypatch):
    for number in range(128):
        current(machine, number, 2_000_000 + number)
    read, number_in = [], type(machine.host).number
    monkeypatch.setattr(
        type(machine.host), "number", lambda host, path: read.append(path) or number_in(host, path)
    )
    assert clock_mhz(machine.host, range(128)) == 2000
    assert len(read) == 8
    assert "cpu112/" in read[-1]


def test_files_that_say_nothing(machine):
    assert clock_mhz(machine.host, {0, 1}) is None
    current(machine, 0, "<unknown>")
    current(machine, 1, 0)
    assert clock_mhz(machine.host, {0, 1}) is None
    current(machine, 1, 1_800_000)
    assert clock_mhz(machine.host, {0, 1}) == 1800


@pytest.mark.parametrize(
    ("clocks", "found"),
    [
        (("2994.371", "3391.020", "800.000"), 3193),
        (("2596.140", "2596.140", "2596.140"), None),  # nominal: of a virtual machine
    ],
)
def test_proc_cpuinfo_where_there_is_no_governor(machine, clocks, found):
    machine.put("proc/cpuinfo", CPUINFO.format(*clocks))
    assert clock_mhz(machine.host, {0, 1}) == found


@pytest.mark.parametrize("text", ["", "processor: x", "processor : 0\ncpu MHz : fast\n"])
def test_nonsense_is_no_clock(machine, text):
    machine.put("proc/cpuinfo", text)
    assert clock_mhz(machine.host, {0}) is None


def test_a_run_records_it_before_and_after_its_loop_and_reads_nothing_within(machine, monkeypatch):
    clocks = [1200, 3300]
    monkeypatch.setattr(watch_module, "clock_mhz", lambda host: clocks.pop(0))
    watch = Watch(machine.host, clock=machine.clock)
    watch.before({}, RunFlags())
    with watch:
        assert clocks == [3300]
        with watch.suspended():
            pass
        assert clocks == [3300]
    assert clocks == []
    record = watch.record()
    assert record.before["cpu_clock_mhz"] == 1200
    assert record.during["cpu_clock_mhz"] == 3300
