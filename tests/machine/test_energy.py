"""Counters of joules, from files and from a fake NVML."""

from __future__ import annotations

from functools import partial

import pytest

from cnnbench.machine.cpu import Host
from cnnbench.machine.energy import EnergyCounter, EnergyMeter, opened_nvml_counters, rapl_counters


def zone(machine, name, domain, microjoules=None, range_=262_143_328_850, **files):
    files = {"name": domain, "max_energy_range_uj": range_, "energy_uj": microjoules, **files}
    for file, value in files.items():
        if value is not None:
            machine.put(f"sys/class/powercap/{name}/{file}", value)


def test_packages_and_their_memory_and_nothing_twice(machine):
    zone(machine, "intel-rapl:0", "package-0", 5_000_000)
    zone(machine, "intel-rapl:0:0", "core", 1)
    zone(machine, "intel-rapl:0:1", "dram", 7_000_000)
    zone(machine, "intel-rapl:1", "package-1", 9_000_000)
    zone(machine, "intel-rapl:2", "psys", 1)
    zone(machine, "intel-rapl-mmio:0", "package-0", 1)
    counters = rapl_counters(machine.host)
    assert [(c.name, c.read()) for c in counters] == [
        ("RAPL package-0", 5_000_000),
        ("RAPL dram 0", 7_000_000),
        ("RAPL package-1", 9_000_000),
    ]


def test_files_for_root_alone_are_no_counters(machine):
    zone(machine, "intel-rapl:0", "package-0", 5_000_000)
    zone(machine, "intel-rapl:1", "package-1")  # energy_uj is missing, as if unreadable
    assert rapl_counters(machine.host) == ()
    assert rapl_counters(Host(root=machine.root / "empty")) == ()


def test_longest_time_from_the_limits_of_the_package(machine):
    limits = {"constraint_0_power_limit_uw": 200_000_000, "constraint_1_max_power_uw": 250_000_000}
    zone(machine, "intel-rapl:0", "package-0", 0, range_=300_000_000_000, **limits)
    zone(machine, "intel-rapl:1", "package-1", 0, range_=300_000_000_000)
    first, second = rapl_counters(machine.host)
    assert (first.per_joule, first.range) == (1e6, 300_000_000_000)
    assert first.longest_seconds == pytest.approx(300_000 / 300)
    assert second.longest_seconds == pytest.approx(300)


def scripted(*values, on_gpu=False, name="c", **limits):
    """A counter with these readings."""
    return EnergyCounter(name, on_gpu, partial(next, iter(values)), **limits)


def measure(*counters, seconds=10.0):
    meter = EnergyMeter(counters, clock=partial(next, iter([0.0, seconds])))
    meter.start()
    return meter.stop()


def energy(cpu, gpu, source):
    return {"cpu_energy_joules": cpu, "gpu_energy_joules": gpu, "energy_source": source}


@pytest.mark.parametrize(
    ("values", "limits", "seconds", "joules"),
    [
        ((100.0, 142.5), {}, 10, 42.5),
        ((100, 600), {"per_joule": 1e3}, 10, 0.5),
        ((90.0, 5.0), {"range": 100.0}, 10, 15.0),
        ((90.0, 5.0), {}, 10, None),  # went back without a range
        ((10.0, 20.0), {"range": 100.0, "longest_seconds": 9.0}, 8, 10.0),
        ((10.0, 20.0), {"range": 100.0, "longest_seconds": 9.0}, 10, None),
    ],
)
def test_energy_of_one_counter(values, limits, seconds, joules):
    expected = {} if joules is None else energy(joules, None, "c")
    assert measure(scripted(*values, **limits), seconds=seconds) == expected


@pytest.mark.parametrize(
    ("last", "expected"),
    [(1.0, energy(3.0, 4.0, "package-0, package-1, GPU 0")), (None, energy(None, 4.0, "GPU 0"))],
)
def test_kinds_are_added_up_apart_and_only_where_all_are_known(last, expected):
    found = measure(
        scripted(0.0, last, name="package-0"),
        scripted(0.0, 2.0, name="package-1"),
        scripted(0.0, 4.0, name="GPU 0", on_gpu=True),
    )
    assert found == expected


def test_gpus_of_the_run(machine, nvml):
    machine.modules["pynvml"] = nvml
    with opened_nvml_counters(machine.host, (1, 0)) as counters:
        assert [(c.name, c.on_gpu, c.read()) for c in counters] == [
            ("NVML GPU 1", True, None),  # does not count energy
            ("NVML GPU 0", True, 1500),
        ]
    assert nvml.depth == 0


def test_without_a_driver_nothing_is_measured(machine):
    with opened_nvml_counters(machine.host, (0,)) as counters:
        assert measure(*counters) == {}
