"""Checks after the timed loop: what happened in it."""

from __future__ import annotations

from collections.abc import Iterator

from cnnbench.machine.checks import HEAT, OTHERS_SHARE, STEAL_SHARE, Check
from cnnbench.machine.condition import Condition, Situation
from cnnbench.machine.gpu_readings import named, newcomers

QUOTA_SHARE = 0.01
"""Of the loop's time: what a control group may stop threads for."""

_MEASURE_AGAIN = "measure again, interleaved, with cnnbench ab"


def load(then: Situation) -> Iterator[Condition]:
    """Other processes on the CPUs."""
    others = then.interval.other_cpus
    cpus = then.facts.get("logical_cpus") or then.usable_cpus
    if others is not None and others >= max(0.1, OTHERS_SHARE * cpus):
        yield Condition(
            "load",
            f"in the timed loop other processes kept {others:.1f} of {cpus} CPUs busy",
            _MEASURE_AGAIN,
        )


def steal(then: Situation) -> Iterator[Condition]:
    """CPU time that the hypervisor kept."""
    share = then.interval.steal_fraction
    if share is not None and share >= STEAL_SHARE:
        yield Condition(
            "steal",
            f"in the timed loop the hypervisor withheld {share:.0%} of the CPU time",
            _MEASURE_AGAIN,
        )


def quota(then: Situation) -> Iterator[Condition]:
    """Threads that a control group stopped."""
    stopped = then.interval.quota_seconds or 0.0
    if stopped > QUOTA_SHARE * then.interval.seconds:
        limit = then.facts.get("cgroup_cpu_limit")
        advice = "raise the quota"
        if limit is not None and not then.flags.on_gpu:
            advice = f"use --num_intra_threads={max(1, int(limit))}, or raise the quota"
        yield Condition(
            "quota",
            f"in the timed loop of {then.interval.seconds:.1f} s control groups stopped threads "
            f"for {stopped:.1f} s",
            advice,
        )


def thermal(then: Situation) -> Iterator[Condition]:
    """A processor that got too hot."""
    if then.interval.thermal_events:
        yield Condition(
            "thermal",
            f"in the timed loop CPUs slowed down {then.interval.thermal_events} times for heat",
            "see to cooling; a lower clock that holds (turbo off) gives steadier figures",
        )


def memory(then: Situation) -> Iterator[Condition]:
    """Pages that went to swap space or came from it."""
    pages = then.interval.swapped_pages
    if pages:
        size = f", now {then.flags.batch_size}" if then.flags.batch_size else ""
        yield Condition(
            "memory",
            f"in the timed loop {pages} pages were swapped",
            f"stop what takes the memory, or lower --batch_size{size}",
        )


def gpu_processes(then: Situation) -> Iterator[Condition]:
    """Processes of others that came to the run's GPUs."""
    before = {state.uuid: state for state in then.gpus_before.states}
    new = {s.index: newcomers(before.get(s.uuid), s) for s in then.gpus.own}
    words = [f"{named(them)} on GPU {index}" for index, them in new.items() if them]
    if then.flags.on_gpu and words:
        yield Condition(
            "gpu_processes", f"during the run there came {'; '.join(words)}", _MEASURE_AGAIN
        )


def gpu_throttle(then: Situation) -> Iterator[Condition]:
    """GPUs that got too hot, or too little power."""
    if not then.flags.on_gpu:
        return
    words = []
    before = {state.uuid: state.thermal_seconds for state in then.gpus_before.states}
    for state in then.gpus.own:
        start, end = before.get(state.uuid), state.thermal_seconds
        hot = 0.0 if start is None or end is None else end - start
        reasons = [reason for reason in state.throttle_reasons if reason in HEAT]
        if hot > 0:
            reasons.insert(0, f"heat, {hot:.1f} s")
        if reasons:
            words.append(f"GPU {state.index} ({', '.join(reasons)})")
    if words:
        yield Condition(
            "gpu_throttle",
            f"clocks were held down on {', '.join(words)}",
            "see to cooling and power supply; a lower clock that holds (nvidia-smi -lgc, as "
            "root) gives steadier figures",
        )


CHECKS: tuple[Check, ...] = (load, steal, quota, thermal, memory, gpu_processes, gpu_throttle)
