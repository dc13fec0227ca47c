"""Reads properties of the processors and of the memory of this machine."""

from __future__ import annotations

import itertools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

# In this package, a fact is a recorded property of the machine or software, such as the model of
# the CPU.

Fact: TypeAlias = str | int | float | bool | list[str]
Facts: TypeAlias = Mapping[str, Fact | None]


@dataclass(frozen=True)
class Host:
    """The machine whose properties are read. Tests replace `root`, the folder that contains proc
    and sys.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    modules: Mapping[str, Any] = field(default_factory=lambda: sys.modules)

    def read_text(self, path: str) -> str | None:
        """Reads a text file below `root`, and strips it. None if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def read_integer(self, path: str) -> int | None:
        """Reads a file below `root` that contains an integer; None if it contains none."""
        text = self.read_text(path)
        return int(text) if text is not None and text.lstrip("-").isdigit() else None


FactGroup: TypeAlias = Callable[[Host], Facts]


def read_facts(groups: Iterable[FactGroup], host: Host) -> dict[str, Fact]:
    """Reads recorded properties of the machine and returns them by name. Properties that are empty
    or cannot be read are left out.
    """
    known_facts: dict[str, Fact] = {}
    for group in groups:
        try:
            facts = group(host)
        except Exception:  # If a property cannot be read, the run goes on.
            continue
        known_facts.update({k: v for k, v in facts.items() if v is not None and v not in ("", [])})
    return known_facts


def pid_namespace(host: Host) -> str | None:
    """Identifier of the PID namespace of this process; None if it cannot be read.

    If two processes have the same identifier, a PID means the same process in both. Other machines
    have different identifiers, and so do containers with separate PIDs.
    """
    boot = host.read_text("proc/sys/kernel/random/boot_id")
    try:
        namespace = os.readlink(host.root / "proc/self/ns/pid")
    except OSError:
        return None
    return f"{boot} {namespace}" if boot else None


# Functions that read properties of processor and memory: limits, settings, sources of noise.

# The instruction sets that determine the speed of convolutions and matrix products; others are not
# recorded.
_ISA = """
    sse4_2 avx fma avx2 avx512f avx512bw avx512_vnni avx_vnni avx512_bf16 avx512_fp16
    amx_tile amx_bf16 amx_fp16 amx_int8 asimd asimdhp asimddp sve sve2 bf16 i8mm svebf16
""".split()

# In version 1, a control group without a limit contains a number of at least this value.
_NO_LIMIT = 1 << 60


class MemoryCapacity(NamedTuple):
    """Size of main memory, or of the memory of a GPU, and how much of it is available, in bytes.

    `total` is the maximum that a process can use, including swap space. `available` is the memory
    that is free, or can be freed, without swapping.
    """

    total: int
    available: int


def available_cpu_count() -> int:
    """Number of CPUs that this process may use, according to its affinity mask."""
    return len(usable_cpu_numbers())


def usable_cpu_numbers() -> Collection[int]:
    """Numbers of the CPUs that this process may use, according to its affinity mask. On platforms
    without affinity masks, all CPUs.
    """
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # Missing on some platforms.
        return range(os.cpu_count() or 1)


def machine_identity(host: Host) -> Facts:
    """Reads the host name, the operating system and the architecture of the machine."""
    return {
        "hostname": platform.node(),
        "platform": platform.platform(),
        "architecture": platform.machine(),
    }


def processor_facts(host: Host) -> Facts:
    """Reads the model, the number of cores and the instruction sets of the CPU."""
    text = host.read_text("proc/cpuinfo")
    if text is None:
        if platform.system() != "Darwin":
            return {"cpu_model": None, "cpu_conv_gradients": LIBRARY}
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=2, check=True)
        return {"cpu_model": printed.stdout.strip(), "cpu_conv_gradients": LIBRARY}
    cpus = [_colon_lines(paragraph) for paragraph in text.split("\n\n")]
    first = cpus[0]
    flags = (first.get("flags") or first.get("Features") or "").split()
    cores = {(cpu.get("physical id"), cpu["core id"]) for cpu in cpus if "core id" in cpu}
    isa = [name for name in _ISA if name in flags]
    kernels = _choose_kernels(isa, host.environ)
    return {
        "cpu_model": first.get("model name") or first.get("Model") or platform.processor(),
        "cpu_isa": isa,
        "physical_cores": len(cores) or None,
        # Recorded because other virtual machines on the same host may cause noise.
        "virtual_machine": True if "hypervisor" in flags else None,
        # The gradients that --conv_gradients=auto selects on this CPU, and the CPU's kernels.
        "cpu_conv_gradients": f"fastest ({kernels})" if kernels in MEASURED_KERNELS else LIBRARY,
    }


def _colon_lines(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


# On CPUs with one of these instruction sets, TensorFlow uses oneDNN's convolutions by default. On
# other CPUs, it uses them only if TF_ENABLE_ONEDNN_OPTS=1 is set.
_NEURAL = ("avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16")
_ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")

ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
"""Environment variable that selects whether TensorFlow computes with oneDNN's kernels."""

LIBRARY = "library"
"""Gradients of convolutions as TensorFlow computes them."""


MEASURED_KERNELS = ("eigen-avx2", "onednn-avx2", "onednn-avx512")
"""Kernels for which `cnnbench.models.cpu_operations` knows the fastest gradient algorithms."""


def convolution_kernels(host: Host) -> str:
    """The kind of kernels with which this CPU computes convolutions, such as "eigen-avx2".

    "onednn" are oneDNN's convolutions, "eigen" are TensorFlow's own convolutions, which call
    oneDNN's matrix products. `LIBRARY` if the instruction set is unknown, or lowered below AVX2, or
    if the user switched oneDNN off.
    """
    isa = processor_facts(host).get("cpu_isa")
    return _choose_kernels(isa if isinstance(isa, list) else (), host.environ)


def describe_kernels(kernels: str) -> str:
    """Describes a result of `convolution_kernels` in words."""
    family, _, width = kernels.partition("-")
    named = {"onednn": "oneDNN's convolutions", "eigen": "TensorFlow's own convolutions"}
    text = named.get(family, "TensorFlow's own convolutions, without oneDNN")
    return f"{text} ({width.upper().replace('AVX512', 'AVX-512')})" if width else text


def _choose_kernels(isa: Collection[str], environ: Mapping[str, str]) -> str:
    asked = environ.get(ONEDNN, "").lower()
    if asked in ("0", "false"):
        return LIBRARY
    limit = next((environ[name] for name in _ONEDNN_LIMITS if name in environ), "")
    narrow = limit.upper() in ("SSE41", "AVX")
    if narrow or not {"avx2", "fma"} <= set(isa):
        return LIBRARY
    wide = "avx512bw" in isa and not limit.upper().startswith("AVX2")
    onednn = asked in ("1", "true") or not set(isa).isdisjoint(_NEURAL)
    return f"{'onednn' if onednn else 'eigen'}-{'avx512' if wide else 'avx2'}"


def cpu_count_facts(host: Host) -> Facts:
    """Reads the number of all CPUs of the machine, and of the CPUs that this process may use."""
    total, usable = os.cpu_count() or 1, sorted(usable_cpu_numbers())
    return {
        "logical_cpus": total,
        "cpus_online": host.read_text("sys/devices/system/cpu/online"),
        "usable_cpus": len(usable),
        "cpu_affinity": _cpu_list_text(usable) if len(usable) < total else None,
    }


_CPU = "sys/devices/system/cpu"
_POLICY = f"{_CPU}/cpufreq/policy0"


def _read_boolean(host: Host, path: str) -> bool | None:
    number = host.read_integer(path)
    return None if number is None else number > 0


def _read_thousandths(host: Host, path: str) -> int | None:
    number = host.read_integer(path)
    return None if number is None else round(number / 1000)


def _read_selected(host: Host, path: str) -> str | None:
    """Reads the selected word, which is in brackets, from a settings file of the kernel such as
    "always [madvise] never".
    """
    chosen = re.search(r"\[(\S+)\]", host.read_text(path) or "")
    return None if chosen is None else chosen.group(1)


# Maps the recorded name of each kernel setting to its file and the function that reads it.
_SETTINGS: dict[str, tuple[str, Callable[[Host, str], Fact | None]]] = {
    "cpu_driver": (f"{_POLICY}/scaling_driver", Host.read_text),
    "cpu_isolated": (f"{_CPU}/isolated", Host.read_text),
    "cpu_energy_preference": (f"{_POLICY}/energy_performance_preference", Host.read_text),
    "clock_source": (
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
        Host.read_text,
    ),
    "hypervisor": ("sys/hypervisor/type", Host.read_text),
    "machine_model": ("sys/class/dmi/id/product_name", Host.read_text),
    "cpu_smt": (f"{_CPU}/smt/active", _read_boolean),
    "cpu_turbo": (f"{_CPU}/cpufreq/boost", _read_boolean),
    "numa_balancing": ("proc/sys/kernel/numa_balancing", _read_boolean),
    "cpu_max_mhz": (f"{_POLICY}/cpuinfo_max_freq", _read_thousandths),
    "cpu_max_mhz_allowed": (f"{_POLICY}/scaling_max_freq", _read_thousandths),
    "transparent_huge_pages": ("sys/kernel/mm/transparent_hugepage/enabled", _read_selected),
    "transparent_huge_pages_defrag": (
        "sys/kernel/mm/transparent_hugepage/defrag",
        _read_selected,
    ),
}


def os_kernel_settings(host: Host) -> Facts:
    """Reads settings of the kernel and the firmware that affect clocks, power, memory and virtual
    machines.
    """
    values = {name: read(host, path) for name, (path, read) in _SETTINGS.items()}
    no_turbo = host.read_integer(f"{_CPU}/intel_pstate/no_turbo")
    if no_turbo is not None:
        values["cpu_turbo"] = no_turbo == 0
    policies = sorted((host.root / _CPU / "cpufreq").glob("policy*"))
    governors = {
        host.read_text(f"{_CPU}/cpufreq/{p.name}/scaling_governor") or "" for p in policies
    }
    aslr = host.read_integer("proc/sys/kernel/randomize_va_space")
    nodes = list((host.root / "sys/devices/system/node").glob("node[0-9]*"))
    return {
        **values,
        "cpu_governor": ",".join(sorted(governors - {""})) or None,
        "aslr": None if aslr is None else ("off", "partial", "full")[min(max(aslr, 0), 2)],
        "numa_nodes": len(nodes) or None,
    }


def battery_facts(host: Host) -> Facts:
    """Reads whether a portable machine runs on its battery."""
    import psutil

    battery = psutil.sensors_battery()
    return {"on_battery": True if battery and battery.power_plugged is False else None}


def memory_sizes(host: Host) -> Facts:
    """Reads the sizes of main memory and swap space."""
    import psutil

    main = psutil.virtual_memory()
    return {
        "memory_bytes": main.total,
        "memory_available_bytes": main.available,
        "swap_bytes": psutil.swap_memory().total or None,
    }


def control_group_limits(host: Host) -> Facts:
    """Reads the limits that control groups set on CPU time and memory. Containers usually have such
    limits.
    """
    cpus: list[float] = []
    for folder in cgroup_folders(host, "cpu"):
        quota = re.fullmatch(r"(\d+) (\d+)", host.read_text(f"{folder}/cpu.max") or "")
        if quota is not None:
            cpus.append(int(quota.group(1)) / int(quota.group(2)))
        us = host.read_integer(f"{folder}/cpu.cfs_quota_us") or 0
        period = host.read_integer(f"{folder}/cpu.cfs_period_us") or 0
        if us > 0 and period > 0:
            cpus.append(us / period)
    sizes = [limit for _, limit, _ in _memory_limits(host)]
    return {
        "cgroup_cpu_limit": min(cpus, default=None),
        "cgroup_memory_limit_bytes": min(sizes, default=None),
    }


def _memory_limits(host: Host) -> Iterator[tuple[str, int, int]]:
    """Yields (folder, limit in bytes, used bytes) for each control group that limits the memory of
    this process.
    """
    for folder in cgroup_folders(host, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = host.read_integer(f"{folder}/{limit_name}") or 0
            if 0 < limit < _NO_LIMIT:
                yield folder, limit, host.read_integer(f"{folder}/{used_name}") or 0


def read_memory_capacity(host: Host | None = None) -> MemoryCapacity | None:
    """Reads the size of main memory and how much of it is available, within the limits of control
    groups. Returns None if unknown.
    """
    host = Host() if host is None else host
    lines = re.findall(r"^(\w+): +(\d+) kB$", host.read_text("proc/meminfo") or "", re.MULTILINE)
    sizes = {name: int(kilobytes) * 1024 for name, kilobytes in lines}
    if "MemTotal" not in sizes or "MemAvailable" not in sizes:
        return None
    swap = sizes.get("SwapTotal", 0)
    total, available = sizes["MemTotal"] + swap, sizes["MemAvailable"]
    for folder, limit, used in _memory_limits(host):
        stat = host.read_text(f"{folder}/memory.stat") or ""
        # The kernel can free these cached file pages at once, so they count as available memory.
        pages = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
        total = min(total, limit + swap)
        available = min(available, max(0, limit - used + (int(pages[1]) if pages else 0)))
    return MemoryCapacity(total, available)


def cgroup_folders(host: Host, controller: str) -> list[str]:
    """Folders of the control group of this process and of its parents, for both versions of control
    groups.

    In version 1, the controllers "cpu" and "memory" have separate hierarchies.
    """
    lines = (host.read_text("proc/self/cgroup") or "").splitlines()
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    paths = {name: path for _, names, path in groups for name in names.split(",")}
    return [
        *_with_parents("sys/fs/cgroup", paths.get("", "/")),
        *_with_parents(f"sys/fs/cgroup/{controller}", paths.get(controller, "/")),
    ]


def count_oom_kills(host: Host | None = None) -> int:
    """Counts the processes that the kernel has killed for lack of memory, in the control group of
    this process if known, otherwise on the machine.
    """
    host = Host() if host is None else host
    # Control groups of version 2 have the file memory.events, of version 1 memory.oom_control.
    names = ("memory.events", "memory.oom_control")
    counters = [f"{folder}/{n}" for folder in cgroup_folders(host, "memory") for n in names]
    for counter in (*counters, "proc/vmstat"):
        match = re.search(r"^oom_kill (\d+)$", host.read_text(counter) or "", re.MULTILINE)
        if match is not None:
            return int(match.group(1))
    return 0


def _with_parents(mount: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return ["/".join([mount, *parts[:length]]) for length in range(len(parts), -1, -1)]


def load_average(host: Host) -> Facts:
    """Reads the load average: the number of runnable tasks, averaged over the last minute."""
    return {"load_average_1min": round(os.getloadavg()[0], 2)}


GROUPS: tuple[FactGroup, ...] = (
    machine_identity,
    processor_facts,
    cpu_count_facts,
    os_kernel_settings,
    battery_facts,
    memory_sizes,
    control_group_limits,
    load_average,
)


def _cpu_list_text(numbers: list[int]) -> str:
    """Formats ascending CPU numbers as the kernel writes lists of CPUs, such as "0-3,8"."""
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
