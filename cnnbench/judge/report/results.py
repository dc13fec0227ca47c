"""Sorts and compares the records of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from math import isfinite
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from cnnbench.base.document import TableCell, interval_cell
from cnnbench.base.stats import ProcessValues, group_by
from cnnbench.base.terminal import natural_key
from cnnbench.base.text import integer
from cnnbench.base.time_series import SeriesShape, SteadyState
from cnnbench.judge.compare import Comparison, Policy, Verdict, compare_records
from cnnbench.judge.compare.comparability import (
    compared_commit_lookup,
    compared_commit_text,
    group_by_configuration,
    match_complete_pairs,
    pair_id_of,
)
from cnnbench.judge.compare.compare import PlanOf
from cnnbench.judge.compare.configuration import Configuration, unique_configuration_names
from cnnbench.judge.metrics import Machine, Measurement, Origin, origin_titles
from cnnbench.judge.metrics.rules import Rules
from cnnbench.machine.repository import sort_by_place
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.campaigns import StrategiesDocument, TuneDocument
from cnnbench.records.codec import dataclass_from_sources, started
from cnnbench.records.metric import HISTORY
from cnnbench.records.profiles import Roofline, StepProfile
from cnnbench.records.result_files import Loaded, Study
from cnnbench.records.run import RunRecord, find_steady_state_of_run

MOST_SHOWN = 60
"""Maximum number of configurations (once per origin) with a row in every section of a page."""

MOST_DRAWN = 24
"""Maximum number of configurations in a chart, and of charts in a section."""

MOST_LISTED = 300
"""Maximum number of rows in tables with a row for each process."""

_USUAL = ("imagenet", "training")
"""The default data set and work, which names of families omit."""

S = TypeVar("S", Roofline, StrategiesDocument)


def interval_cells(values: ProcessValues) -> dict[str, TableCell]:
    """The cells with the interval and the range of values."""
    return {values.INTERVAL: interval_cell(values.interval), "range": interval_cell(values.range)}


@dataclass(frozen=True, eq=False)
class RunGroup:
    """All runs of one configuration and origin that were compared with the same commit.

    Attributes:
      opponent: the commit that its runs were compared with, shortened, or "".
      order: sort key: natural order of configurations, side, then the revisions in order.
    """

    name: str
    configuration: Configuration
    records: tuple[RunRecord, ...]
    origin: Origin
    opponent: str = ""
    order: tuple[Any, ...] = ()
    _samples: dict[str | Callable[[RunRecord], float | None], ProcessValues] = field(
        default_factory=dict, repr=False
    )

    @cached_property
    def good(self) -> tuple[RunRecord, ...]:
        """Successful runs. All values are computed from them."""
        return tuple(record for record in self.records if record.status == "ok")

    def sample(self, value: str | Callable[[RunRecord], float | None]) -> ProcessValues:
        """Finite values of successful runs. A function, or a name in `HISTORY`, computes the
        value.
        """
        if value not in self._samples:
            of = HISTORY[value].values if isinstance(value, str) else partial(map, value)
            finite = (v for v in of(self.good) if v is not None and isfinite(v))
            self._samples[value] = ProcessValues(tuple(finite))
        return self._samples[value]

    @property
    def peak_source(self) -> str:
        """The source of the peak FLOP/s of the group's runs."""
        return "; ".join(sorted({run.measured.peak_flops_source or "" for run in self.good} - {""}))

    @property
    def throughput(self) -> ProcessValues:
        """Images/sec, as `cnnbench compare` computes it."""
        return self.sample("throughput")

    @cached_property
    def steady_states(self) -> tuple[SteadyState, ...]:
        """Steady states of the runs with enough steps."""
        states = map(find_steady_state_of_run, self.good)
        return tuple(state for state in states if state.shape is not SeriesShape.TOO_SHORT)

    @property
    def is_unsteady(self) -> bool:
        """Whether the timed steps of at least one run were not all steady."""
        return any(state.unsteady_timed_steps != 0 for state in self.steady_states)

    @cached_property
    def latest(self) -> datetime:
        """Start of the group's last run, in UTC."""
        return max(started(record.started_at) for record in self.records)

    def flag(self, name: str) -> object:
        """The resolved value of a flag."""
        return self.configuration.flags.get(name)

    @property
    def model(self) -> str:
        """Name of the network, or of an imported benchmark."""
        return str(self.flag("model") or self.flag("benchmark"))

    @property
    def work(self) -> str:
        """ "training", "inference" or "evaluation". Speeds of different kinds are not compared."""
        if self.flag("forward_only"):
            return "inference"
        return "evaluation" if self.flag("eval") else "training"

    @property
    def family(self) -> str:
        """Network, data set and kind of work. There is a chart for each such family."""
        further = (str(self.flag("data_name") or "imagenet"), self.work)
        return ", ".join((self.model, *(part for part in further if part not in _USUAL)))

    @property
    def devices(self) -> int | None:
        """Devices of the whole job; None if unknown."""
        placed = [record.placement for record in self.records if record.placement is not None]
        return len(placed[0].devices) if placed else None

    @property
    def device(self) -> str:
        """Kind of device."""
        return str(self.flag("device"))


def group_configurations(
    records: Iterable[RunRecord],
    beside: Iterable[RunRecord] = (),
    order: Mapping[str, int] | None = None,
) -> tuple[RunGroup, ...]:
    """Groups runs by configuration and origin. The groups are sorted by `RunGroup.order`.

    The processes of a commit that was compared with several others, such as GOOD of a bisection,
    are not pooled: it has one entry per opponent.

    Args:
      beside: other runs whose measured peaks count, see `with_highest_peaks`.
      order: places of commits; others follow the one before them in time. None for the order of
        time.
    """
    (grouped_runs,) = group_by_configuration(with_highest_peaks([*records], beside))
    names = unique_configuration_names(group.configuration for group in grouped_runs)
    measured = {
        group.configuration.key: [
            _PairedRecord(record, origin, started(record.started_at), pair_id_of(record))
            for origin, members in group.origins().items()
            for record in members
        ]
        for group in grouped_runs
    }
    in_time = sorted((record for members in measured.values() for record in members), key=_START)
    opponent = compared_commit_lookup(match_complete_pairs(in_time))
    origins = dict.fromkeys(record.origin for record in in_time)
    ordered = sort_by_place([*origins], lambda origin: (order or {}).get(origin.revision))
    places = {origin: place for place, origin in enumerate(ordered)}
    configured = []
    for group in grouped_runs:
        members = measured[group.configuration.key]
        name = names[group.configuration.key]
        details = origin_titles(record.origin for record in members)
        pooled = group_by(members, lambda record: (record.origin, opponent(record)))
        several = Counter(origin for origin, _ in pooled)
        for (origin, other), paired in pooled.items():
            detail = compared_commit_text(other) if several[origin] > 1 else ""
            first = min(map(_START, paired))
            configured.append(
                RunGroup(
                    name=", ".join(filter(None, (name, details[origin], detail))),
                    configuration=group.configuration,
                    records=tuple(o.record for o in paired if isinstance(o.record, RunRecord)),
                    origin=origin,
                    opponent=other,
                    order=(natural_key(name), origin.side, places[origin], first),
                )
            )
    return tuple(sorted(configured, key=lambda group: group.order))


class _PairedRecord(NamedTuple):
    record: Measurement
    origin: Origin
    started: datetime
    pair: tuple[int, int] | None


_START = attrgetter("started")


def peak(run: RunRecord) -> float | None:
    """FLOP/s of all devices."""
    return run.measured.peak_flops_per_sec


def with_highest_peaks(
    runs: Sequence[RunRecord], beside: Iterable[RunRecord] = ()
) -> list[RunRecord]:
    """Replaces measured peaks by the highest peak on the same machine in the same number format.

    Load can only reduce a measured peak. Peaks that users set, and published peaks, are not
    changed.
    """

    def place(run: RunRecord) -> tuple[Machine, str] | None:
        known = peak(run) and (run.measured.peak_flops_source or "").startswith("measured")
        return (Origin.of(run).machine, str(run.config.get("precision"))) if known else None

    chosen, alike = [], group_by((*runs, *beside), place)
    for run in runs:
        if (where := place(run)) and (others := alike[where])[1:]:
            best = max(peak(run) or 0.0 for run in others)
            kind = (run.measured.peak_flops_source or "").rpartition(" ")[2]
            source = f"measured: {kind}, the highest of {len(others)} processes"
            measured = replace(run.measured, peak_flops_per_sec=best, peak_flops_source=source)
            run = replace(run, measured=measured)
        chosen.append(run)
    return chosen


def split_names(names: Sequence[Sequence[str]], separator: str = ", ") -> tuple[str, list[str]]:
    """Splits names. Returns the parts that all names have in common, joined, and the other parts of
    each.
    """
    shared = [part for part in names[0] if all(part in name for name in names)]
    own = [[part for part in name if part not in shared] for name in names]
    if not all(own):
        shared, own = [], [list(name) for name in names]
    return separator.join(shared), [separator.join(parts) for parts in own]


def distinct_names(members: Sequence[RunGroup]) -> tuple[str, list[str]]:
    """Splits the names of configurations with `split_names`. Adds precisions that differ."""
    parts = [group.name.split(", ") for group in members]
    formats = [str(group.flag("precision")) for group in members]
    for own, format in zip(parts, formats, strict=True):
        # Names omit the default precision.
        own += [format] if len(set(formats)) > 1 and format not in own else []
    return split_names(parts)


def newest_groups(
    configured: Sequence[RunGroup], most: int, first: Container[str] = ()
) -> list[RunGroup]:
    """At most `most` groups, in order. Keys in `first` have priority, then the newest groups."""
    order = sorted(configured, key=lambda group: (group.configuration.key in first, group.latest))
    chosen = {*order[-most:]}
    return [group for group in configured if group in chosen]


def shown_count_text(shown: int, total: int) -> str:
    """Text that says how many items are shown: ", the newest 24 of 60"; "" if all are shown."""
    return f", the newest {shown} of {integer(total)}" if shown < total else ""


@dataclass(frozen=True, kw_only=True)
class ReportSubject(Loaded):
    """Everything that a report is about. Studies are results of several processes, or of a profiled
    process.

    Attributes:
      configured: the records by configuration and origin.
      earlier: configurations that only a list of a page names, see `bounded`.
      comparison: the verdicts; None without.
    """

    configured: tuple[RunGroup, ...]
    earlier: tuple[RunGroup, ...] = ()
    comparison: Comparison | None = None

    def bounded(self) -> ReportSubject:
        """A copy with at most `MOST_SHOWN` configurations. Changed ones have priority, then the
        newest.
        """
        entries = () if self.comparison is None else self.comparison.entries
        changed = {
            entry.configuration.key for entry in entries if entry.main.verdict is not Verdict.SAME
        }
        shown = newest_groups(self.configured, MOST_SHOWN, changed)
        earlier = tuple(group for group in self.configured if group not in {*shown})
        return replace(self, configured=tuple(shown), earlier=earlier)

    @cached_property
    def rooflines(self) -> tuple[Roofline, ...]:
        """The profiled processes, with one peak for each machine and number format."""
        studies = []
        for study in self.studies:
            if isinstance(study, Roofline):
                group = self.profiled[study.run.run_id]
                highest = max(group.sample(peak).values, default=study.machine.flops_per_sec)
                studies.append(study.with_peak_rate(highest, group.peak_source))
        return tuple(studies)

    @property
    def strategies(self) -> tuple[StrategiesDocument, ...]:
        """The comparisons of modes."""
        return tuple(study for study in self.studies if isinstance(study, StrategiesDocument))

    @property
    def tunings(self) -> tuple[TuneDocument, ...]:
        """The searches of flags."""
        return tuple(study for study in self.studies if isinstance(study, TuneDocument))

    @cached_property
    def profiled(self) -> Mapping[str, RunGroup]:
        """The group of each profiled process by run_id. Groups contain only profiled runs."""
        profiled_groups = group_configurations(profiled_runs(self.studies), self.runs)
        return {record.run_id: group for group in profiled_groups for record in group.records}

    @property
    def runs(self) -> list[RunRecord]:
        """All runs, sorted by start time."""
        records = [record for group in self.configured for record in group.records]
        return sorted(records, key=lambda record: started(record.started_at))

    @property
    def processes(self) -> list[tuple[str, RunRecord | AllReduceRecord]]:
        """Records with the names of their configurations: runs, all-reduces, profiled runs."""
        names = {record.run_id: group.name for group in self.configured for record in group.records}
        profiled = [run for run in profiled_runs(self.studies) if run.run_id not in names]
        return [
            *((names[run.run_id], run) for run in self.runs),
            *(("all-reduce", record) for record in self.allreduces),
            *((f"{self.profiled[run.run_id].name}, profiled", run) for run in profiled),
        ]


def profiled_runs(studies: Iterable[Study]) -> list[RunRecord]:
    """The records of processes with rooflines or step profiles."""
    runs_of_rooflines = {
        study.run.run_id: study.run for study in studies if isinstance(study, Roofline)
    }
    profiles = (study.record for study in studies if isinstance(study, StepProfile))
    return list({**{run.run_id: run for run in profiles}, **runs_of_rooflines}.values())


def gather(
    loaded: Loaded,
    baseline: Loaded | None = None,
    *,
    policy: Policy | None = None,
    allow_different: Sequence[str] = (),
    labels: tuple[str, str] = ("BASE", "NEW"),
    comparison: Comparison | None = None,
    order: Mapping[str, int] | None = None,
    plan: PlanOf | None = None,
    rules: Rules | None = None,
) -> ReportSubject:
    """Sorts records by configuration, and compares them with a baseline.

    `plan` says how further pairs are judged, and `rules` how configurations are. `comparison` is
    that of the experiment that the records belong to, instead of a baseline. For `order` see
    `group_configurations`.
    """
    if baseline is not None:
        # All-reduces are compared only if the baseline contains all-reduces.
        reduced = loaded.allreduces if baseline.allreduces else ()
        comparison = compare_records(
            baseline.all_records,
            (*loaded.records, *reduced),
            policy or Policy(),
            allow_different=allow_different,
            plan=plan,
            rules=rules,
            base_label=labels[0],
            new_label=labels[1],
            skipped=baseline.skipped,
        )
    return dataclass_from_sources(
        ReportSubject,
        loaded,
        allreduces=tuple(sorted(loaded.allreduces, key=lambda record: started(record.started_at))),
        configured=group_configurations(loaded.records, profiled_runs(loaded.studies), order),
        comparison=comparison,
    )


def add_start_times(named: Iterable[tuple[str, S]]) -> list[tuple[str, S]]:
    """Adds the start time to names that occur more than once."""
    named = list(named)
    taken = Counter(name for name, _ in named)
    return [
        (f"{name}, {start_time_text(document.started_at)}" if taken[name] > 1 else name, document)
        for name, document in named
    ]


def start_time_text(started_at: str) -> str:
    """A start time for people: UTC without the offset."""
    return started(started_at).strftime("%Y-%m-%d %H:%M:%S")
