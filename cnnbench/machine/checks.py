"""Checks the conditions under which a run measures, such as other load, and gives advice.

Checks take a `ConditionCheckInput` and return a `Finding`. The input is called `now` in checks
before the first step, and `then` in checks of the timed loop, which run after it. A new check is a
function here, its id in `CONDITIONS`, its place in one of the tables at the end, and a row in
docs/conditions.md. A limit is the value above which the effect on a step exceeds a few percent,
which is what a comparison of runs can detect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from cnnbench.base.text import count_text, suggestion
from cnnbench.errors import FlagError
from cnnbench.machine.gpu import GpuStates, new_processes, processes_text

CONDITIONS: dict[str, str] = {
    "load": "other processes use the CPUs",
    "steal": "the hypervisor gives CPU time to other machines",
    "threads": "more threads are requested than there are CPUs",
    "quota": "a control group allows less CPU time than the threads can use",
    "governor": "the clock frequency is held down, or differs from CPU to CPU",
    "thermal": "the processor slows down because of heat",
    "memory": "memory runs short, so that pages are swapped",
    "numa": "threads and memory may lie on different NUMA nodes",
    "battery": "the machine runs on battery",
    "gpu_processes": "other processes use the GPUs",
    "gpu_throttle": "GPUs slow down because of heat or power supply",
}
"""The checks by id, and their findings."""

WARNINGS: dict[str, str] = {
    **CONDITIONS,
    "steady": "step times are steady only after the first timed steps, or not at all",
    "peak": "a measured step is faster than the peak rates of the machine allow",
    "fit": "the run may need more memory than there is",
    "fp16": "the CPU has no 16-bit arithmetic of the type fp16",
    "variables": "environment variables contradict flags",
    "commit": "the commit of the measured code is unknown",
    "files": "files of the data set are missing",
    "examples": "defective records of the data set are skipped",
    "pipeline": "the input pipeline alone could not be measured",
    "untrained": "the network uses a tf.Variable that is not trained",
    "nonfinite": "a checkpoint contains values that are not finite",
    "lock": "another process may write into the same folder",
    "workers": "a worker is lost and the others continue",
    "eval_metrics": "an evaluation has no metrics over all examples",
    "implausible": "an all-reduce is faster than the memory allows",
    "outputs": "a result file could not be written",
    "metrics": "a metric of a plug-in is left out of the summary",
    "skipped": "files or lines of results are skipped",
    "order": "the repository of --git lacks measured commits",
    "models": "models are left out of the list",
    "pairs": "an experiment has too few pairs for a verdict",
}
"""The warnings by name, for --quiet_conditions: checks and others."""

ALL = "all"


def parse_silenced(text: str) -> frozenset[str]:
    """Parses the value of --quiet_conditions: comma-separated names of warnings that are not
    printed.

    The name "all" means all measuring conditions. Other warnings, such as that a worker is lost,
    are silenced only by their own names.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name != ALL and name not in WARNINGS:
            hint = suggestion(name, [*WARNINGS, ALL], f"there are {', '.join(WARNINGS)}")
            reason = f"{name!r} is not the name of a warning; {hint}"
            raise FlagError("quiet_conditions", text, reason)
    every = CONDITIONS if ALL in names else ()
    return frozenset(name for name in (*names, *every) if name != ALL)


class ConditionCheckFlags(NamedTuple):
    """Values of flags of the run on which the checks and their advice depend.

    If `intra_threads` is 0, TensorFlow chooses the number of threads. `cards` are the indices of
    the run's GPUs among the visible GPUs.
    """

    on_gpu: bool = False
    cards: tuple[int, ...] = (0,)
    intra_threads: int = 0
    intra_threads_given: bool = False
    batch_size: int = 0
    gpu_indices_given: bool = False


class ConditionCheckInput(NamedTuple):
    """Everything that a check of the measuring conditions can use: properties of the machine,
    changes of counters, flags, and states of GPUs.

    Attributes:
      facts: properties of the machine and software, see `cnnbench.machine.facts`.
      interval: changes of counters in the checked interval, see `counters.changes`.
      gpus: state of the GPUs at the end of the interval.
      gpus_before: state of the GPUs at the beginning of the interval; only used after the loop.
    """

    facts: Mapping[str, Any]
    interval: Mapping[str, Any]
    flags: ConditionCheckFlags = ConditionCheckFlags()
    gpus: GpuStates = GpuStates()
    gpus_before: GpuStates = GpuStates()

    @property
    def usable_cpu_count(self) -> int:
        """Number of CPUs on which this process is allowed to run."""
        return int(self.facts.get("usable_cpus") or self.facts.get("logical_cpus") or 1)


Finding: TypeAlias = "tuple[str, str] | None"
"""Two texts: the finding with its numbers, and the advice."""

Check: TypeAlias = Callable[[ConditionCheckInput], Finding]

_OTHERS_SHARE = 0.05
"""Limit of the share of the machine's CPUs used by other processes."""

_STEAL_SHARE = 0.02
"""Limit of the share of the wanted CPU time that the hypervisor withholds."""

_LOAD_PER_CPU = 0.5
"""Limit of the load average per CPU. It is used if CPU time is unknown."""

_SCARCE_MEMORY = 0.05
"""Minimum share of memory that must be free."""

_SLOW_GOVERNORS = ("powersave", "conservative")

# These drivers choose the clock rate by the load, even with the governor "powersave".
_DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")

_HEAT = ("thermal_software", "thermal_hardware", "hardware_slowdown", "power_brake")
"""Throttle reasons that do not occur in normal operation. (A power cap does.)"""

_QUOTA_SHARE = 0.01
"""Limit of the share of the loop's time for which a control group stops threads."""

_INTERLEAVE = "compare runs with cnnbench ab, which interleaves the runs of A and B"
_MEASURE_AGAIN = "measure again, interleaved, with cnnbench ab"


def load(now: ConditionCheckInput) -> Finding:
    """Checks whether other processes use CPUs before the run.

    The load average of the last minute still includes the previous run. Therefore it is used only
    if CPU time is unknown.
    """
    cpus = now.facts.get("logical_cpus") or now.usable_cpu_count
    average, others = now.interval.get("load_average"), now.interval.get("other_cpus")
    if busy := _others_busy_text(now):
        problem = f"other processes keep {busy}"
        problem += "" if average is None else f" (load average {average:.1f})"
    elif others is None and average is not None and average > _LOAD_PER_CPU * cpus:
        problem = f"the load average is {average:.1f} on {count_text(cpus, 'CPU', 'CPUs')}"
    else:
        return None
    left, flags = now.usable_cpu_count - math.ceil(others or 0), now.flags
    leave = ""
    if not flags.on_gpu and not flags.intra_threads_given and 0 < left < now.usable_cpu_count:
        leave = f" leave them their CPUs with --num_intra_threads={left},"
    return problem, f"stop them,{leave} or {_INTERLEAVE}"


def load_in_loop(then: ConditionCheckInput) -> Finding:
    """Checks whether other processes used CPUs during the timed loop."""
    busy = _others_busy_text(then)
    problem = f"in the timed loop other processes kept {busy}"
    return (problem, _MEASURE_AGAIN) if busy else None


def steal(now: ConditionCheckInput) -> Finding:
    """Checks whether the hypervisor withholds CPU time from this machine before the run."""
    share = _stolen_cpu_share(now)
    problem = f"the hypervisor withholds {share:.0%} of the CPU time this machine asks for"
    return (problem, f"use a dedicated machine, or {_INTERLEAVE}") if share else None


def steal_in_loop(then: ConditionCheckInput) -> Finding:
    """Checks whether the hypervisor withheld CPU time from this machine during the timed loop."""
    share = _stolen_cpu_share(then)
    problem = f"in the timed loop the hypervisor withheld {share:.0%} of the CPU time"
    return (problem, _MEASURE_AGAIN) if share else None


def threads(now: ConditionCheckInput) -> Finding:
    """Checks whether --num_intra_threads is larger than the number of CPUs that the run may use."""
    wanted, usable = now.flags.intra_threads, now.usable_cpu_count
    if not now.flags.intra_threads_given or wanted <= usable:
        return None
    allowed = f"the {usable} CPUs" if usable > 1 else "the one CPU"
    problem = f"--num_intra_threads={wanted} is more than {allowed} this process may use"
    return problem, f"use --num_intra_threads={usable} or less"


def quota(now: ConditionCheckInput) -> Finding:
    """Checks whether a CPU quota is below the number of busy threads. If so, the kernel pauses the
    threads periodically.
    """
    limit = now.facts.get("cgroup_cpu_limit")
    running = min(now.flags.intra_threads or now.usable_cpu_count, now.usable_cpu_count)
    if limit is None or now.flags.on_gpu or running <= limit:
        return None
    threads_flag = (
        f"--num_intra_threads={now.flags.intra_threads}"
        if now.flags.intra_threads
        else "TensorFlow's own"
    )
    problem = (
        f"a control group allows {limit:g} {'CPU' if limit == 1 else 'CPUs'}, and {threads_flag} "
        f"threads keep {running} busy"
    )
    return problem, f"use --num_intra_threads={max(1, math.floor(limit))}, or raise the quota"


def quota_in_loop(then: ConditionCheckInput) -> Finding:
    """Checks whether a CPU quota made a control group pause threads in the timed loop."""
    seconds, stopped = then.interval["seconds"], then.interval.get("quota_seconds", 0.0)
    if stopped <= _QUOTA_SHARE * seconds:
        return None
    limit, use = then.facts.get("cgroup_cpu_limit"), ""
    if limit is not None and not then.flags.on_gpu:
        use = f"use --num_intra_threads={max(1, int(limit))}, or "
    problem = (
        f"in the timed loop of {seconds:.1f} s control groups stopped threads for {stopped:.1f} s"
    )
    return problem, f"{use}raise the quota"


def governor(now: ConditionCheckInput) -> Finding:
    """Checks whether the clock frequencies of the CPUs are limited, or differ from CPU to CPU."""
    names = [name for name in str(now.facts.get("cpu_governor", "")).split(",") if name]
    if len(names) > 1:
        problem = f"CPUs have different frequency governors ({', '.join(names)})"
    elif set(names) & set(_SLOW_GOVERNORS) and now.facts.get("cpu_driver") not in _DYNAMIC_DRIVERS:
        problem = f"the frequency governor is {names[0]}"
    else:
        return None
    return problem, "as root: cpupower frequency-set -g performance"


def thermal(then: ConditionCheckInput) -> Finding:
    """Checks whether heat throttled the CPUs during the timed loop."""
    events = then.interval.get("thermal_events")
    problem = f"in the timed loop heat slowed down CPUs {events} times"
    advice = "check the cooling; a lower constant clock (turbo off) gives steadier results"
    return (problem, advice) if events else None


def memory(now: ConditionCheckInput) -> Finding:
    """Checks whether too little main memory is free before the run."""
    total, left = now.facts.get("memory_bytes"), now.facts.get("memory_available_bytes")
    if not total or left is None or left >= _SCARCE_MEMORY * total:
        return None
    problem = f"{left / 2**20:.0f} of {total / 2**20:.0f} MiB of memory are left"
    return problem, "stop programs that use it, or lower --batch_size"


def memory_in_loop(then: ConditionCheckInput) -> Finding:
    """Checks whether pages were moved to or from swap space during the timed loop."""
    pages, size = then.interval.get("swapped_pages"), then.flags.batch_size
    advice = (
        f"stop programs that use the memory, or lower --batch_size{f', now {size}' if size else ''}"
    )
    return (f"in the timed loop {pages} pages were swapped", advice) if pages else None


def numa(now: ConditionCheckInput) -> Finding:
    """Checks whether the run can use several NUMA nodes, because it is not bound to one node."""
    nodes = now.facts.get("numa_nodes") or 1
    if nodes <= 1 or now.flags.on_gpu or "cpu_affinity" in now.facts:
        return None
    advice = "start the run with numactl --cpunodebind=0 --membind=0 to use only one node"
    return f"the machine has {nodes} NUMA nodes and the run is bound to none", advice


def battery(now: ConditionCheckInput) -> Finding:
    """Checks whether a portable machine runs on its battery."""
    problem = ("the machine runs on battery", "plug it in")
    return problem if now.facts.get("on_battery") else None


def gpu_processes(now: ConditionCheckInput) -> Finding:
    """Checks, before the run, whether other processes use the GPUs of the run."""
    busy = {
        state.index: state.other_processes
        for state in now.gpus.states_of_run_gpus
        if state.other_processes
    }
    if not busy:
        return None
    problem = "; ".join(
        f"GPU {i} also runs {processes_text(processes)}" for i, processes in busy.items()
    )
    free, wanted = now.gpus.free_indices, len(now.flags.cards)
    if len(free) < wanted:
        return problem, "end them, or wait"
    without = " without --gpu_indices" if now.flags.gpu_indices_given else ""
    use = ",".join(map(str, free[:wanted]))
    return problem, f"end them, or use CUDA_VISIBLE_DEVICES={use}{without}"


def gpu_processes_in_loop(then: ConditionCheckInput) -> Finding:
    """Checks whether other processes started on the GPUs of the run during the timed loop."""
    before = {state.uuid: state for state in then.gpus_before.states}
    new = {s.index: new_processes(before.get(s.uuid), s) for s in then.gpus.states_of_run_gpus}
    words = [
        f"{processes_text(processes)} on GPU {index}"
        for index, processes in new.items()
        if processes
    ]
    if not words:
        return None
    return f"processes started during the run: {'; '.join(words)}", _MEASURE_AGAIN


def gpu_throttle(now: ConditionCheckInput) -> Finding:
    """Checks whether a GPU is throttled before the run uses it."""
    slow = {
        s.index: [r for r in s.throttle_reasons if r in _HEAT] for s in now.gpus.states_of_run_gpus
    }
    words = [f"GPU {i} ({', '.join(reasons)})" for i, reasons in slow.items() if reasons]
    if not words:
        return None
    advice = "check the cooling and power supply, and let the GPUs cool down"
    return f"clocks are held down on {', '.join(words)}", advice


def gpu_throttle_in_loop(then: ConditionCheckInput) -> Finding:
    """Checks whether heat or power supply throttled a GPU during the timed loop."""
    words = []
    before = {state.uuid: state.thermal_seconds for state in then.gpus_before.states}
    for state in then.gpus.states_of_run_gpus:
        start, end = before.get(state.uuid), state.thermal_seconds
        hot = 0.0 if start is None or end is None else end - start
        reasons = [f"heat, {hot:.1f} s"] if hot > 0 else []
        reasons += [reason for reason in state.throttle_reasons if reason in _HEAT]
        if reasons:
            words.append(f"GPU {state.index} ({', '.join(reasons)})")
    if not words:
        return None
    advice = (
        "check the cooling and power supply; a lower constant clock (nvidia-smi -lgc, as root) "
    )
    return f"clocks were held down on {', '.join(words)}", f"{advice}gives steadier results"


def _others_busy_text(situation: ConditionCheckInput) -> str | None:
    """How many CPUs other processes keep busy, as text; None if the number is small or unknown."""
    cpus = situation.facts.get("logical_cpus") or situation.usable_cpu_count
    others = situation.interval.get("other_cpus")
    if others is None or others < max(0.1, _OTHERS_SHARE * cpus):
        return None
    return f"{others:.1f} of {count_text(cpus, 'CPU', 'CPUs')} busy"


def _stolen_cpu_share(situation: ConditionCheckInput) -> float:
    """Share of the requested CPU time that the hypervisor withholds; 0 if below 2 %."""
    share = situation.interval.get("steal_fraction", 0.0)
    return share if share >= _STEAL_SHARE else 0.0


def _checks_by_id(*checks: Check) -> dict[str, Check]:
    return {check.__name__.removesuffix("_in_loop"): check for check in checks}


BEFORE = _checks_by_id(
    load,
    steal,
    threads,
    quota,
    governor,
    memory,
    numa,
    battery,
    gpu_processes,
    gpu_throttle,
)
"""The checks before the first step, by id. Without a GPU, those of GPUs find nothing."""

AFTER = _checks_by_id(
    load_in_loop,
    steal_in_loop,
    quota_in_loop,
    thermal,
    memory_in_loop,
    gpu_processes_in_loop,
    gpu_throttle_in_loop,
)
"""The checks after the timed loop, by id."""
