"""Facts that differ between two sets of runs, and whether they block a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cnnbench.base.text.messages import nearest
from cnnbench.errors import FlagError
from cnnbench.flags import FLAGS
from cnnbench.judge.compare.configuration import Configuration
from cnnbench.judge.metrics.comparable_facts import (
    FACTS,
    FLAG,
    FLAG_PLACE,
    GROUPS,
    PLACES,
    Absent,
    Fact,
    Role,
    allowed,
    fact,
)
from cnnbench.judge.metrics.measurement import (
    MeasuredReduction,
    Measurement,
    Origin,
    environment_facts,
    fact_text,
    readable_fact,
    subject_facts,
    varying,
)
from cnnbench.judge.metrics.registry import Metric
from cnnbench.records.run import RunRecord


@dataclass(frozen=True)
class Difference:
    """A fact that has more than one value over the runs of both sides.

    Attributes:
      fact: name of the fact.
      base, new: values in the runs of BASE and of NEW, as text; "unknown" or "none" where a run
        lacks it.
      blocks: whether the difference forbids a verdict.
      reason: why it does, or does not.
    """

    fact: str
    base: tuple[str, ...]
    new: tuple[str, ...]
    blocks: bool
    reason: str

    @property
    def lacks(self) -> bool:
        """Whether a run may lack the fact."""
        absent = {one.value for one in Absent}
        return not absent.isdisjoint((*self.base, *self.new))

    def __str__(self) -> str:
        return unlike_text(self.fact, self.base, self.new)


@dataclass(frozen=True, eq=False)
class Group:
    """The measurements of one configuration on one side, one per process."""

    configuration: Configuration
    records: tuple[Measurement, ...]

    @property
    def good(self) -> tuple[Measurement, ...]:
        """Measurements that succeeded, from which all values are taken."""
        return tuple(record for record in self.records if record.status == "ok")

    def values(self, metric: Metric) -> tuple[float, ...]:
        """Values of the runs that succeeded and measured the metric."""
        found = map(metric.value, self.good)
        return tuple(value for value in found if value is not None)

    def origins(self) -> dict[Origin, list[Measurement]]:
        """Runs by origin, in order of the first run of each."""
        found: dict[Origin, list[Measurement]] = {}
        for record in self.records:
            found.setdefault(Origin.of(record), []).append(record)
        return found

    def mixture(self) -> str | None:
        """The difference between runs that forbids pooling them, or None."""
        parts = varying(self.origins())
        if not parts:
            return None
        return ", ".join(f"{name} is {' or '.join(texts)}" for name, texts in parts.items())

    def facts(self) -> dict[str, frozenset[str]]:
        """Values of every fact over the runs, including a word for runs that lack it."""
        seen: dict[str, list[str]] = {}
        for record in self.records:
            for name, value in _facts(record):
                seen.setdefault(name, []).append(value)
        found = {
            name: frozenset(values)
            | (frozenset() if len(values) == len(self.records) else {fact(name).absent.value})
            for name, values in seen.items()
        }
        flags = {
            name: frozenset([fact_text(value)])
            for name, value in self.configuration.flags.items()
            if name not in PLACES
        }
        return {**flags, **found}


def differences(base: Group, new: Group, patterns: tuple[str, ...] = ()) -> tuple[Difference, ...]:
    """Facts that differ, those that block a verdict first; those of `patterns` never do."""
    sides = (base.facts(), new.facts())
    flags = {*base.configuration.flags, *new.configuration.flags}
    unlike_flags = set(base.configuration.differing(new.configuration))
    found = []
    for name in dict.fromkeys((*sides[0], *sides[1])):
        if name in unlike_flags:
            rule = FLAG
        elif name in PLACES:
            rule = FLAG_PLACE
        elif name in flags:
            continue
        else:
            rule = fact(name)
        absent = frozenset([rule.absent.value])
        values = [side.get(name, absent) for side in sides]
        one = _difference(name, rule, values, allowed(name, patterns))
        if one is not None:
            found.append(one)
    given = {flag for one in (*base.records, *new.records) for flag in one.explicit_flags}
    # Flags that were given before those that follow from them.
    return tuple(sorted(found, key=lambda one: (not one.blocks, one.fact not in given)))


def unlike_text(name: str, base: tuple[str, ...], new: tuple[str, ...]) -> str:
    """A fact with its values on both sides: "cpu_model is A in BASE and B in NEW"."""
    before, after = (" or ".join(readable_fact(name, one) for one in side) for side in (base, new))
    if base == new:
        return f"{name} is {before} within each side"
    return f"{name} is {before} in BASE and {after} in NEW"


def check_facts(names: Iterable[str], measured: Iterable[Measurement]) -> None:
    """Raises a FlagError for one of `unknown_facts` in --allow_different."""
    for name, close in unknown_facts(names, measured).items():
        hint = f"did you mean {close}?" if close else "cnnbench env names the facts"
        raise FlagError("allow_different", name, f"no such fact; {hint}")


def unknown_facts(names: Iterable[str], measured: Iterable[Measurement]) -> dict[str, str]:
    """The names that match no fact, flag or group, each with the most similar known name or ""."""
    flags = (spec.name for spec in FLAGS)
    own = (name for one in measured for name in (*one.config, *dict(_facts(one))))
    known = sorted({*FACTS, *GROUPS, *flags, *own})
    unknown = [name for name in names if not any(allowed(one, (name,)) for one in known)]
    return {name: nearest(name, known) for name in unknown}


def _difference(
    name: str, rule: Fact, values: Sequence[frozenset[str]], may_differ: bool
) -> Difference | None:
    both = values[0] | values[1]
    if rule.role is Role.IGNORED or len(both) < 2:
        return None
    certain = len(both - {Absent.UNKNOWN.value}) > 1
    if not certain and rule.role is not Role.BLOCKS:
        return None
    base, new = (tuple(sorted(side)) for side in values)
    blocks = rule.role is Role.BLOCKS and certain and not may_differ
    return Difference(name, base, new, blocks, rule.reason)


def _facts(record: Measurement) -> Iterator[tuple[str, str]]:
    if isinstance(record, MeasuredReduction):
        yield from record.facts
    else:
        yield from _run_facts(record)
    for name in PLACES:
        if record.config.get(name):
            yield name, str(record.config[name])


def _run_facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    yield from environment_facts(record.environment)
    yield from subject_facts(record.subject)
    if record.model is not None:
        yield "model_parameters", str(record.model.parameters)
        yield "model_trainable_parameters", str(record.model.trainable_parameters)
        yield "model_forward_flops", str(record.model.forward_flops_per_image)
        yield "model_training_flops", str(record.model.training_flops_per_image)
    if record.batch is not None:
        yield "global_batch", str(record.batch.global_)
    if record.placement is not None:
        yield "num_workers", str(record.placement.num_workers)
        yield "all_reduce", ",".join(record.placement.all_reduce) or "none"
