"""What differs in the records of profiled processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import NONE, binary, integer, number
from cnnbench.judge.compare.comparability import Group, differences
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.metrics.measurement import readable_fact
from cnnbench.records.explanation import FactChange
from cnnbench.records.run import RunRecord
from cnnbench.records.step_profile import StepProfile

_SENDING = ("_Send", "_HostSend")
_PLACES = ("profile_json", "result_json")
_NOTICEABLE = 0.1  # of start-up times and memory, which vary


def changes_of(
    base: Sequence[StepProfile], new: Sequence[StepProfile], names: Iterable[str] = ()
) -> list[FactChange]:
    """Flags and facts of the environment that differ, flags that were given first.

    Args:
      base, new: processes of A and of B.
      names: only these; all if empty.
    """
    before, after = (
        Group(Configuration.of(side[0].record), tuple(one.record for one in side))
        for side in (base, new)
    )
    wanted = tuple(names)
    return [
        FactChange(fact=one.fact, base=_values(one.fact, one.base), new=_values(one.fact, one.new))
        for one in differences(before, after)
        if one.base != one.new and one.fact not in _PLACES and (not wanted or one.fact in wanted)
    ]


def measured_changes(
    base: Sequence[StepProfile], new: Sequence[StepProfile]
) -> Iterator[FactChange]:
    """Quantities of start-up, memory and the graph that differ."""
    for name, value, text, tolerance in _QUANTITIES:
        before, after = ([value(one) for one in side] for side in (base, new))
        known = [[one for one in side if one is not None] for side in (before, after)]
        if not all(known):
            continue
        least, most = sorted(map(median, known))
        apart = min(known[0]) > max(known[1]) or max(known[0]) < min(known[1])
        if apart and most > least * (1 + tolerance):
            texts = (text(median(one)) for one in known)
            yield FactChange(fact=name, base=next(texts), new=next(texts))


def text_of(change: FactChange) -> str:
    """A fact in words: "num_intra_threads: 2 in A, 1 in B"."""
    return f"{change.fact}: {change.base} in A, {change.new} in B"


def _values(name: str, values: Iterable[str]) -> str:
    return " or ".join(readable_fact(name, one) for one in values) or NONE


def _of_record(value: Callable[[RunRecord], float | None]) -> Callable[[StepProfile], float | None]:
    return lambda profile: value(profile.record)


def _seconds(value: float) -> str:
    return f"{number(value)} s"


_QUANTITIES: tuple[
    tuple[str, Callable[[StepProfile], float | None], Callable[[float], str], float], ...
] = (
    ("time to build", _of_record(lambda r: r.startup_seconds.build), _seconds, _NOTICEABLE),
    ("first step", _of_record(lambda r: r.startup_seconds.first_step), _seconds, _NOTICEABLE),
    ("peak memory", _of_record(lambda r: r.measured.peak_memory_bytes), binary, _NOTICEABLE),
    ("FLOPs of a step", lambda p: sum(row.flops for row in p.rows), number, 0.0),
    ("bytes moved in a step", lambda p: sum(row.bytes for row in p.rows), binary, 0.0),
    ("operations that run in a step", lambda p: _ran(p), integer, 0.0),
    ("operations in the optimized graph", lambda p: sum(p.graph.values()), integer, 0.0),
    (
        "tensors sent between devices",
        lambda p: sum(p.graph.get(name, 0) for name in _SENDING),
        integer,
        0.0,
    ),
)


def _ran(profile: StepProfile) -> float:
    return sum(sum(row.operations.values()) for row in profile.rows)
