"""Facts from /proc and /sys as different machines write them."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from cnnbench.machine import cpu
from cnnbench.machine.cpu import MemoryCapacity, read_memory_capacity


def test_processor_of_a_pc(machine):
    block = "processor : {}\nmodel name\t: Xeon Gold\nphysical id\t: 0\ncore id\t: {}\n"
    flags = "flags\t: fpu avx avx2 fma avx512_bf16 amx_bf16 hypervisor\n"
    machine.put("proc/cpuinfo", "\n".join(block.format(i, i // 2) + flags for i in range(4)))
    facts = cpu.processor_facts(machine.host)
    assert facts["cpu_model"] == "Xeon Gold"
    assert facts["physical_cores"] == 2
    assert facts["cpu_isa"] == ["avx", "fma", "avx2", "avx512_bf16", "amx_bf16"]
    assert facts["virtual_machine"] is True


def test_processor_of_a_mac(machine, monkeypatch):
    """It has no file about its processor; a program names it."""
    unknown = {"cpu_model": None, "cpu_conv_gradients": "library"}
    assert cpu.processor_facts(machine.host) == unknown
    asked = []

    def run(command, *, capture_output, text, timeout, check):
        asked.append((command, capture_output, text, check))
        return SimpleNamespace(stdout="Apple M3\n")

    monkeypatch.setattr(cpu.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(cpu.subprocess, "run", run)
    assert cpu.processor_facts(machine.host) == {**unknown, "cpu_model": "Apple M3"}
    assert asked == [(["sysctl", "-n", "machdep.cpu.brand_string"], True, True, True)]


def test_without_affinity_a_process_may_use_every_cpu(monkeypatch):
    monkeypatch.delattr(cpu.os, "sched_getaffinity", raising=False)
    for count, numbers in ((3, [0, 1, 2]), (None, [0])):
        monkeypatch.setattr(cpu.os, "cpu_count", lambda count=count: count)
        assert [*cpu.usable_cpu_numbers()] == numbers
        assert cpu.available_cpu_count() == len(numbers)


def test_processor_of_an_arm_server(machine):
    machine.put("proc/cpuinfo", "processor : 0\nFeatures : fp asimd sve bf16\nCPU part : 0xd4f\n")
    facts = cpu.processor_facts(machine.host)
    assert facts["cpu_isa"] == ["asimd", "sve", "bf16"]
    assert facts["physical_cores"] is None


@pytest.mark.parametrize(
    ("flags", "environ", "kernels"),
    [
        ("sse4_2 avx", {}, "library"),
        ("avx avx2 fma", {}, "eigen-avx2"),
        # TensorFlow takes oneDNN's convolutions by itself on CPUs with such instructions.
        ("avx2 fma avx_vnni", {}, "onednn-avx2"),
        ("avx2 fma avx512bw", {}, "eigen-avx512"),
        ("avx2 fma avx512bw avx512_vnni", {}, "onednn-avx512"),
        ("avx2 fma", {"TF_ENABLE_ONEDNN_OPTS": "1"}, "onednn-avx2"),
        ("avx2 fma", {"TF_ENABLE_ONEDNN_OPTS": "0"}, "library"),
        ("avx2 fma avx512bw amx_int8", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "onednn-avx2"),
        ("avx2 fma avx512bw amx_int8", {"DNNL_MAX_CPU_ISA": "avx2_vnni"}, "onednn-avx2"),
        ("avx2 fma avx512bw amx_int8", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, "onednn-avx512"),
        ("avx2 fma", {"ONEDNN_MAX_CPU_ISA": "AVX", "DNNL_MAX_CPU_ISA": "ALL"}, "library"),
        ("avx2 fma", {"DNNL_MAX_CPU_ISA": "SSE41"}, "library"),
        ("asimd bf16", {}, "library"),
    ],
)
def test_kernels_of_convolutions(machine, flags, environ, kernels):
    machine.put("proc/cpuinfo", f"processor : 0\nflags : {flags}\n")
    machine.environ.update(environ)
    assert cpu.convolution_kernels(machine.host) == kernels
    fact = f"fastest ({kernels})" if kernels in cpu.MEASURED_KERNELS else "library"
    assert cpu.processor_facts(machine.host)["cpu_conv_gradients"] == fact


@pytest.mark.parametrize(
    ("group", "files", "cpus", "memory"),
    [
        # Version 2; the smallest limit of a group and those around it counts.
        (
            "0::/a/b",
            {
                **{"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 100000"},
                **{"a/b/memory.max": "max", "a/memory.max": 1 << 30},
            },
            *(1.5, 1 << 30),
        ),
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, None, None),
        # Version 1.
        (
            "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/",
            {
                **{"cpu/cpu.cfs_quota_us": 200_000, "cpu/cpu.cfs_period_us": 100_000},
                "memory/memory.limit_in_bytes": 9223372036854771712,
                "memory/docker/x/memory.limit_in_bytes": 1 << 31,
            },
            *(2.0, 1 << 31),
        ),
        (
            "1:cpu:/",
            {
                **{"cpu/cpu.cfs_quota_us": 1, "cpu/cpu.cfs_period_us": 0},
                "memory/memory.limit_in_bytes": 0,
            },
            *(None, None),
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100_000}, None, None),
    ],
)
def test_the_smallest_limit_of_the_control_groups(machine, group, files, cpus, memory):
    machine.put("proc/self/cgroup", group)
    for path, text in files.items():
        machine.put(f"sys/fs/cgroup/{path}", text)
    assert cpu.control_group_limits(machine.host) == {
        "cgroup_cpu_limit": cpus,
        "cgroup_memory_limit_bytes": memory,
    }


def test_a_machine_whose_number_of_cpus_is_unknown_has_one(machine, monkeypatch):
    monkeypatch.setattr(cpu.os, "cpu_count", lambda: None)
    monkeypatch.setattr(cpu.os, "sched_getaffinity", lambda pid: {0})
    facts = cpu.cpu_count_facts(machine.host)
    assert (facts["logical_cpus"], facts["cpu_affinity"]) == (1, None)


def test_affinity_is_a_fact_only_when_it_limits(machine, cpus):
    cpus({0, 1, 2, 5}, 8)
    machine.put("sys/devices/system/cpu/online", "0-7")
    assert cpu.cpu_count_facts(machine.host) == {
        "logical_cpus": 8,
        "cpus_online": "0-7",
        "usable_cpus": 4,
        "cpu_affinity": "0-2,5",
    }
    cpus(range(8))
    assert cpu.cpu_count_facts(machine.host)["cpu_affinity"] is None


CPU = "sys/devices/system/cpu"
MANY = {
    f"{CPU}/cpufreq/policy0/cpuinfo_max_freq": 3700000,
    f"{CPU}/cpufreq/policy0/scaling_max_freq": 2400,
    f"{CPU}/cpufreq/policy0/energy_performance_preference": "balance_power",
    f"{CPU}/smt/active": 0,
    "sys/devices/system/node/online": "0-1",
    "sys/devices/system/node/node0/cpulist": 0,
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/kernel/mm/transparent_hugepage/defrag": "always [defer+madvise]",
    "proc/sys/kernel/randomize_va_space": 2,
    "proc/sys/kernel/numa_balancing": 1,
    "sys/hypervisor/type": "xen",
    "sys/class/dmi/id/product_name": "Machine 1",
}
FACTS = {
    **{"cpu_max_mhz": 3700, "cpu_max_mhz_allowed": 2, "cpu_energy_preference": "balance_power"},
    **{"cpu_smt": False, "numa_nodes": 1, "numa_balancing": True, "aslr": "full"},
    **{"transparent_huge_pages": "madvise", "transparent_huge_pages_defrag": "defer+madvise"},
    **{"hypervisor": "xen", "machine_model": "Machine 1"},
}
GOVERNORS = ("performance", "powersave", "performance")


@pytest.mark.parametrize(
    ("files", "facts"),
    [
        ({}, {}),
        (MANY, FACTS),
        ({f"sys/devices/system/node/node{i}/cpulist": i for i in range(2)}, {"numa_nodes": 2}),
        (
            {f"{CPU}/cpufreq/policy{i}/scaling_governor": g for i, g in enumerate(GOVERNORS)},
            {"cpu_governor": "performance,powersave"},
        ),
        ({f"{CPU}/intel_pstate/no_turbo": 1}, {"cpu_turbo": False}),
        ({f"{CPU}/intel_pstate/no_turbo": "0\n"}, {"cpu_turbo": True}),
        ({f"{CPU}/cpufreq/boost": 1}, {"cpu_turbo": True}),
        ({f"{CPU}/cpufreq/boost": 0}, {"cpu_turbo": False}),
    ],
)
def test_settings(machine, files, facts):
    for path, text in files.items():
        machine.put(path, text)
    found = cpu.os_kernel_settings(machine.host)
    assert {name: fact for name, fact in found.items() if fact is not None} == facts


@pytest.mark.parametrize(("plugged", "fact"), [(False, True), (True, None), (None, None)])
def test_what_psutil_says_of_battery_and_memory(machine, plugged, fact, monkeypatch):
    battery = SimpleNamespace(power_plugged=plugged)
    main = SimpleNamespace(total=1 << 20, available=1 << 19)
    swap = SimpleNamespace(total=1 << 18)
    told = SimpleNamespace(
        sensors_battery=lambda: battery, virtual_memory=lambda: main, swap_memory=lambda: swap
    )
    monkeypatch.setitem(sys.modules, "psutil", told)
    assert cpu.battery_facts(machine.host) == {"on_battery": fact}
    facts = {"memory_bytes": 1 << 20, "memory_available_bytes": 1 << 19, "swap_bytes": 1 << 18}
    assert cpu.memory_sizes(machine.host) == facts
    battery, swap.total = None, 0
    assert cpu.battery_facts(machine.host) == {"on_battery": None}
    assert cpu.memory_sizes(machine.host)["swap_bytes"] is None


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
    assert read_memory_capacity(machine.host) is None
    machine.put("proc/meminfo", MEMINFO)
    machine.put("proc/self/cgroup", group)
    assert read_memory_capacity(machine.host) == MemoryCapacity(total=17 * GIB, available=12 * GIB)
    limit, used, file_pages = names
    machine.put(f"{folder}/{limit}", 4 * GIB)
    machine.put(f"{folder}/{used}", 3 * GIB)
    machine.put(f"{folder}/memory.stat", f"anon 5\n{file_pages} {GIB}")
    assert read_memory_capacity(machine.host) == MemoryCapacity(total=5 * GIB, available=2 * GIB)


def test_memory_without_a_control_group_or_swap(machine, monkeypatch):
    lines = MEMINFO.splitlines()
    for missing in lines[:2]:
        machine.put("proc/meminfo", "\n".join(line for line in lines if line != missing))
        assert read_memory_capacity(machine.host) is None
    machine.put("proc/meminfo", "\n".join(lines[:2]))
    machine.put("sys/fs/cgroup/memory.max", 4 * GIB)
    assert read_memory_capacity(machine.host) == MemoryCapacity(total=4 * GIB, available=4 * GIB)
    # A group may use more than its limit for a moment.
    machine.put("sys/fs/cgroup/memory.current", 5 * GIB)
    assert read_memory_capacity(machine.host) == MemoryCapacity(total=4 * GIB, available=0)
    monkeypatch.setattr(cpu, "Host", lambda: machine.host)
    assert read_memory_capacity() == MemoryCapacity(total=4 * GIB, available=0)


@pytest.mark.parametrize(
    ("group", "files", "kills"),
    [
        ("0::/a/b", {}, 0),
        ("0::/a/b", {"proc/vmstat": "pgfault 8\noom_kill 9\nother_oom_kill 5"}, 9),
        ("0::/a/b", {"proc/vmstat": "oom_kill 9", "sys/fs/cgroup/a/b/memory.events": "oom 5"}, 9),
        (
            "0::/a/b",
            {
                "proc/vmstat": "oom_kill 9",
                "sys/fs/cgroup/a/b/memory.events": "low 3\noom_kill 1\noom_group_kill 2",
                "sys/fs/cgroup/a/memory.events": "oom_kill 4",
            },
            1,
        ),
        ("0::/a/b", {"sys/fs/cgroup/memory.events": "oom_kill 4"}, 4),
        ("3:cpu,memory:/a", {"sys/fs/cgroup/memory/a/memory.oom_control": "oom_kill 6"}, 6),
    ],
)
def test_processes_that_were_killed_for_lack_of_memory(machine, group, files, kills, monkeypatch):
    machine.put("proc/self/cgroup", group)
    for path, text in files.items():
        machine.put(path, text)
    assert cpu.count_oom_kills(machine.host) == kills
    monkeypatch.setattr(cpu, "Host", lambda: machine.host)
    assert cpu.count_oom_kills() == kills


@pytest.mark.parametrize(
    ("kernels", "text"),
    [
        ("onednn-avx512", "oneDNN's convolutions (AVX-512)"),
        ("eigen-avx2", "TensorFlow's own convolutions (AVX2)"),
        ("library", "TensorFlow's own convolutions, without oneDNN"),
    ],
)
def test_kernels_are_described(kernels, text):
    assert cpu.describe_kernels(kernels) == text
