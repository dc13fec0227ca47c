"""Finds differences between the profiled processes of A and B in flags, recorded properties,
measured quantities and oneDNN primitives, such as convolutions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

from cnnbench.base.stats import group_by, median
from cnnbench.base.text import NONE, alternatives, first_few, format_bytes, integer, number, percent
from cnnbench.judge.compare.comparability import Difference, MeasurementGroup, fact_differences
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.compare.facts import REDUCING, UPDATING, expand_fact_names, is_allowed_to_differ
from cnnbench.judge.metrics.measurement import readable_fact
from cnnbench.machine.gpu import THROTTLE_REASONS
from cnnbench.records.explanation import FactChange
from cnnbench.records.profiles import FORWARD, TO_INPUT, TO_KERNEL, Primitive, StepProfile

_OTHERS, _WITHHELD = "CPUs used by other programs", "CPU time withheld by the hypervisor"
CPU_TIME = "CPU time of a step"
"""Name of the quantity that shows whether the program computes or waits."""

FACTS_OF: Mapping[str, str] = {
    "threads": "num_intra_threads num_inter_threads usable_cpus cpu_affinity cpu_smt "
    "cgroup_cpu_limit logical_cpus physical_cores cpu_model cpu_isa cpu_governor cpu_turbo "
    "gpu_names gpu_thread_mode per_gpu_thread_count",
    # env_* includes all recorded variables, because only variables that affect speed are recorded.
    "libraries": "data_format conv_gradients recompute xla xla_compile enable_optimizations "
    "winograd_nonfused tensorflow_version loaded_* env_*",
    "batch": "batch_size gradient_accumulation_steps global_batch num_gpus batch_group_size",
    "optimizer": "optimizer",
    "updating": f"{' '.join(UPDATING)} use_fp16 precision fp16_loss_scale "
    "fp16_enable_auto_loss_scale variable_update variable_consistency",
    "reducing": f"{' '.join(REDUCING)} gradient_repacking gradient_bucket_bytes "
    "agg_small_grads_max_bytes all_reduce",
    "reading": "data_dir data_name plugin datasets_* resize_method distort* fuse_decode_and_crop "
    "jpeg_fancy_upscaling input_preprocessor",
    "looping": "summary_verbosity save_* train_dir print_training_accuracy",
}
"""Names of flags and recorded properties that may be the reason for a kind of cause, by kind of
cause. The kinds "threads" and "libraries" affect all operations; "threads" also affects the gaps
between operations.
"""

_SENDING = ("_Send", "_HostSend")
_MUCH = 0.1  # Smaller relative differences in start-up time or memory are ignored.
_CLOCKS = 0.05  # Smaller relative differences in clock frequency are ignored.
_ALLOCATED = 0.02  # Smaller relative differences in allocations are ignored.
_BUSY = 0.25  # A smaller difference in the number of busy CPUs is ignored.
_STOLEN = 0.02  # A smaller difference in the share of withheld CPU time is ignored.


def fact_changes(base: Sequence[StepProfile], new: Sequence[StepProfile]) -> list[FactChange]:
    """Returns the flags and properties that differ between A and B; flags of users are first."""
    return [
        FactChange(
            fact=difference.fact,
            base=_values_text(difference.fact, difference.base),
            new=_values_text(difference.fact, difference.new),
        )
        for difference in _differences(base, new)
    ]


def possible_reasons(
    base: Sequence[StepProfile], new: Sequence[StepProfile], patterns: Iterable[str]
) -> tuple[str, ...]:
    """Returns texts about flags and recorded properties that may be the reason for a difference in
    time. Only names that match `patterns` are considered.

    A property is not a reason if one of its values occurs in A and in B, or if it follows from an
    earlier flag. For example, the global batch follows from the batch size.
    """
    wanted = tuple(patterns)
    explicit = {flag for profile in (*base, *new) for flag in profile.record.explicit_flags}
    named: list[str] = []
    for difference in _differences(base, new):
        fact, before = difference.fact, expand_fact_names(tuple(named))
        follows = fact not in explicit and is_allowed_to_differ(fact, before)
        distinct = not {*difference.base} & {*difference.new}
        if is_allowed_to_differ(fact, wanted) and distinct and not follows:
            named.append(fact)
    return tuple(
        fact_change_text(change) for change in fact_changes(base, new) if change.fact in named
    )


def _differences(base: Sequence[StepProfile], new: Sequence[StepProfile]) -> list[Difference]:
    before, after = (
        MeasurementGroup(
            Configuration.of(side[0].record), tuple(profile.record for profile in side)
        )
        for side in (base, new)
    )
    all_differences = fact_differences(before, after)
    return [
        difference
        for difference in all_differences
        if difference.base != difference.new
        and difference.fact not in ("profile_json", "result_json")  # Output files always differ.
    ]


class Quantity(NamedTuple):
    """A quantity of a profiled process that is compared between A and B, such as peak memory or the
    CPU clock.

    Attributes:
      tolerance: largest difference between A and B that is not reported, as a share.
      least: smallest difference that is reported.
      slows: 1 if a higher value makes all operations slower, -1 if a lower value does, otherwise 0.
    """

    name: str
    value: Callable[[StepProfile], float | None]
    text: Callable[[float], str]
    tolerance: float = 0.0
    least: float = 0.0
    slows: int = 0


def quantity_changes(
    base: Sequence[StepProfile], new: Sequence[StepProfile], slowdown_sign: int = 0
) -> Iterator[FactChange]:
    """Yields the measured quantities (start-up, memory, graph, machine) that differ between A and
    B.

    If `slowdown_sign` is 1 (or -1), only quantities that can make all operations of B slower (or
    faster) are considered.
    """
    for quantity in _QUANTITIES:
        sides = ([quantity.value(profile) for profile in side] for side in (base, new))
        known = [[value for value in side if value is not None] for side in sides]
        if not all(known):
            continue
        before, after = map(median, known)
        least, most = min(before, after), max(before, after)
        separated = min(known[0]) > max(known[1]) or max(known[0]) < min(known[1])
        alike = most <= least * (1 + quantity.tolerance) or most - least < quantity.least
        if alike or not separated:
            continue
        if not slowdown_sign or slowdown_sign * quantity.slows * (after - before) > 0:
            yield FactChange(
                fact=quantity.name, base=quantity.text(before), new=quantity.text(after)
            )


def fact_change_text(change: FactChange) -> str:
    """Returns text about a flag or recorded property that differs between A and B:
    "num_intra_threads: 2 in A, 1 in B".
    """
    return f"{change.fact}: {change.base} in A, {change.new} in B"


def _values_text(name: str, values: Iterable[str]) -> str:
    texts = ["not set" if value == "null" else readable_fact(name, value) for value in values]
    return alternatives(texts) or NONE


def _condition(name: str) -> Callable[[StepProfile], float | None]:
    return lambda profile: profile.record.condition(name)


def _condition_value(name: str, profile: StepProfile) -> Any:
    conditions = profile.record.conditions
    return None if conditions is None else conditions.during.get(name)


def _gpu_clock_mhz(profile: StepProfile) -> float | None:
    """Returns the clock frequency of the slowest GPU in the run, in MHz; None if unknown."""
    clocks = _condition_value("gpu_clocks_mhz", profile)
    return min(clocks, default=None) if isinstance(clocks, (list, tuple)) else None


def _throttled_gpus(reason: str, profile: StepProfile) -> float | None:
    if _gpu_clock_mhz(profile) is None:
        return None
    reasons = _condition_value("gpu_throttle_reasons", profile) or ()
    return sum(reason in str(value) for value in reasons)


def _cpu_time_ms(profile: StepProfile) -> float | None:
    """Returns the mean CPU time of a step in milliseconds; None if unknown."""
    seconds = profile.record.step_cpu_seconds
    return 1e3 * fmean(seconds) if seconds else None


def _sum_of(name: str) -> Callable[[StepProfile], float]:
    return lambda profile: sum(getattr(row, name) for row in profile.rows)


def _with_unit(unit: str, text: Callable[[float], str] = number) -> Callable[[float], str]:
    return lambda value: f"{text(value)} {unit}"


_QUANTITIES: tuple[Quantity, ...] = (
    Quantity("time to build", attrgetter("record.startup_seconds.build"), _with_unit("s"), _MUCH),
    Quantity("first step", attrgetter("record.startup_seconds.first_step"), _with_unit("s"), _MUCH),
    Quantity("peak memory", attrgetter("record.measured.peak_memory_bytes"), format_bytes, _MUCH),
    Quantity(CPU_TIME, _cpu_time_ms, _with_unit("ms"), _MUCH),
    Quantity(
        "CPU clock", _condition("cpu_clock_mhz"), _with_unit("MHz", integer), _CLOCKS, slows=-1
    ),
    Quantity("GPU clock", _gpu_clock_mhz, _with_unit("MHz", integer), _CLOCKS, slows=-1),
    *(
        Quantity(f"GPUs with {reason}", partial(_throttled_gpus, reason), integer, slows=1)
        for reason in THROTTLE_REASONS
    ),
    Quantity(_OTHERS, _condition("other_cpus"), "{:.1f}".format, least=_BUSY, slows=1),
    Quantity(_WITHHELD, _condition("steal_fraction"), percent, least=_STOLEN, slows=1),
    Quantity("FLOPs of a step", _sum_of("flops"), number),
    Quantity("bytes moved in a step", _sum_of("bytes"), format_bytes),
    Quantity("allocations in a step", attrgetter("allocations"), integer, _ALLOCATED),
    Quantity("bytes allocated in a step", attrgetter("allocated_bytes"), format_bytes, _ALLOCATED),
    Quantity(
        "operations that run in a step",
        lambda profile: sum(sum(row.operations.values()) for row in profile.rows),
        integer,
    ),
    Quantity("operations in the optimized graph", lambda p: sum(p.graph.values()), integer),
    Quantity(
        "tensors sent between devices",
        lambda profile: sum(profile.graph.get(name, 0) for name in _SENDING),
        integer,
    ),
)

# oneDNN primitives.

_PRODUCTS = ("convolution", "deconvolution", "inner_product", "matmul", "gemm_api")
_DIRECTIONS = {"backward_data": TO_INPUT, "backward_weights": TO_KERNEL}
_MOST = 3


class PrimitiveChange(NamedTuple):
    """A oneDNN primitive, such as a convolution, whose kernels or layouts differ."""

    name: str
    propagation: str
    fact: FactChange

    @property
    def is_product(self) -> bool:
        """Whether the oneDNN primitive is a convolution or a matrix product."""
        return self.name in _PRODUCTS

    def may_belong_to(self, directions: Collection[str]) -> bool:
        """Whether operations in one of the given directions (forward, gradient of the input,
        gradient of the kernel) may call the primitive.
        """
        if self.propagation.startswith("forward"):
            return FORWARD in directions
        return _DIRECTIONS.get(self.propagation) in (None, *directions)


def primitive_changes(
    base: Sequence[StepProfile], new: Sequence[StepProfile]
) -> list[PrimitiveChange]:
    """Returns the oneDNN primitives that A and B call differently; none without both logs."""
    before, after = map(_primitives, (base, new))
    if before is None or after is None:
        return []
    changed = []
    # Reorders of oneDNN come last, because they only follow from the layouts of other primitives.
    for key in sorted({*before, *after}, key=lambda key: (key[0] == "reorder", key)):
        texts = _call_texts(before.get(key, ()), after.get(key, ()))
        if texts is not None:
            name = " ".join(filter(None, ("oneDNN", *key)))
            fact = FactChange(fact=name, base=texts[0], new=texts[1])
            changed.append(PrimitiveChange(*key, fact))
    return changed


def _primitives(profiles: Iterable[StepProfile]) -> dict[tuple[str, str], list[Primitive]] | None:
    """Returns the oneDNN calls of the first process that has a log, by name and propagation kind;
    None if no process has a log.
    """
    log = next((profile.primitives for profile in profiles if profile.primitives), None)
    return None if log is None else group_by(log, lambda call: (call.name, call.propagation))


def _call_texts(before: Iterable[Primitive], after: Iterable[Primitive]) -> tuple[str, str] | None:
    """Returns texts about the oneDNN calls of A and of B: only the kernels if they differ,
    otherwise kernels with layouts. Returns None if all calls are equal.
    """
    a, b = (_call_counts(side, _kernel_text) for side in (before, after))
    if a != b:
        return _calls_text(a), _calls_text(b)
    a, b = (_call_counts(side, _layout_text) for side in (before, after))
    # Layouts that A and B have in common are not shown.
    return None if a == b else (_calls_text(a - b), _calls_text(b - a))


def _call_counts(calls: Iterable[Primitive], text: Callable[[Primitive], str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for call in calls:
        counts[text(call)] += call.calls
    return counts


def _kernel_text(primitive: Primitive) -> str:
    types = f"({primitive.types})" if primitive.types else ""
    return " ".join(filter(None, (primitive.implementation, types)))


def _layout_text(primitive: Primitive) -> str:
    return f"{_kernel_text(primitive)} with {primitive.layouts}"


def _calls_text(calls: Counter[str]) -> str:
    """Returns text about oneDNN calls in a step, such as "2 jit:avx2 (f32), 1 gemm:jit (f32)"."""
    texts = [f"{times} {name}".rstrip() for name, times in calls.most_common()]
    return first_few(texts, _MOST, ", ") if texts else NONE
