"""Counters of joules, from files and from a fake NVML."""

from __future__ import annotations

import pytest

from cnnbench.machine.host import Host
from cnnbench.machine.watch import Counter, EnergyMeter, nvml_counters, rapl_counters


def zone(host, name, domain, microjoules=None, range_=262_143_328_850, **files):
    folder = host.root / "sys/class/powercap" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{domain}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_}\n")
    if microjoules is not None:
        (folder / "energy_uj").write_text(f"{microjoules}\n")
    for file, value in files.items():
        (folder / file).write_text(f"{value}\n")


def test_packages_and_their_memory_and_nothing_twice(host):
    zone(host, "intel-rapl:0", "package-0", 5_000_000)
    zone(host, "intel-rapl:0:0", "core", 1)
    zone(host, "intel-rapl:0:1", "dram", 7_000_000)
    zone(host, "intel-rapl:1", "package-1", 9_000_000)
    zone(host, "intel-rapl:2", "psys", 1)
    zone(host, "intel-rapl-mmio:0", "package-0", 1)
    counters = rapl_counters(host)
    assert [(c.name, c.read()) for c in counters] == [
        ("RAPL package-0", 5.0),
        ("RAPL dram 0", 7.0),
        ("RAPL package-1", 9.0),
    ]


def test_files_for_root_alone_are_no_counters(host):
    zone(host, "intel-rapl:0", "package-0", 5_000_000)
    zone(host, "intel-rapl:1", "package-1")  # energy_uj is missing, as if unreadable
    assert rapl_counters(host) == ()
    assert rapl_counters(Host(root=host.root / "empty")) == ()


def test_longest_time_from_the_limits_of_the_package(host):
    limits = {"constraint_0_power_limit_uw": 200_000_000, "constraint_1_max_power_uw": 250_000_000}
    zone(host, "intel-rapl:0", "package-0", 0, range_=300_000_000_000, **limits)
    zone(host, "intel-rapl:1", "package-1", 0, range_=300_000_000_000)
    first, second = rapl_counters(host)
    assert first.range_joules == 300_000
    assert first.longest_seconds == pytest.approx(300_000 / 300)
    assert second.longest_seconds == pytest.approx(300)


class Scripted:
    """A counter with these readings."""

    def __init__(self, *values, on_gpu=False, name="c", **limits):
        self.values = list(values)
        self.counter = Counter(name, on_gpu, lambda: self.values.pop(0), **limits)


def measure(*counters, seconds=10.0):
    times = iter([0.0, seconds])
    meter = EnergyMeter([one.counter for one in counters], clock=lambda: next(times))
    meter.start()
    return meter.stop()


def energy(cpu, gpu, source):
    return {"cpu_energy_joules": cpu, "gpu_energy_joules": gpu, "energy_source": source}


@pytest.mark.parametrize(
    ("values", "limits", "seconds", "joules"),
    [
        ((100.0, 142.5), {}, 10, 42.5),
        ((90.0, 5.0), {"range_joules": 100.0}, 10, 15.0),
        ((90.0, 5.0), {}, 10, None),  # went back without a range
        ((10.0, 20.0), {"range_joules": 100.0, "longest_seconds": 9.0}, 8, 10.0),
        ((10.0, 20.0), {"range_joules": 100.0, "longest_seconds": 9.0}, 10, None),
    ],
)
def test_energy_of_one_counter(values, limits, seconds, joules):
    expected = {} if joules is None else energy(joules, None, "c")
    assert measure(Scripted(*values, **limits), seconds=seconds) == expected


@pytest.mark.parametrize(
    ("last", "expected"),
    [(1.0, energy(3.0, 4.0, "package-0, package-1, GPU 0")), (None, energy(None, 4.0, "GPU 0"))],
)
def test_kinds_are_added_up_apart_and_only_where_all_are_known(last, expected):
    found = measure(
        Scripted(0.0, last, name="package-0"),
        Scripted(0.0, 2.0, name="package-1"),
        Scripted(0.0, 4.0, name="GPU 0", on_gpu=True),
    )
    assert found == expected


def test_nothing_to_read():
    assert measure() == {}


def test_gpus_of_the_run(host, nvml):
    here = Host(root=host.root, environ={}, modules={"pynvml": nvml})
    with nvml_counters(here, "1,0", 2) as counters:
        assert [(c.name, c.on_gpu, c.read()) for c in counters] == [
            ("NVML GPU 1", True, None),  # does not count energy
            ("NVML GPU 0", True, 1.5),
        ]
    assert nvml.depth == 0


def test_no_driver(host):
    with nvml_counters(host, "", 1) as counters:
        assert counters == ()
