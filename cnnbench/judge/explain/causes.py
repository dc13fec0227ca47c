"""Recognises the causes of a difference in step time between A and B, from profiled steps of
several processes.

Each recogniser looks for one kind of cause. It claims the parts of the step that its cause explains
and that no earlier recogniser has claimed, so the times of all causes add up. If there is evidence
other than time, such as a different type of kernel, a smaller difference in time is sufficient.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from cnnbench.base.stats import group_by
from cnnbench.base.text import first_few, format_interval, milliseconds, number
from cnnbench.judge.explain.facts import (
    CPU_TIME,
    FACTS_OF,
    fact_change_text,
    possible_reasons,
    quantity_changes,
)
from cnnbench.judge.explain.sides import CERTAIN, LIKELY, SMALLEST, CauseClaim, ComparedProfiles
from cnnbench.records.explanation import Cause
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
    ProfiledLayer,
    StepPartKey,
)

_ALIKE = ("threads", "everything", "batch")
_OF_LAYERS = ("precision", "layers", "work", "operations", "kernel")
_MOST_FURTHER = 6

_PRODUCT = re.compile(r"Conv\d?[Dd]|MatMul|Einsum")
_NORM = re.compile(r"FusedBatchNorm")
# The load of the machine alone can make processes differ by this share of the step time.
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


def find_causes(sides: ComparedProfiles, *known: CauseClaim) -> tuple[Cause, ...]:
    """Returns the significant causes of a difference in step time, sorted by size. Causes that may
    only be consequences of other causes are last.

    The time of a cause is the sum of the mean times of its parts of the step. A cause is ignored if
    the difference of typical times and the difference of mean times have different signs. The
    `known` causes claim their parts first.
    """
    sides.free = dict.fromkeys(sides.times)
    found_causes: list[tuple[bool, Cause]] = []
    recognisers: tuple[Recogniser, ...] = (lambda _: known, *RECOGNISERS)
    for recognise in recognisers:
        for claim in recognise(sides):
            mean = sides.mean(claim.parts)
            typical = sides.typical(claim.parts)
            if not sides.by_work and mean.difference * typical.difference <= 0:
                continue
            base, new = mean.of_sides
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
        return (*_machine_evidence(sides, claim.parts), *kernels)[:_MOST_FURTHER]
    if claim.kind not in _OF_LAYERS or not _have_products(sides, claim.parts):
        return ()
    directions = {part.direction for part in claim.parts}
    own = (
        primitive.fact
        for primitive in sides.primitives
        if primitive.is_product and primitive.may_belong_to(directions)
    )
    return tuple(map(fact_change_text, own))[:_MOST_FURTHER]


def _machine_evidence(sides: ComparedProfiles, parts: Iterable[StepPartKey]) -> tuple[str, ...]:
    """Returns texts about differences in clocks, load and similar conditions that can explain why
    all operations are slower in A or in B.
    """
    slower = 1 if sides.typical(parts).difference > 0 else -1
    changes = quantity_changes(sides.a.profiles, sides.b.profiles, slower)
    return tuple(map(fact_change_text, changes))


def input_wait(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that steps take longer because they wait for the input pipeline."""
    parts = tuple(part for part in sides.free if part.direction == INPUT)
    # The parts of the input pipeline are tested together and one by one. A single part, such as the
    # wait for input, may vary less than all parts together, and so be significant alone.
    for some in (parts, *((part,) for part in parts)):
        if some and (sides.stands_out(some) or sides.differs_significantly(some)):
            text, facts = "the step waits for input", _reasons(sides, "reading")
            yield CauseClaim("input", some, "the input pipeline", text, facts=facts)
            return


def program_time(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that the Python program takes longer before or after a step's operations."""
    if PROGRAM not in sides.free:
        return
    # Minima are hardly affected by other programs, but miss work that only few steps do. Means
    # include that work.
    for times in (sides.times[PROGRAM], sides.means[PROGRAM]):
        sides.times[PROGRAM] = times
        if sides.stands_out([PROGRAM]) or sides.differs_significantly([PROGRAM]):
            text = "the program takes it before or after the step's operations"
            place = "the training loop, outside the graph"
            measured = quantity_changes(sides.a.profiles, sides.b.profiles)
            evidence = [fact_change_text(one) for one in measured if one.fact == CPU_TIME]
            facts = _reasons(sides, "looping")
            yield CauseClaim("program", (PROGRAM,), place, text, evidence, facts)
            return


def other_network(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that A and B train networks that differ too much to be compared layer by layer."""
    alignment = sides.alignment
    parts = tuple(part for part in sides.operations_left if part.layer != REST)
    if not alignment.too_different or not parts or not sides.stands_out(parts, LIKELY):
        return
    kinds = group_by(parts, lambda part: part.kind)
    times = {kind: sides.mean(parts) for kind, parts in kinds.items()}
    largest = sorted(times, key=lambda kind: -abs(times[kind].difference))
    evidence = [
        f"{kind}: {format_interval(*times[kind].of_sides, milliseconds)} ms"
        for kind in largest[:_MOST_FURTHER]
    ]
    sizes = [sum(bool(layer.kind) for layer in side) for side in (alignment.a, alignment.b)]
    text = f"another network, of {sizes[1]} layers instead of {sizes[0]}, compared by kind"
    yield CauseClaim("network", parts, "the network's layers", text, evidence)


def batch_size(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises different batch sizes: all operations have more or less of the same work."""
    facts = _reasons(sides, "batch")
    parts = sides.operations_left
    if not facts or not parts or not sides.stands_out(parts, LIKELY):
        return
    before, after = sides.totals("flops", parts)
    longer = sides.typical(parts).difference
    if (after - before) * longer > 0 and _same_sign(sides, parts):
        text, evidence = "batches of another size", [*_ratio_texts(sides, parts, "FLOPs")]
        yield CauseClaim("batch", parts, "all operations", text, evidence, facts)


def threads_or_libraries(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises fewer threads, slower processors or another library: all operations change."""
    libraries = _reasons(sides, "libraries")
    facts = (*libraries, *_reasons(sides, "threads"))
    parts = sides.operations_left
    if not facts or not parts or sides.by_work:
        return
    if sides.stands_out(parts, LIKELY) and _same_sign(sides, parts):
        # Gaps are included, because the number of threads limits how many operations can run
        # together.
        if GAPS in sides.free:
            parts = (*parts, GAPS)
        text = _slowdown_text(sides, parts)
        yield CauseClaim("threads", parts, "all operations", text, facts=facts)
        return
    # With fewer threads, some operations become faster, because threads wait less for each other.
    same = (part for part in parts if libraries or not _work_differs(sides, part))
    single = tuple(part for part in same if sides.stands_out([part]))
    if GAPS in sides.free and sides.stands_out([GAPS]):
        single = (*single, GAPS)
    if single:
        size = {part: abs(sides.times[part].difference) for part in single}
        named = sorted(single, key=lambda part: -size[part])
        place = first_few([f"{part.layer}, {part.kind}" for part in named], _MOST, "; ")
        yield CauseClaim("threads", single, place, _slowdown_text(sides, single), facts=facts)


def _same_sign(sides: ComparedProfiles, parts: Iterable[StepPartKey]) -> bool:
    """Whether the differences of parts mostly have the same sign, weighted by their size."""
    differences = [sides.times[part].difference for part in parts]
    return abs(sum(differences)) >= (2 * _DOMINATES - 1) * sum(map(abs, differences))


def precision(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises layers whose products are in another number format, such as float16."""
    layers = _by_layer(sides)
    layers_of_types: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for layer, parts in layers.items():
        before, after = map(_formats, sides.kernels(parts))
        if before and after and before != after:
            layers_of_types[", ".join(before), ", ".join(after)].append(layer)
    for types, named in layers_of_types.items():
        claimed = tuple(part for layer in named for part in layers[layer])
        if sides.stands_out(claimed, LIKELY):
            text = f"products are in {types[1]}, not in {types[0]}"
            a, b = (
                sum(n for name, n in kernels.items() if name.startswith("Cast"))
                for kernels in sides.kernels(sides.times)
            )
            evidence = [f"casts in a step: {a} in A, {b} in B"] if a != b else []
            place = _layers_text(sides, named, layers)
            yield CauseClaim("precision", claimed, place, text, evidence)


def unfused_batch_norm(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises batch norm that is a fused operation only in A or only in B, in layers that both
    networks have.

    Batch norm that is not fused consists of several operations with other types.
    """
    before = after = 0
    layers: dict[str, list[StepPartKey]] = {}
    for layer, parts in _by_layer(sides).items():
        both = sides.kernels(parts)
        fused = [sum(n for name, n in kernels.items() if _NORM.search(name)) for kernels in both]
        before, after = before + fused[0], after + fused[1]
        if all(both) and fused[0] != fused[1]:
            layers[layer] = [
                part
                for part in parts
                if _work_differs(sides, part) and not _have_products(sides, [part])
            ]
    claimed = list(itertools.chain(*layers.values()))
    if before != after and claimed and sides.stands_out(claimed, LIKELY):
        word = "is no longer fused" if after < before else "is fused"
        text = f"it {word}: {before} fused operations in A, {after} in B"
        place = f"batch norm of {_layers_text(sides, list(layers), layers)}"
        evidence = (_kernel_changes(sides, claimed),)
        yield CauseClaim("batch norm", _add_gaps(sides, tuple(claimed)), place, text, evidence)


def reduction(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that gradients are reduced more slowly, or by other operations."""
    parts = tuple(p for p in sides.free if p.direction == OUTSIDE and p.kind == REDUCTION)
    if not parts or _variable_parts(sides):
        return
    other = any(_work_differs(sides, part) for part in parts)
    if sides.stands_out(parts, LIKELY if other else CERTAIN):
        text = "gradients are reduced by other operations" if other else "gradients are reduced"
        evidence, facts = [_kernel_changes(sides, parts)], _reasons(sides, "reducing")
        parts = _add_gaps(sides, parts)
        yield CauseClaim("reduction", parts, "the reduction of gradients", text, evidence, facts)


def variable_operations(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that updates and copies of variables take longer in A or in B, unless the
    difference in the number of parameters may be the reason.
    """
    if not _variable_parts(sides):
        yield from variable_operations_left(sides)


def variable_operations_left(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that updates and copies of variables take longer in A or in B, even if the numbers
    of parameters differ.
    """
    parts = tuple(p for p in sides.free if p.direction == OUTSIDE and p.kind != REDUCTION)
    if not parts:
        return
    other = any(_work_differs(sides, part) for part in parts)
    if sides.stands_out(parts, LIKELY if other else CERTAIN):
        text = "other operations on variables" if other else "the same operations on variables"
        evidence = [_kernel_changes(sides, parts), *_ratio_texts(sides, parts, "bytes")]
        before, after = (
            {name for name in kernels if name.startswith("ResourceApply")}
            for kernels in sides.kernels(parts)
        )
        updates = before != after or _reasons(sides, "optimizer")
        place = "the optimizer's update" if updates else "updates and copies of variables"
        facts = _reasons(sides, "updating")
        yield CauseClaim("copies", _add_gaps(sides, parts), place, text, evidence, facts)


def added_layers(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises layers that only A or only B has."""
    parts_by_layer = _by_layer(sides)
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
        lacking = sides.alignment.only_in_b, sides.alignment.only_in_a
        more, less = (sum(layer.parameters for layer in side) for side in lacking)
        parts = (*parts, *_variable_parts(sides, more - less))
        evidence = only_texts if text else []
        yield CauseClaim("layers", parts, place, text or "; ".join(only_texts), evidence)


def changed_layers(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises layers whose variables have other shapes, such as a wider convolution."""
    parts_by_layer = _by_layer(sides)
    pairs = [
        (a, b)
        for a, b in sides.alignment.pairs
        if (a.shapes, a.parameters) != (b.shapes, b.parameters)
    ]
    own = {a.name: parts_by_layer[a.name] for a, _ in pairs if a.name in parts_by_layer}
    parts = tuple(part for parts_of_layer in own.values() for part in parts_of_layer)
    if not parts:
        return
    alone = (part for part in parts if sides.differs_from_others([part]))
    if sides.stands_out(parts, LIKELY) or any(alone):
        evidence = [
            f"{a.name}: {_shapes_text(a)} in A, {_shapes_text(b)} in B"
            for a, b in pairs[:_MOST_FURTHER]
        ]
        more = sum(b.parameters - a.parameters for a, b in pairs)
        changed = [a.name for a, _ in pairs if a.name in own]
        # Only the first layer was changed by the user; later layers differ because they receive its
        # new number of channels.
        first = next((a.name for a, _ in pairs if a.kind and a.name in own), changed[0])
        place = first_few([first, *(name for name in changed if name != first)], 1)
        evidence.append(_kernel_changes(sides, parts))
        evidence += _ratio_texts(sides, parts, "FLOPs", "bytes")
        claimed = (*parts, *_variable_parts(sides, more))
        yield CauseClaim("layers", claimed, place, "variables of another shape", evidence)


def _shapes_text(layer: ProfiledLayer) -> str:
    shapes = ", ".join("x".join(map(str, shape)) for shape in layer.shapes)
    return shapes or f"{layer.parameters} parameters"


def slower_layers(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises layers whose operations changed by more than the operations of other layers."""
    for layer, parts in _by_layer(sides).items():
        others = tuple(part for part in parts if _work_differs(sides, part))
        alike = (part for part in parts if part not in others)
        claimed = tuple(part for part in alike if sides.differs_from_others([part]))
        if others and sides.differs_from_others(others, LIKELY):
            claimed = (*others, *claimed)
        if not claimed:
            continue
        pairs = [(a, b) for a, b in sides.alignment.pairs if a.name == layer]
        place, evidence = layer, [f"{b.name} in B" for _, b in pairs if b.name != layer]
        total = sides.typical(claimed).difference
        largest = max(claimed, key=lambda part: abs(sides.times[part].difference))
        if abs(sides.times[largest].difference) >= _DOMINATES * abs(total):
            place += f", {_DIRECTIONS.get(largest.direction, largest.direction)}"
        evidence.append(_kernel_changes(sides, claimed))
        evidence += _ratio_texts(sides, claimed, "FLOPs", "bytes")
        kernels = sides.kernels(claimed)
        flops, moved = (sides.totals(name, claimed) for name in ("flops", "bytes"))
        if flops[0] != flops[1]:
            kind, text = "work", "other work to do"
        elif kernels[0] != kernels[1]:
            kind, text = "operations", "other operations for the same work"
        elif moved[0] != moved[1]:
            kind, text = "work", "the same operations on other amounts of data"
        else:
            kind, text = "kernel", "the same operations take another time"
        more = sum(b.parameters - a.parameters for a, b in pairs)
        claimed = (*claimed, *_variable_parts(sides, more))
        yield CauseClaim(kind, claimed, place, text, evidence)


def gaps(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that a step has more time in which no operation runs."""
    if GAPS in sides.free and sides.stands_out([GAPS]):
        text = "no operation runs between the first and the last of the step"
        yield CauseClaim("gaps", (GAPS,), "gaps between operations", text, is_effect=True)


def overall_slowdown(sides: ComparedProfiles) -> Iterator[CauseClaim]:
    """Recognises that all operations are slower or faster, for no reason in the records."""
    parts = sides.operations_left
    factors = sides.factors
    least = CERTAIN * factors.standard_error(_LOAD)
    stands_out = parts and factors.separated and abs(factors.difference) > least
    if stands_out and sides.stands_out(parts):
        text = _slowdown_text(sides, parts)
        claimed = (part for part in sides.times if part not in sides.free)
        is_effect = any(_work_differs(sides, part) for part in claimed)
        if is_effect:
            text += "; because of the other operations, or of another load or clock"
        elif not _machine_evidence(sides, parts):
            text += "; another load or clock, which records do not show"
        yield CauseClaim("everything", parts, "all operations", text, is_effect=is_effect)


Recogniser: TypeAlias = Callable[[ComparedProfiles], Iterable[CauseClaim]]

RECOGNISERS: tuple[Recogniser, ...] = (
    input_wait,
    program_time,
    other_network,
    batch_size,
    threads_or_libraries,
    precision,
    unfused_batch_norm,
    reduction,
    variable_operations,
    added_layers,
    changed_layers,
    slower_layers,
    variable_operations_left,
    gaps,
    overall_slowdown,
)
"""Functions that each recognise one kind of cause, in the order in which they claim parts."""


def _variable_parts(sides: ComparedProfiles, own: int | None = None) -> tuple[StepPartKey, ...]:
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
    return parts if sides.typical(parts).difference * more > 0 else ()


def _by_layer(sides: ComparedProfiles) -> dict[str, list[StepPartKey]]:
    if sides.alignment.too_different:
        return {}
    parts = (part for part in sides.operations_left if part.layer != REST)
    return group_by(parts, lambda part: part.layer)


def _have_products(sides: ComparedProfiles, parts: Collection[StepPartKey]) -> bool:
    """Whether the given parts of the step contain convolutions or matrix products in A or in B."""
    return any(map(_PRODUCT.search, itertools.chain(*sides.kernels(parts))))


def _formats(kernels: Iterable[str]) -> tuple[str, ...]:
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
    size = {name: abs(sides.typical(layers[name]).difference) for name in names}
    return first_few(sorted(names, key=lambda name: -size[name]), 1)


def _kernel_changes(sides: ComparedProfiles, parts: Collection[StepPartKey]) -> str:
    """Returns text with the change from A to B in the number of operations of each type:
    "operations of B: +2 Cast float32, -1 Relu".
    """
    before, after = sides.kernels(parts)
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
        kernels.total() for some in (sides.times, parts) for kernels in sides.kernels(some)
    )
    more, own = after - before, own_after - own_before
    if not more or abs(more) < _MORE * before or own / more < _DOMINATES:
        return parts
    return (*parts, GAPS) if more * sides.times[GAPS].difference > 0 else parts


def _ratio_texts(
    sides: ComparedProfiles, parts: Collection[StepPartKey], *amounts: str
) -> Iterator[str]:
    """Yields texts with the FLOPs or bytes of B relative to A, such as "1.500 times the FLOPs"."""
    for name in amounts:
        before, after = sides.totals(name.lower(), parts)
        if before and after and abs(after / before - 1) >= SMALLEST:
            yield f"{number(after / before)} times the {name}"


def _slowdown_text(sides: ComparedProfiles, parts: Iterable[StepPartKey]) -> str:
    base, new = sides.mean(parts).of_sides
    return f"they take {number(new / base)} times as long"


def _reasons(sides: ComparedProfiles, kind: str) -> tuple[str, ...]:
    """Returns texts about the flags and recorded properties of a kind in `FACTS_OF` that differ
    between A and B, such as "xla: false in A, true in B".
    """
    return possible_reasons(sides.a.profiles, sides.b.profiles, FACTS_OF[kind].split())
