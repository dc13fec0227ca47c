"""The content of the records that a report is about, sorted and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb, isfinite

from cnnbench.compare import Comparison, Policy, compare_records
from cnnbench.compare.comparability import Group
from cnnbench.compare.configuration import Configuration, labels
from cnnbench.compare.matching import groups
from cnnbench.metrics.origin import Origin, titles
from cnnbench.metrics.registry import HISTORY
from cnnbench.records.allreduce import AllReduceRecord
from cnnbench.records.codec import started
from cnnbench.records.load import Loaded, Skipped
from cnnbench.records.run import RunRecord
from cnnbench.records.steady_state import RunSteadyState, run_steady_state
from cnnbench.stats.descriptive import median
from cnnbench.stats.steady_state import Shape
from cnnbench.text.table import natural_key

CONFIDENCE = 0.95
"""At least, of the intervals."""


@dataclass(frozen=True, slots=True)
class Values:
    """Values of one quantity, one per process.

    Attributes:
      values: in order of the processes' start.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float | None:
        """Their median; None if there are none."""
        return median(self.values) if self.values else None

    @property
    def range(self) -> tuple[float, float] | None:
        """Smallest and largest; None if they are equal."""
        ends = (min(self.values), max(self.values)) if self.values else (0.0, 0.0)
        return ends if ends[0] < ends[1] else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """A confidence interval of the median; None if there are too few values for one."""
        return median_interval(self.values)

    @property
    def spread(self) -> float | None:
        """Width of the range as a share of the median; None for fewer than two values."""
        if len(self.values) < 2 or not self.median:
            return None
        return (max(self.values) - min(self.values)) / self.median


def median_interval(
    values: Iterable[float], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """The interval of order statistics that covers the median with this confidence.

    It inverts the sign test, so it holds for every distribution (Hollander and Wolfe,
    Nonparametric Statistical Methods, section 3.6). Six values are the fewest for 95 %.

    Args:
      values: independent ones.
      confidence: at least so much.
    """
    ordered = sorted(values)
    count = len(ordered)
    tail, outside = 0, 0
    while outside < count:
        tail += comb(count, outside)
        if 2 * tail > (1 - confidence) * 2**count:
            break
        outside += 1
    return (ordered[outside - 1], ordered[count - outside]) if outside else None


@dataclass(frozen=True, eq=False)
class Configured:
    """A configuration of one origin with all of its processes.

    Attributes:
      name: in a few words, unique.
      group: its flags and records, in order of their start.
      origin: of all of its records.
    """

    name: str
    group: Group
    origin: Origin
    _samples: dict[str | Callable[[RunRecord], float | None], Values] = field(
        default_factory=dict, repr=False
    )

    @property
    def configuration(self) -> Configuration:
        """The flags."""
        return self.group.configuration

    @cached_property
    def records(self) -> tuple[RunRecord, ...]:
        """All of its runs, failed ones too."""
        return tuple(one for one in self.group.records if isinstance(one, RunRecord))

    @cached_property
    def good(self) -> tuple[RunRecord, ...]:
        """Its runs that succeeded; all values are of these."""
        return tuple(record for record in self.records if record.status == "ok")

    def sample(self, value: str | Callable[[RunRecord], float | None]) -> Values:
        """One finite value of each run that succeeded and has one.

        Args:
          value: of a run, or the name of a metric in `cnnbench.metrics.registry.HISTORY`.
        """
        if value not in self._samples:
            of = HISTORY[value].value if isinstance(value, str) else value
            found = (of(record) for record in self.good)
            self._samples[value] = Values(tuple(v for v in found if v is not None and isfinite(v)))
        return self._samples[value]

    @property
    def throughput(self) -> Values:
        """Images/sec, as `cnnbench compare` takes it."""
        return self.sample("throughput")

    @cached_property
    def steady_states(self) -> tuple[RunSteadyState, ...]:
        """Whether the steps of each run that has enough of them were steady."""
        found = map(run_steady_state, self.good)
        return tuple(state for state in found if state.series.shape is not Shape.TOO_SHORT)

    def flag(self, name: str) -> object:
        """The resolved value of a flag."""
        return self.configuration.flags.get(name)

    @property
    def model(self) -> str:
        """Name of the network."""
        return str(self.flag("model"))

    @property
    def family(self) -> str:
        """Network and data set, a chart each."""
        data = self.flag("data_name")
        return self.model if data in (None, "imagenet") else f"{self.model}, {data}"

    @property
    def variant(self) -> str:
        """The name without the family."""
        return self.name.removeprefix(f"{self.family}, ")

    @property
    def devices(self) -> int | None:
        """Devices of the whole job; None if no run got that far."""
        placed = [one.placement for one in self.records if one.placement is not None]
        return len(placed[0].devices) if placed else None

    @property
    def device(self) -> str:
        """Kind of device."""
        return str(self.flag("device"))


def configurations(records: Iterable[RunRecord]) -> tuple[Configured, ...]:
    """The configurations of some runs, in order of their names, numbers in them by value.

    Each is there once for every origin that its runs have, A before B, else in order of their
    first.
    """
    (found,) = groups(records)
    names = labels(group.configuration for group in found)
    configured = []
    for group in sorted(found, key=lambda one: natural_key(names[one.configuration.key])):
        origins = group.origins()
        details = titles(origins)
        for origin, runs in sorted(origins.items(), key=lambda found: found[0].side):
            name = ", ".join(filter(None, (names[group.configuration.key], details[origin])))
            configured.append(Configured(name, Group(group.configuration, tuple(runs)), origin))
    return tuple(configured)


def by_family(configured: Iterable[Configured]) -> dict[str, list[Configured]]:
    """Configurations by network and data set."""
    found: dict[str, list[Configured]] = {}
    for one in configured:
        found.setdefault(one.family, []).append(one)
    return found


@dataclass(frozen=True, kw_only=True)
class Results:
    """The subject of a report.

    Attributes:
      configured: the configurations with their runs.
      allreduces: all-reduce measurements, by their start.
      skipped: files that gave no record.
      comparison: with the baseline; None if there is none.
    """

    configured: tuple[Configured, ...]
    allreduces: tuple[AllReduceRecord, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    comparison: Comparison | None = None

    @property
    def runs(self) -> list[RunRecord]:
        """All runs, by their start."""
        found = [record for one in self.configured for record in one.records]
        return sorted(found, key=lambda record: started(record.started_at))

    @property
    def processes(self) -> list[tuple[str, RunRecord | AllReduceRecord]]:
        """Records with the names of their configurations: runs, then all-reduces."""
        names = {record.run_id: one.name for one in self.configured for record in one.records}
        return [
            *((names[run.run_id], run) for run in self.runs),
            *(("all-reduce", one) for one in self.allreduces),
        ]


def gather(
    loaded: Loaded,
    baseline: Loaded | None = None,
    *,
    policy: Policy | None = None,
    allow_different: Sequence[str] = (),
    labels: tuple[str, str] = ("BASE", "NEW"),
) -> Results:
    """Sorts records by configuration, and compares them with a baseline.

    Args:
      loaded: the subject of the report.
      baseline: runs and reductions to compare with.
      policy: of the comparison.
      allow_different: facts that may differ.
      labels: names of the baseline and of the records.
    """
    comparison = None
    if baseline is not None:
        # A baseline of runs has nothing to compare reductions with.
        reduced = loaded.allreduces if baseline.allreduces else ()
        comparison = compare_records(
            baseline.everything,
            (*loaded.records, *reduced),
            policy or Policy(),
            allow_different=allow_different,
            base_label=labels[0],
            new_label=labels[1],
            skipped=baseline.skipped,
        )
    return Results(
        configured=configurations(loaded.records),
        allreduces=tuple(sorted(loaded.allreduces, key=lambda one: started(one.started_at))),
        skipped=loaded.skipped,
        comparison=comparison,
    )


def time_text(started_at: str) -> str:
    """A start for people: UTC without its offset."""
    return started(started_at).strftime("%Y-%m-%d %H:%M:%S")
