"""Facts from /proc and /sys as different machines write them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from cnnbench.machine import cpu
from cnnbench.machine.cpu import Memory, main_memory


def test_processor_of_a_pc(machine):
    block = "processor : {}\nmodel name\t: Xeon Gold\nphysical id\t: 0\ncore id\t: {}\n"
    flags = "flags\t: fpu avx avx2 fma avx512_bf16 amx_bf16 hypervisor\n"
    machine.put("proc/cpuinfo", "\n".join(block.format(i, i // 2) + flags for i in range(4)))
    facts = cpu.processor(machine.host)
    assert facts["cpu_model"] == "Xeon Gold"
    assert facts["physical_cores"] == 2
    assert facts["cpu_isa"] == ["avx", "fma", "avx2", "avx512_bf16", "amx_bf16"]
    assert facts["virtual_machine"] is True


def test_processor_of_an_arm_server(machine):
    machine.put("proc/cpuinfo", "processor : 0\nFeatures : fp asimd sve bf16\nCPU part : 0xd4f\n")
    facts = cpu.processor(machine.host)
    assert facts["cpu_isa"] == ["asimd", "sve", "bf16"]
    assert facts["physical_cores"] is None


@pytest.mark.parametrize(
    ("path", "text", "turbo"),
    [
        ("intel_pstate/no_turbo", "1", False),
        ("intel_pstate/no_turbo", "0\n", True),
        ("cpufreq/boost", "1", True),
        ("cpufreq/boost", "0", False),
        ("other", "0", None),
    ],
)
def test_turbo(machine, path, text, turbo):
    machine.put(f"sys/devices/system/cpu/{path}", text)
    assert cpu.settings(machine.host)["cpu_turbo"] is turbo


def test_governors_of_all_cores(machine):
    for index, governor in enumerate(("performance", "powersave", "performance")):
        machine.put(f"sys/devices/system/cpu/cpufreq/policy{index}/scaling_governor", governor)
    assert cpu.settings(machine.host)["cpu_governor"] == "performance,powersave"


@pytest.mark.parametrize(
    ("files", "cpus", "memory"),
    [
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/cpu.max": "150000 100000",
                "sys/fs/cgroup/a/b/memory.max": "max",
                "sys/fs/cgroup/a/memory.max": 1 << 30,
            },
            1.5,
            1 << 30,
        ),
        (
            {
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/cpu.max": "max 100000",
                "sys/fs/cgroup/memory.max": "max",
            },
            None,
            None,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": 200_000,
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100_000,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
                "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": 1 << 31,
            },
            2.0,
            1 << 31,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100_000,
            },
            None,
            None,
        ),
    ],
    ids=["version 2", "version 2, no limit", "version 1", "version 1, no limit"],
)
def test_the_smallest_limit_of_the_control_groups(machine, files, cpus, memory):
    for path, text in files.items():
        machine.put(path, text)
    assert cpu.limits(machine.host) == {
        "cgroup_cpu_limit": cpus,
        "cgroup_memory_limit_bytes": memory,
    }


def test_affinity_is_a_fact_only_when_it_limits(machine, cpus):
    cpus({0, 1, 2, 5}, 8)
    machine.put("sys/devices/system/cpu/online", "0-7")
    assert cpu.logical_cpus(machine.host) == {
        "logical_cpus": 8,
        "cpus_online": "0-7",
        "usable_cpus": 4,
        "cpu_affinity": "0-2,5",
    }
    cpus(range(8))
    assert cpu.logical_cpus(machine.host)["cpu_affinity"] is None


SETTINGS = {
    "sys/devices/system/cpu/cpufreq/policy0/cpuinfo_max_freq": ("3700000", "cpu_max_mhz", 3700),
    "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq": ("2400", "cpu_max_mhz_allowed", 2),
    "sys/devices/system/cpu/cpufreq/policy0/energy_performance_preference": (
        *("balance_power", "cpu_energy_preference", "balance_power"),
    ),
    "sys/devices/system/cpu/smt/active": ("0", "cpu_smt", False),
    "sys/devices/system/node/node0/cpulist": ("0", "numa_nodes", 1),
    "sys/kernel/mm/transparent_hugepage/enabled": (
        *("always [madvise] never", "transparent_huge_pages", "madvise"),
    ),
    "sys/kernel/mm/transparent_hugepage/defrag": (
        *("always [defer+madvise]", "transparent_huge_pages_defrag", "defer+madvise"),
    ),
    "proc/sys/kernel/randomize_va_space": ("2", "aslr", "full"),
    "proc/sys/kernel/numa_balancing": ("1", "numa_balancing", True),
    "sys/hypervisor/type": ("xen", "hypervisor", "xen"),
    "sys/class/dmi/id/product_name": ("Machine 1", "machine_model", "Machine 1"),
}


def test_settings(machine):
    assert set(cpu.settings(machine.host).values()) == {None}
    for path, (text, _, _) in SETTINGS.items():
        machine.put(path, text)
    machine.put("sys/devices/system/node/online", "0-1")
    expected = {name: fact for _, name, fact in SETTINGS.values()}
    found = {name: fact for name, fact in cpu.settings(machine.host).items() if fact is not None}
    assert found == expected
    machine.put("sys/devices/system/node/node1/cpulist", "1")
    assert cpu.settings(machine.host)["numa_nodes"] == 2


@pytest.mark.parametrize(("plugged", "fact"), [(False, True), (True, None), (None, None)])
def test_what_psutil_says_of_battery_and_memory(machine, plugged, fact, monkeypatch):
    battery = SimpleNamespace(power_plugged=plugged)
    main = SimpleNamespace(total=1 << 20, available=1 << 19)
    swap = SimpleNamespace(total=1 << 18)
    told = SimpleNamespace(
        sensors_battery=lambda: battery, virtual_memory=lambda: main, swap_memory=lambda: swap
    )
    monkeypatch.setitem(sys.modules, "psutil", told)
    assert cpu.power(machine.host) == {"on_battery": fact}
    facts = {"memory_bytes": 1 << 20, "memory_available_bytes": 1 << 19, "swap_bytes": 1 << 18}
    assert cpu.memory(machine.host) == facts
    battery, swap.total = None, 0
    assert cpu.power(machine.host) == {"on_battery": None}
    assert cpu.memory(machine.host)["swap_bytes"] is None


GIB = 2**30
MEMINFO = f"MemTotal: {16 * 2**20} kB\nMemAvailable: {12 * 2**20} kB\nSwapTotal: {2**20} kB"


@pytest.mark.parametrize(
    ("group", "folder", "names"),
    [
        ("0::/job", "sys/fs/cgroup/job", ("memory.max", "memory.current", "inactive_file")),
        (
            "3:memory:/job",
            "sys/fs/cgroup/memory/job",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_memory_of_a_control_group(machine, group, folder, names):
    assert main_memory(machine.host) is None
    machine.put("proc/meminfo", MEMINFO)
    machine.put("proc/self/cgroup", group)
    assert main_memory(machine.host) == Memory(total=17 * GIB, available=12 * GIB)
    limit, used, file_pages = names
    machine.put(f"{folder}/{limit}", 4 * GIB)
    machine.put(f"{folder}/{used}", 3 * GIB)
    machine.put(f"{folder}/memory.stat", f"anon 5\n{file_pages} {GIB}")
    assert main_memory(machine.host) == Memory(total=5 * GIB, available=2 * GIB)
