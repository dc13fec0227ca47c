"""Finds the causes of a difference in step time between A and B, from profiled steps of several
processes.

Slow steps are searched for in the times of each part of the profiled steps (such as the forward
pass of a layer, or the wait for input), because some parts have little variance. If no part has
slow steps, the times of whole steps are searched. The steps of all processes are divided into slow
and ordinary steps together (`cnnbench.base.slow_steps`), so the limit is the same for A and B.
Fisher's exact test ("The Design of Experiments", 1935) shows whether A or B has significantly more
slow steps. If not, these slow steps are removed and the remaining steps are divided again.

Each recogniser looks for one kind of cause. It claims the parts of the step that its cause explains
and that no earlier recogniser has claimed, so the times of all causes add up. If there is evidence
other than time, such as a different type of kernel, a smaller difference in time is sufficient.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import NamedTuple, TypeAlias

from cnnbench.base.slow_steps import (
    SlowSteps,
    find_slow_steps,
    median_slow_steps,
    slower_step_indices,
)
from cnnbench.base.stats import faster_half, group_by, median
from cnnbench.base.text import first_few, format_interval, milliseconds, number, percent
from cnnbench.judge.explain.facts import (
    CPU_TIME,
    FACTS_OF,
    fact_change_text,
    measured_quantity_changes,
    possible_reasons,
)
from cnnbench.judge.explain.sides import (
    CERTAIN,
    LIKELY,
    PAUSES,
    SMALLEST,
    ComparedProfiles,
    StepTimes,
)
from cnnbench.records.profiles import (
    FORWARD,
    GAPS,
    INPUT,
    OUTSIDE,
    PROGRAM,
    REDUCTION,
    REST,
    TO_INPUT,
    TO_KERNEL,
    Cause,
    ProfiledLayer,
    StepPartKey,
    StepProfile,
)

# Finds pauses, which are recurring steps that take longer than other steps of the same process.

_CHANCE = 0.016
"""Significance level of Fisher's test. If A and B have equally many steps, six slow steps in B and
none in A are significant, such as two in each of three processes.
"""

_RATIO = 1.5
"""Minimum ratio between the share of slow steps in any process with pauses and the share in any
process without pauses. A test is not enough, because equal processes differ by more than chance.
"""

_BUSY = 0.5  # A process that uses this many CPUs during a pause computes; otherwise it waits.
_LARGEST = 3  # The evidence for a pause names at most this many parts of the step.

Runs: TypeAlias = Sequence[Sequence[float]]
"""Seconds of each profiled step of a process, optionally followed by the timed steps."""

_Profile: TypeAlias = tuple[StepProfile, SlowSteps | None]
"""A process and its slow steps. Profiled steps are numbered from 0; the timed steps follow."""


class RecurringPauses(NamedTuple):
    """Slow steps that recur in all processes of A and less often in the processes of B, or the
    reverse.

    Attributes:
      place, text, evidence: as in `cnnbench.records.profiles.Cause`.
      others: steps of A and B without slow steps. The additional time of slow steps is in the part
        `PAUSES`.
    """

    place: str
    text: str
    evidence: tuple[str, ...]
    others: ComparedProfiles


def find_pauses(sides: ComparedProfiles) -> RecurringPauses | None:
    """Searches the times of each part of the step for pauses (recurring slow steps), and returns
    the longest pauses. If no part has pauses, searches the times of whole steps.
    """
    operations = sides.unclaimed_operations
    pause_causes = []
    for part in sides.times:
        runs = [(value,) for value in (*sides.a.seconds(part), *sides.b.seconds(part))]
        # The significance level is divided by the number of operations (Bonferroni correction).
        level = _CHANCE / (len(operations) if part in operations else 1)
        if recurring := _find_recurring_pauses(sides, runs, level, part):
            pause_causes.append(recurring)
    if pause_causes:
        return max(pause_causes, key=lambda cause: abs(cause.others.means[PAUSES].difference))
    profiles = (*sides.a.profiles, *sides.b.profiles)
    whole = [(profile.step_seconds, profile.record.step_seconds) for profile in profiles]
    return _find_recurring_pauses(sides, whole, _CHANCE)


def _find_recurring_pauses(
    sides: ComparedProfiles,
    runs_of_processes: Sequence[Runs],
    level: float,
    part: StepPartKey | None = None,
) -> RecurringPauses | None:
    """Finds pauses (recurring slow steps) in the times of whole steps, or of one part of the step
    (`part`), such as a layer.

    `runs_of_processes` contains the times of each process, first of A, then of B. The result is
    None unless all processes of A, or all processes of B, have significantly more slow steps.
    """
    profiles = (*sides.a.profiles, *sides.b.profiles)
    usual = [_mean_of_faster_half(profile.record.step_seconds) for profile in profiles]
    series = [
        _shift_to_usual_time(base, runs)
        for base, runs in zip(usual, runs_of_processes, strict=True)
    ]
    # Parts of the step that vary little are skipped: their slow steps have no relevant effect.
    variation = max(fmean(values) - min(values) for values in series)
    if variation < SMALLEST * sides.step.means_by_side[0]:
        return None
    of_a, of_b = slice(len(sides.a.profiles)), slice(len(sides.a.profiles), None)
    left = [(n, step) for n, seconds in enumerate(series) for step in range(len(seconds))]
    while slower := slower_step_indices([series[n][step] / usual[n] for n, step in left]):
        slow = {left[index] for index in slower}
        left = [index for index in left if index not in slow]
        indices, ordinary = (
            [[step for n, step in some if n == process] for process in range(len(series))]
            for some in (sorted(slow), left)
        )
        # If most steps of A or of B are slow, the cause is not a pause.
        if any(_most_steps_are_slow(indices[index], ordinary[index]) for index in (of_a, of_b)):
            return None
        slow_steps = [*map(SlowSteps.from_groups, series, indices, ordinary)]
        times = [0 if slow is None else slow.occurrences for slow in slow_steps]
        rates = [own / len(seconds) for own, seconds in zip(times, series, strict=True)]
        costs = [0.0 if slow is None else slow.share * slow.extra for slow in slow_steps]
        cost = StepTimes([costs[of_a], costs[of_b]])
        side, more, fewer = ("B", of_b, of_a) if cost.difference > 0 else ("A", of_a, of_b)
        few, many = ((sum(times[index]), sum(map(len, series[index]))) for index in (fewer, more))
        shared = median_slow_steps(slow_steps[more])
        if (
            shared is not None
            and sides.is_relevant(cost)
            and min(rates[more]) > _RATIO * max(rates[fewer])
            and _fisher_p_value(*few, *many) <= level
        ):
            others = sides.with_pauses_as_part(indices, ordinary)
            if others is None or others.means[PAUSES].difference * cost.difference <= 0:
                return None
            slowed = [*zip(profiles, slow_steps, strict=True)][more]
            place, evidence = _pause_place_and_evidence(slowed, part)
            text = f"of {side}, {shared.text}"
            cpu_time = _cpu_time_evidence(profile for profile, _ in slowed)
            return RecurringPauses(place, text, (*evidence, *cpu_time), others)
    return None


def _most_steps_are_slow(slow: Sequence[Sequence[int]], ordinary: Sequence[Sequence[int]]) -> bool:
    """Whether the given processes have more slow than ordinary steps, by more than one step per
    process on average.
    """
    more = sum(map(len, slow)) - sum(map(len, ordinary))
    return more > len(slow)


def _mean_of_faster_half(seconds: Sequence[float]) -> float:
    return fmean(seconds[step] for step in faster_half(seconds))


def _shift_to_usual_time(usual: float, runs: Runs) -> list[float]:
    """Returns the seconds of all steps of one process, shifted so that ordinary steps take `usual`
    seconds, both in the profiled and in the timed steps.
    """
    steps = []
    for run in runs:
        ordinary = _mean_of_faster_half(run)
        steps += [max(usual / 2, usual + value - ordinary) for value in run]
    return steps


def _fisher_p_value(
    slow_in_first: int, steps_in_first: int, slow_in_second: int, steps_in_second: int
) -> float:
    """Returns the one-sided p-value of Fisher's exact test for two groups of steps: whether the
    share of slow steps is larger in the second group than in the first.
    """
    slow = slow_in_first + slow_in_second
    ways = (
        comb(steps_in_second, own) * comb(steps_in_first, slow - own)
        for own in range(slow_in_second, slow + 1)
    )
    return sum(ways) / comb(steps_in_first + steps_in_second, slow)


def _pause_place_and_evidence(
    profiles: Iterable[_Profile], part: StepPartKey | None
) -> tuple[str, tuple[str, ...]]:
    """Returns the name of the part of the step (such as a layer) in which slow steps take longer,
    and evidence: the parts that take most of the additional time.
    """
    extra: defaultdict[StepPartKey, list[float]] = defaultdict(list)
    for profile, slow in profiles:
        profiled = range(len(profile.step_seconds))
        steps = [index for index in slow.indices if index in profiled] if slow else []
        for row in profile.rows if steps else ():
            extra[row.part] += [
                row.seconds[index] - _mean_of_faster_half(row.seconds) for index in steps
            ]
    total = sum(map(sum, extra.values()))
    if total <= 0:
        return "steps that were not profiled", ()
    # Medians are used, because unrelated parts of the step also take much longer in some steps.
    largest = sorted(extra, key=lambda part: -median(extra[part]))[:_LARGEST]
    shares = ", ".join(
        f"{_part_text(part)} {percent(sum(extra[part]) / total, 0)}" for part in largest
    )
    return _part_text(part or largest[0]), (f"additional time of slow profiled steps: {shares}",)


def _part_text(part: StepPartKey) -> str:
    if part.direction == INPUT:
        return "the input pipeline"
    if part == PROGRAM:
        return "the training loop, outside the graph"
    if part == GAPS:
        return "gaps between operations, as when threads wait for a lock"
    return ", ".join(filter(None, (part.layer, part.direction)))


def _cpu_time_evidence(profiles: Iterable[StepProfile]) -> tuple[str, ...]:
    """Returns a text that says whether processes compute or wait during pauses, based on their CPU
    time; () if the CPU time is unknown.
    """
    shares = []
    for profile in profiles:
        seconds, cpu = profile.record.step_seconds, profile.record.step_cpu_seconds
        slow = find_slow_steps(seconds)
        if slow is not None and cpu and len(cpu) == len(seconds):
            shares.append(
                (fmean(cpu[index] for index in slow.indices) - _mean_of_faster_half(cpu))
                / slow.extra
            )
    if not shares:
        return ()
    share = median(shares)
    doing = (
        "it computes, as Python, its garbage collector or operations do"
        if share >= _BUSY
        else "it waits, as for input, a lock or a sleep"
    )
    return (f"{number(max(0.0, share))} CPU seconds per second of a pause: {doing}",)


# Recognises the causes of a difference in step time between A and B.

_ALIKE = ("threads", "everything", "batch")
_OF_LAYERS = ("precision", "layers", "work", "operations", "kernel")
_MOST_FURTHER = 6

_PRODUCT = re.compile(r"Conv\d?[Dd]|MatMul|Einsum")
_NORM = re.compile(r"FusedBatchNorm")
# Processes are assumed to differ by at least this share of the step time, because of load.
_LOAD = 0.02
_MOST = 3  # A text names at most this many layers or operations.
_DOMINATES = 0.8
_MORE = 0.1  # This share of additional operations can change the gaps between operations.
_MUCH = 0.4  # A layer with this share of all additional parameters explains slower updates.

_DIRECTIONS = {
    FORWARD: "forward",
    TO_INPUT: "gradient of input",
    TO_KERNEL: "gradient of kernels",
}


@dataclass(frozen=True)
class CauseClaim:
    """A cause that a recogniser found, and the parts of the step (such as layers) whose difference
    in time the cause explains.

    `facts` are texts about flags and recorded properties that differ. The first text is the most
    likely reason. `is_effect` says whether the cause may be only a consequence of other causes,
    which may change waits or the use of caches and cores. For all other fields, see `Cause`.
    """

    kind: str
    parts: tuple[StepPartKey, ...]
    place: str
    text: str
    evidence: Sequence[str] = ()
    facts: tuple[str, ...] = ()
    is_effect: bool = False


def significant_causes(sides: ComparedProfiles) -> tuple[ComparedProfiles, tuple[Cause, ...]]:
    """Returns the profiled steps of A and B, and the significant causes of the difference in step
    time.

    If there are pauses, the returned steps have a separate part for pauses. All other causes are
    then found in the steps without pauses, so that no cause is reported twice.
    """
    paused = find_pauses(sides)
    if paused is None:
        return sides, find_causes(sides)
    claim = CauseClaim("pauses", (PAUSES,), paused.place, paused.text, paused.evidence)
    return paused.others, find_causes(paused.others, (lambda _: (claim,), *RECOGNISERS))


def find_causes(
    sides: ComparedProfiles, recognisers: Iterable[Recogniser] | None = None
) -> tuple[Cause, ...]:
    """Returns the significant causes of a difference in step time, sorted by size. Causes that may
    only be consequences of other causes are last.

    The time of a cause is the sum of the mean times of its parts of the step. A cause is ignored if
    the difference of typical times and the difference of mean times have different signs. The
    default of `recognisers` is `RECOGNISERS`.
    """
    sides.free = dict.fromkeys(sides.times)
    found_causes: list[tuple[bool, Cause]] = []
    for recognise in RECOGNISERS if recognisers is None else recognisers:
        for claim in recognise(sides):
            mean = sides.mean_sum(claim.parts)
            if (
                not sides.by_work
                and mean.difference * sides.typical_sum(claim.parts).difference <= 0
            ):
                continue
            base, new = mean.means_by_side
            evidence = (*claim.facts, *claim.evidence, *_further_evidence(sides, claim))
            cause = Cause(
                kind=claim.kind,
                base=base,
                new=new,
                spread=2 * mean.standard_error(),
                place=claim.place,
                text="; ".join((claim.text, *claim.facts[:1])),
                evidence=tuple(filter(None, evidence)),
            )
            found_causes.append((claim.is_effect, cause))
            for part in claim.parts:
                sides.free.pop(part, None)
    found_causes.sort(key=lambda item: (item[0], -abs(item[1].difference)))
    return tuple(cause for _, cause in found_causes)


def _further_evidence(sides: ComparedProfiles, claim: CauseClaim) -> tuple[str, ...]:
    """Returns evidence for a cause other than time, as texts: differences in the state of the
    machine and in oneDNN kernels.
    """
    if claim.kind in _ALIKE:
        kernels = (fact_change_text(primitive.fact) for primitive in sides.primitives)
        return (*_machine_state_evidence(sides, claim.parts), *kernels)[:_MOST_FURTHER]
    if claim.kind not in _OF_LAYERS or not _contain_convolution_or_matmul(sides, claim.parts):
        return ()
    directions = {part.direction for part in claim.parts}
    own = (
        primitive.fact
        for primitive in sides.primitives
        if primitive.is_convolution_or_matmul and primitive.may_belong_to(directions)
    )
    return tuple(map(fact_change_text, own))[:_MOST_FURTHER]


def _machine_state_evidence(
    sides: ComparedProfiles, parts: Iterable[StepPartKey]
) -> tuple[str, ...]:
    """Returns texts about differences in clocks, load and similar conditions that can explain why
    all operations are slower in A or in B.
    """
    slower = 1 if sides.typical_sum(parts).difference > 0 else -1
    return tuple(
        map(fact_change_text, measured_quantity_changes(sides.a.profiles, sides.b.profiles, slower))
    )


def recognise_input_wait(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that steps take longer because they wait for the input pipeline."""
    parts = tuple(part for part in sides.free if part.direction == INPUT)
    # Each part of the input pipeline is also tested alone.
    # The wait for input varies less than the rest of the pipeline.
    for some in (parts, *((part,) for part in parts)):
        if some and (sides.stands_out(some) or sides.differs_significantly(some)):
            text, facts = (
                "the step waits for input",
                _differing_fact_texts(sides, FACTS_OF["reading"]),
            )
            yield CauseClaim("input", some, "the input pipeline", text, facts=facts)
            return


def recognise_program_time(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that the Python program takes more time outside the graph, before or after the
    operations of a step.
    """
    if PROGRAM not in sides.free:
        return
    # Minima resist disturbances by other programs. Means also include work that few steps do.
    for times in (sides.times[PROGRAM], sides.means[PROGRAM]):
        sides.times[PROGRAM] = times
        if sides.stands_out([PROGRAM]) or sides.differs_significantly([PROGRAM]):
            text = "the program takes it before or after the step's operations"
            place = "the training loop, outside the graph"
            measured = measured_quantity_changes(sides.a.profiles, sides.b.profiles)
            computing = tuple(
                fact_change_text(change) for change in measured if change.fact == CPU_TIME
            )
            facts = _differing_fact_texts(sides, FACTS_OF["looping"])
            yield CauseClaim("program", (PROGRAM,), place, text, computing, facts)
            return


def recognise_other_network(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that A and B train networks that differ too much to be compared layer by layer."""
    alignment = sides.alignment
    parts = tuple(part for part in sides.unclaimed_operations if part.layer != REST)
    if not alignment.networks_differ_too_much or not parts or not sides.stands_out(parts, LIKELY):
        return
    kinds = group_by(parts, lambda part: part.kind)
    times = {kind: sides.mean_sum(parts) for kind, parts in kinds.items()}
    largest = sorted(times, key=lambda kind: -abs(times[kind].difference))
    evidence = [
        f"{kind}: {format_interval(*times[kind].means_by_side, milliseconds)} ms"
        for kind in largest[:_MOST_FURTHER]
    ]
    sizes = [sum(bool(layer.kind) for layer in side) for side in (alignment.a, alignment.b)]
    text = f"another network, of {sizes[1]} layers instead of {sizes[0]}, compared by kind"
    yield CauseClaim("network", parts, "the network's layers", text, evidence)


def recognise_batch_size(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that A and B have different batch sizes, so that all operations have more or less
    of the same work.
    """
    facts = _differing_fact_texts(sides, FACTS_OF["batch"])
    parts = sides.unclaimed_operations
    if not facts or not parts or not sides.stands_out(parts, LIKELY):
        return
    before, after = sides.total_flops_or_bytes("flops", parts)
    longer = sides.typical_sum(parts).difference
    if (after - before) * longer > 0 and _mostly_have_same_sign(sides, parts):
        evidence = [*_amount_ratio_texts(sides, parts, "FLOPs")]
        yield CauseClaim(
            "batch", parts, "all operations", "batches of another size", evidence, facts
        )


def recognise_threads_or_libraries(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises fewer threads, slower processors or a different library, which affect all
    operations.
    """
    libraries = _differing_fact_texts(sides, FACTS_OF["libraries"])
    facts = (*libraries, *_differing_fact_texts(sides, FACTS_OF["threads"]))
    parts = sides.unclaimed_operations
    if not facts or not parts or sides.by_work:
        return
    if sides.stands_out(parts, LIKELY) and _mostly_have_same_sign(sides, parts):
        # The number of threads also affects gaps, because it limits which operations run together.
        if GAPS in sides.free:
            parts = (*parts, GAPS)
        yield CauseClaim(
            "threads", parts, "all operations", _slowdown_text(sides, parts), facts=facts
        )
        return
    # Fewer threads can also make operations faster, because threads wait less for each other.
    same = (part for part in parts if libraries or not _work_differs(sides, part))
    single = tuple(part for part in same if sides.stands_out([part]))
    if GAPS in sides.free and sides.stands_out([GAPS]):
        single = (*single, GAPS)
    if single:
        size = {part: abs(sides.times[part].difference) for part in single}
        named = sorted(single, key=lambda part: -size[part])
        place = first_few([f"{part.layer}, {part.kind}" for part in named], _MOST, "; ")
        yield CauseClaim("threads", single, place, _slowdown_text(sides, single), facts=facts)


def _mostly_have_same_sign(sides: ComparedProfiles, parts: Iterable[StepPartKey]) -> bool:
    """Whether the time differences in the given parts of the step mostly have the same sign,
    weighted by their size.
    """
    differences = [sides.times[part].difference for part in parts]
    return abs(sum(differences)) >= (2 * _DOMINATES - 1) * sum(map(abs, differences))


def recognise_precision(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises layers whose convolutions and matrix products compute in a different number
    format, such as float16.
    """
    layers = _parts_by_layer(sides)
    layers_of_types: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for layer, parts in layers.items():
        before, after = map(_number_formats, sides.operation_counts(parts))
        if before and after and before != after:
            layers_of_types[", ".join(before), ", ".join(after)].append(layer)
    for types, named in layers_of_types.items():
        claimed = tuple(part for layer in named for part in layers[layer])
        if sides.stands_out(claimed, LIKELY):
            text = f"products are in {types[1]}, not in {types[0]}"
            casts = [
                sum(n for name, n in kernels.items() if name.startswith("Cast"))
                for kernels in sides.operation_counts(sides.times)
            ]
            casts_text = f"casts in a step: {casts[0]} in A, {casts[1]} in B"
            evidence = [casts_text] if casts[0] != casts[1] else []
            yield CauseClaim(
                "precision", claimed, _layers_text(sides, named, layers), text, evidence
            )


def recognise_unfused_batch_norm(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises batch norm that is a fused operation only in A or only in B, in layers that both
    networks have.

    Batch norm that is not fused consists of several operations with other types.
    """
    before = after = 0
    layers: dict[str, list[StepPartKey]] = {}
    for layer, parts in _parts_by_layer(sides).items():
        both = sides.operation_counts(parts)
        fused = [sum(n for name, n in kernels.items() if _NORM.search(name)) for kernels in both]
        before, after = before + fused[0], after + fused[1]
        if all(both) and fused[0] != fused[1]:
            layers[layer] = [
                part
                for part in parts
                if _work_differs(sides, part) and not _contain_convolution_or_matmul(sides, [part])
            ]
    claimed = list(itertools.chain(*layers.values()))
    if before != after and claimed and sides.stands_out(claimed, LIKELY):
        word = "is no longer fused" if after < before else "is fused"
        text = f"it {word}: {before} fused operations in A, {after} in B"
        place = f"batch norm of {_layers_text(sides, list(layers), layers)}"
        evidence = (_operation_count_changes(sides, claimed),)
        yield CauseClaim("batch norm", _add_gaps(sides, tuple(claimed)), place, text, evidence)


def recognise_reduction(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that the reduction of gradients over devices takes longer, or uses other
    operations.
    """
    parts = tuple(p for p in sides.free if p.direction == OUTSIDE and p.kind == REDUCTION)
    if not parts or _parts_that_follow_parameters(sides):
        return
    other = any(_work_differs(sides, part) for part in parts)
    if sides.stands_out(parts, LIKELY if other else CERTAIN):
        text = "gradients are reduced by other operations" if other else "gradients are reduced"
        evidence, facts = (
            (_operation_count_changes(sides, parts),),
            _differing_fact_texts(sides, FACTS_OF["reducing"]),
        )
        parts = _add_gaps(sides, parts)
        yield CauseClaim("reduction", parts, "the reduction of gradients", text, evidence, facts)


def recognise_variable_operations(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that updates and copies of variables take longer, unless the number of parameters
    differs.
    """
    if not _parts_that_follow_parameters(sides):
        yield from recognise_remaining_variable_operations(sides)


def recognise_remaining_variable_operations(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that updates and copies of variables take longer, also if the number of parameters
    differs.
    """
    parts = tuple(p for p in sides.free if p.direction == OUTSIDE and p.kind != REDUCTION)
    if not parts:
        return
    other = any(_work_differs(sides, part) for part in parts)
    if sides.stands_out(parts, LIKELY if other else CERTAIN):
        text = "other operations on variables" if other else "the same operations on variables"
        evidence = (
            _operation_count_changes(sides, parts),
            *_amount_ratio_texts(sides, parts, "bytes"),
        )
        before, after = (
            {name for name in kernels if name.startswith("ResourceApply")}
            for kernels in sides.operation_counts(parts)
        )
        updates = before != after or _differing_fact_texts(sides, ("optimizer",))
        place = "the optimizer's update" if updates else "updates and copies of variables"
        facts = _differing_fact_texts(sides, FACTS_OF["updating"])
        yield CauseClaim("copies", _add_gaps(sides, parts), place, text, evidence, facts)


def recognise_added_layers(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises layers that only A or only B has."""
    parts_by_layer = _parts_by_layer(sides)
    names = [{part.layer for part in side.parts} for side in (sides.a, sides.b)]
    own = {
        layer: parts
        for layer, parts in parts_by_layer.items()
        if any(layer not in n for n in names)
    }
    parts = tuple(part for parts_of_layer in own.values() for part in parts_of_layer)
    if parts and sides.stands_out(parts, LIKELY):
        only_texts = []
        for side, other in (("A", 1), ("B", 0)):
            only = [layer for layer in own if layer not in names[other]]
            only_texts += [f"only {side} has {first_few(only, _MOST, ', ')}"] if only else []
        text = sides.alignment.difference_text()
        place = _layers_text(sides, list(own), own)
        lacking = sides.alignment.layers_only_in_b, sides.alignment.layers_only_in_a
        more, less = (sum(layer.parameters for layer in side) for side in lacking)
        parts = (*parts, *_parts_that_follow_parameters(sides, more - less))
        yield CauseClaim(
            "layers", parts, place, text or "; ".join(only_texts), tuple(only_texts) if text else ()
        )


def recognise_changed_layers(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises layers whose variables have different shapes in A and B, such as a wider
    convolution.
    """
    parts_by_layer = _parts_by_layer(sides)
    pairs = [
        (a, b)
        for a, b in sides.alignment.pairs
        if (a.shapes, a.parameters) != (b.shapes, b.parameters)
    ]
    own = {a.name: parts_by_layer[a.name] for a, _ in pairs if a.name in parts_by_layer}
    parts = tuple(part for parts_of_layer in own.values() for part in parts_of_layer)
    if not parts:
        return
    if sides.stands_out(parts, LIKELY) or any(
        sides.differs_from_other_parts([part]) for part in parts
    ):
        evidence = [
            f"{a.name}: {_variable_shapes_text(a)} in A, {_variable_shapes_text(b)} in B"
            for a, b in pairs[:_MOST_FURTHER]
        ]
        more = sum(b.parameters - a.parameters for a, b in pairs)
        changed = [a.name for a, _ in pairs if a.name in own]
        # Only the first layer was changed; later layers receive its new number of channels.
        first = next((a.name for a, _ in pairs if a.kind and a.name in own), changed[0])
        place = first_few([first, *(name for name in changed if name != first)], 1)
        evidence += [
            _operation_count_changes(sides, parts),
            *_amount_ratio_texts(sides, parts, "FLOPs", "bytes"),
        ]
        claimed = (*parts, *_parts_that_follow_parameters(sides, more))
        yield CauseClaim("layers", claimed, place, "variables of another shape", evidence)


def _variable_shapes_text(layer: ProfiledLayer) -> str:
    shapes = ", ".join("x".join(map(str, shape)) for shape in layer.shapes)
    return shapes or f"{layer.parameters} parameters"


def recognise_slower_layers(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises layers whose operations changed by more than the operations of other layers."""
    for layer, parts in _parts_by_layer(sides).items():
        others = tuple(part for part in parts if _work_differs(sides, part))
        alike = (part for part in parts if part not in others)
        claimed = tuple(part for part in alike if sides.differs_from_other_parts([part]))
        if others and sides.differs_from_other_parts(others, LIKELY):
            claimed = (*others, *claimed)
        if not claimed:
            continue
        pairs = [(a, b) for a, b in sides.alignment.pairs if a.name == layer]
        place, evidence = layer, [f"{b.name} in B" for _, b in pairs if b.name != layer]
        total = sides.typical_sum(claimed).difference
        largest = max(claimed, key=lambda part: abs(sides.times[part].difference))
        if abs(sides.times[largest].difference) >= _DOMINATES * abs(total):
            place += f", {_DIRECTIONS.get(largest.direction, largest.direction)}"
        evidence += [
            _operation_count_changes(sides, claimed),
            *_amount_ratio_texts(sides, claimed, "FLOPs", "bytes"),
        ]
        kernels = sides.operation_counts(claimed)
        flops, moved = (sides.total_flops_or_bytes(name, claimed) for name in ("flops", "bytes"))
        if flops[0] != flops[1]:
            kind, text = "work", "other work to do"
        elif kernels[0] != kernels[1]:
            kind, text = "operations", "other operations for the same work"
        elif moved[0] != moved[1]:
            kind, text = "work", "the same operations on other amounts of data"
        else:
            kind, text = "kernel", "the same operations take another time"
        more = sum(b.parameters - a.parameters for a, b in pairs)
        claimed = (*claimed, *_parts_that_follow_parameters(sides, more))
        yield CauseClaim(kind, claimed, place, text, evidence)


def recognise_gaps(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that a step has more time in which no operation runs."""
    if GAPS in sides.free and sides.stands_out([GAPS]):
        text = "no operation runs between the first and the last of the step"
        yield CauseClaim("gaps", (GAPS,), "gaps between operations", text, is_effect=True)


def recognise_overall_slowdown(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that all operations are slower or faster, without a reason that records
    contain.
    """
    parts = sides.unclaimed_operations
    factors = sides.speed_factors
    least = CERTAIN * factors.standard_error(_LOAD)
    if (
        parts
        and factors.sides_are_separated
        and abs(factors.difference) > least
        and sides.stands_out(parts)
    ):
        text = _slowdown_text(sides, parts)
        is_effect = any(
            _work_differs(sides, part) for part in sides.times if part not in sides.free
        )
        if is_effect:
            text += "; because of the other operations, or of another load or clock"
        elif not _machine_state_evidence(sides, parts):
            text += "; another load or clock, which records do not show"
        yield CauseClaim("everything", parts, "all operations", text, is_effect=is_effect)


Recogniser: TypeAlias = Callable[[ComparedProfiles], Iterable[CauseClaim]]

RECOGNISERS: tuple[Recogniser, ...] = (
    recognise_input_wait,
    recognise_program_time,
    recognise_other_network,
    recognise_batch_size,
    recognise_threads_or_libraries,
    recognise_precision,
    recognise_unfused_batch_norm,
    recognise_reduction,
    recognise_variable_operations,
    recognise_added_layers,
    recognise_changed_layers,
    recognise_slower_layers,
    recognise_remaining_variable_operations,
    recognise_gaps,
    recognise_overall_slowdown,
)
"""Functions that each recognise one kind of cause, in the order in which they claim parts."""


def _parts_that_follow_parameters(
    sides: ComparedProfiles, own: int | None = None
) -> tuple[StepPartKey, ...]:
    """Returns the parts of the step that process variables (updates, copies, reductions), if their
    time changes in the same direction as the number of parameters; otherwise ().

    `own` is the number of additional parameters in one layer. Unless it is None, it must be a large
    share of all additional parameters.
    """
    alignment = sides.alignment
    sums = [sum(layer.parameters for layer in side) for side in (alignment.a, alignment.b)]
    more = sums[1] - sums[0]
    parts = tuple(part for part in sides.free if part.direction == OUTSIDE)
    if not more or not parts or abs(more) < SMALLEST * sums[0]:
        return ()
    if own is not None and own / more < _MUCH:
        return ()
    return parts if sides.typical_sum(parts).difference * more > 0 else ()


def _parts_by_layer(sides: ComparedProfiles) -> dict[str, list[StepPartKey]]:
    if sides.alignment.networks_differ_too_much:
        return {}
    parts = (part for part in sides.unclaimed_operations if part.layer != REST)
    return group_by(parts, lambda part: part.layer)


def _contain_convolution_or_matmul(sides: ComparedProfiles, parts: Collection[StepPartKey]) -> bool:
    """Whether the given parts of the step contain convolutions or matrix products in A or in B."""
    return any(map(_PRODUCT.search, itertools.chain(*sides.operation_counts(parts))))


def _number_formats(kernels: Iterable[str]) -> tuple[str, ...]:
    words = (name.partition(" ") for name in kernels if _PRODUCT.search(name))
    return tuple(sorted({type for _, _, type in words if type}))


def _work_differs(sides: ComparedProfiles, part: StepPartKey) -> bool:
    """Whether a part of the step (such as a layer's forward pass) certainly has different
    operations, FLOPs or bytes in A and B.
    """
    works = [side.work(part) for side in (sides.a, sides.b)]
    lacking = any(part not in side.parts for side in (sides.a, sides.b))
    return lacking or (None not in works and works[0] != works[1])


def _layers_text(
    sides: ComparedProfiles, names: list[str], layers: Mapping[str, Iterable[StepPartKey]]
) -> str:
    """Returns text with the name of the layer with the largest difference, and the number of other
    layers: "conv1 and 3 more".
    """
    size = {name: abs(sides.typical_sum(layers[name]).difference) for name in names}
    return first_few(sorted(names, key=lambda name: -size[name]), 1)


def _operation_count_changes(sides: ComparedProfiles, parts: Collection[StepPartKey]) -> str:
    """Returns text with the change from A to B in the number of operations of each type:
    "operations of B: +2 Cast float32, -1 Relu".
    """
    before, after = sides.operation_counts(parts)
    differences = {name: after[name] - before[name] for name in (*before, *after)}
    texts = [
        f"{difference:+d} {name}"
        for name, difference in sorted(differences.items(), key=lambda item: -abs(item[1]))
        if difference
    ]
    return f"operations of B: {first_few(texts, _MOST, ', ')}" if texts else ""


def _add_gaps(sides: ComparedProfiles, parts: tuple[StepPartKey, ...]) -> tuple[StepPartKey, ...]:
    """Returns the given parts of the step and, if most of the additional operations are in these
    parts, also the gaps between operations.
    """
    if GAPS not in sides.free:
        return parts
    before, after, own_before, own_after = (
        kernels.total() for some in (sides.times, parts) for kernels in sides.operation_counts(some)
    )
    more, own = after - before, own_after - own_before
    if not more or abs(more) < _MORE * before or own / more < _DOMINATES:
        return parts
    return (*parts, GAPS) if more * sides.times[GAPS].difference > 0 else parts


def _amount_ratio_texts(
    sides: ComparedProfiles, parts: Collection[StepPartKey], *amounts: str
) -> Iterator[str]:
    """Yields texts with the FLOPs or bytes of B relative to A, such as "1.500 times the FLOPs"."""
    for name in amounts:
        before, after = sides.total_flops_or_bytes(name.lower(), parts)
        if before and after and abs(after / before - 1) >= SMALLEST:
            yield f"{number(after / before)} times the {name}"


def _slowdown_text(sides: ComparedProfiles, parts: Iterable[StepPartKey]) -> str:
    base, new = sides.mean_sum(parts).means_by_side
    return f"they take {number(new / base)} times as long"


def _differing_fact_texts(sides: ComparedProfiles, names: Iterable[str]) -> tuple[str, ...]:
    """Returns texts about the flags and recorded properties in `names` that differ between A and B,
    such as "xla: false in A, true in B".
    """
    return possible_reasons(sides.a.profiles, sides.b.profiles, names)
