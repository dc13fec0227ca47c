"""Checks before a run: what would spoil its figures, and what to do about it.

Each check looks at a `Situation` and returns conditions; one more is a function here and
its name in `ids.py`. The limits are where the effect on a step becomes larger than the
few per cent that a comparison of runs can see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from cnnbench.machine.condition import Condition, Situation
from cnnbench.machine.gpu_readings import foreign, named

Check: TypeAlias = Callable[[Situation], Iterator[Condition]]

OTHERS_SHARE = 0.05
"""Of the machine's CPUs: what other processes may keep busy."""

STEAL_SHARE = 0.02
"""Of the CPU time wanted: what the hypervisor may keep."""

LOAD_PER_CPU = 0.5
"""Load average per CPU, where CPU time cannot be told apart."""

SCARCE_MEMORY = 0.05
"""Of the memory: less than that is short."""

SLOW_GOVERNORS = ("powersave", "conservative")

# Under these drivers "powersave" is the name of the usual dynamic mode.
_DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")

HEAT = ("thermal_software", "thermal_hardware", "hardware_slowdown", "power_brake")
"""Throttle reasons that are no part of normal work; a power cap is."""

_INTERLEAVE = "compare runs with cnnbench ab, which interleaves the two sides"


def load(now: Situation) -> Iterator[Condition]:
    """Other processes on the CPUs: measured, not guessed from the load average.

    The load average of the last minute still counts the run before this one.
    """
    cpus = now.facts.get("logical_cpus") or now.usable_cpus
    average, others = now.interval.load_average, now.interval.other_cpus
    if others is not None:
        if others < max(0.1, OTHERS_SHARE * cpus):
            return
        found = f"other processes keep {others:.1f} of {cpus} CPUs busy"
        found += "" if average is None else f" (load average {average:.1f})"
    elif average is not None and average > LOAD_PER_CPU * cpus:
        found = f"the load average is {average:.1f} on {cpus} CPUs"
    else:
        return
    yield Condition("load", found, _advice_on_load(now, others))


def _advice_on_load(now: Situation, others: float | None) -> str:
    left = now.usable_cpus - math.ceil(others or 0)
    flags = now.flags
    if not flags.on_gpu and not flags.intra_threads_given and 0 < left < now.usable_cpus:
        return f"stop them, leave them their CPUs with --num_intra_threads={left}, or {_INTERLEAVE}"
    return f"stop them, or {_INTERLEAVE}"


def steal(now: Situation) -> Iterator[Condition]:
    """CPU time that the hypervisor kept."""
    share = now.interval.steal_fraction
    if share is not None and share >= STEAL_SHARE:
        yield Condition(
            "steal",
            f"the hypervisor withholds {share:.0%} of the CPU time this machine asks for",
            f"use a machine whose CPUs are its own, or {_INTERLEAVE}",
        )


def threads(now: Situation) -> Iterator[Condition]:
    """More threads than CPUs."""
    wanted, usable = now.flags.intra_threads, now.usable_cpus
    if now.flags.intra_threads_given and wanted > usable:
        yield Condition(
            "threads",
            f"--num_intra_threads={wanted} is more than the {usable} CPUs this process may use",
            f"use --num_intra_threads={usable} or less",
        )


def quota(now: Situation) -> Iterator[Condition]:
    """Less CPU time than the threads can use: they run in bursts and are then stopped."""
    limit = now.facts.get("cgroup_cpu_limit")
    if limit is None or now.flags.on_gpu:
        return
    running = min(now.flags.intra_threads or now.usable_cpus, now.usable_cpus)
    if running > limit:
        given = f"--num_intra_threads={running}" if now.flags.intra_threads else "TensorFlow's own"
        yield Condition(
            "quota",
            f"a control group allows {limit:g} CPUs, and {given} threads keep {running} busy",
            f"use --num_intra_threads={max(1, math.floor(limit))}, or raise the quota",
        )


def governor(now: Situation) -> Iterator[Condition]:
    """Clock frequencies that are held down or differ."""
    names = [name for name in str(now.facts.get("cpu_governor", "")).split(",") if name]
    if len(names) > 1:
        found = f"CPUs have different frequency governors ({', '.join(names)})"
    elif set(names) & set(SLOW_GOVERNORS) and now.facts.get("cpu_driver") not in _DYNAMIC_DRIVERS:
        found = f"the frequency governor is {names[0]}"
    else:
        return
    yield Condition("governor", found, "as root: cpupower frequency-set -g performance")


def memory(now: Situation) -> Iterator[Condition]:
    """Little memory left."""
    total, left = now.facts.get("memory_bytes"), now.facts.get("memory_available_bytes")
    if total and left is not None and left < SCARCE_MEMORY * total:
        yield Condition(
            "memory",
            f"{left / 2**20:.0f} of {total / 2**20:.0f} MiB of memory are left",
            "stop what takes it, or lower --batch_size",
        )


def numa(now: Situation) -> Iterator[Condition]:
    """Several NUMA nodes, and a run that is bound to none of them."""
    nodes = now.facts.get("numa_nodes") or 1
    if nodes > 1 and not now.flags.on_gpu and "cpu_affinity" not in now.facts:
        yield Condition(
            "numa",
            f"the machine has {nodes} NUMA nodes and the run is bound to none",
            "start it under numactl --cpunodebind=0 --membind=0 to measure one of them",
        )


def battery(now: Situation) -> Iterator[Condition]:
    """No mains power."""
    if now.facts.get("on_battery"):
        yield Condition("battery", "the machine runs on battery", "plug it in")


def gpu_processes(now: Situation) -> Iterator[Condition]:
    """Processes of others on the GPUs of the run."""
    busy = {state.index: foreign(state) for state in now.gpus.own if foreign(state)}
    if not now.flags.on_gpu or not busy:
        return
    found = "; ".join(f"GPU {index} also runs {named(them)}" for index, them in busy.items())
    free, wanted = now.gpus.free, now.flags.num_devices
    advice = "end them, or wait"
    if len(free) >= wanted:
        advice = f"end them, or use CUDA_VISIBLE_DEVICES={','.join(map(str, free[:wanted]))}"
        advice += " without --gpu_indices" if now.flags.gpu_indices else ""
    yield Condition("gpu_processes", found, advice)


def gpu_throttle(now: Situation) -> Iterator[Condition]:
    """GPUs that are slowed down before they have anything to do."""
    slow = {s.index: [r for r in s.throttle_reasons if r in HEAT] for s in now.gpus.own}
    words = [f"GPU {i} ({', '.join(reasons)})" for i, reasons in slow.items() if reasons]
    if now.flags.on_gpu and words:
        yield Condition(
            "gpu_throttle",
            f"clocks are held down on {', '.join(words)}",
            "see to cooling and power supply, and let them cool down",
        )


CHECKS: tuple[Check, ...] = (
    *(load, steal, threads, quota, governor, memory, numa, battery),
    *(gpu_processes, gpu_throttle),
)
