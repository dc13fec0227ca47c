"""Groups the records of a report by configuration and origin, and compares them with a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from math import isfinite
from operator import attrgetter
from statistics import fmean
from typing import Any

from cnnbench.base.document import TableCell, interval_cell
from cnnbench.base.notebook import Displayed, short_repr
from cnnbench.base.stats import CONFIDENCE, ValuesByProcess, group_by, mean_interval
from cnnbench.base.steady_state import SeriesShape, SteadyState
from cnnbench.base.tables import natural_key
from cnnbench.base.text import count_text, format_interval, integer, number, percent
from cnnbench.judge.compare import Comparison, Criteria, Verdict, compare_records
from cnnbench.judge.compare.configuration import Configuration, unique_names
from cnnbench.judge.compare.facts import UNKNOWN
from cnnbench.judge.compare.matching import (
    MeasuredProcess,
    compared_commit_lookup,
    compared_commit_text,
    group_by_configuration,
    match_complete_pairs,
    pair_id_of,
)
from cnnbench.judge.metrics.measurement import Measurement
from cnnbench.judge.metrics.origin import Machine, Origin, origin_titles
from cnnbench.machine.repository import sort_by_optional_place
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.campaigns import TuneDocument
from cnnbench.records.codec import dataclass_from_sources, parse_start_time
from cnnbench.records.explanation import Explanation
from cnnbench.records.load import Loaded, Study
from cnnbench.records.metric import HISTORY
from cnnbench.records.profiles import StepProfile
from cnnbench.records.roofline import Roofline
from cnnbench.records.run import RunRecord, find_steady_state_of_run, single_speed_text

MOST_SHOWN = 60
"""Maximum number of configurations with a row in every section of a page. A configuration with
several origins counts once for each origin.
"""

MOST_DRAWN = 24
"""Maximum number of configurations in a chart, and of charts in a section."""

MOST_LISTED = 300
"""Maximum number of rows in a table that has a row for each process."""

_USUAL = ("imagenet", "training")
"""The default data set and the default kind of work, which are omitted from names."""

_DEFAULT = Criteria()


def interval_cells(values: ValuesByProcess) -> dict[str, TableCell]:
    """Returns the cells with the interval of the median, and with the range of the values."""
    interval = interval_cell(values.interval, why="too few processes for an interval")
    return {values.INTERVAL: interval, "range": interval_cell(values.range)}


def speed_and_certainty(
    speeds: Sequence[float], *, imported: bool = False, is_job: bool = False
) -> tuple[str, str]:
    """Returns the mean speed of processes as text, and how certain it is: the 95 % interval over
    the processes, or why there is none. `speeds` are in images per second. `imported` is whether
    another program measured the processes, so that cnnbench cannot repeat them. `is_job` is whether
    each speed is that of a job of several processes.
    """
    plural = "jobs" if is_job else "processes"
    if not speeds:
        return "no speed", "no process has timed steps"
    mean, interval = fmean(speeds), mean_interval(speeds, CONFIDENCE)
    if interval is not None:
        low, high = interval
        certainty = (
            f"mean of {len(speeds)} {plural}, {ValuesByProcess.INTERVAL} "
            f"{format_interval(max(low, 0.0), high)} (+/- {percent((high - mean) / mean)})"
        )
    elif len(speeds) == 1:
        certainty = single_speed_text(is_job, imported)
    else:
        certainty = f"mean of two {plural}, {number(min(speeds))} and {number(max(speeds))}; an "
        certainty += "interval needs three"
    return f"{number(mean)} images/sec", certainty


@dataclass(frozen=True, eq=False)
class RunGroup:
    """The runs of one configuration with the same origin (code, TensorFlow version, machine) that
    were compared with the same commit.

    Attributes:
      opponent: the shortened commit that the runs were compared with; "" if there is none.
      order: sort key: name of the configuration, side A or B, then the position of the revision.
    """

    name: str
    configuration: Configuration
    records: tuple[RunRecord, ...]
    origin: Origin
    opponent: str = ""
    order: tuple[Any, ...] = ()
    _samples: dict[str | Callable[[RunRecord], float | None], ValuesByProcess] = field(
        default_factory=dict, repr=False
    )

    @cached_property
    def successful(self) -> tuple[RunRecord, ...]:
        """The successful runs. Values are computed only from successful runs."""
        return tuple(record for record in self.records if record.status == "ok")

    def process_values(self, value: str | Callable[[RunRecord], float | None]) -> ValuesByProcess:
        """Returns the finite values of the successful runs. `value` is the name of a metric in
        `HISTORY`, or a function of a run.
        """
        if value not in self._samples:
            of = HISTORY[value].values if isinstance(value, str) else partial(map, value)
            finite = (v for v in of(self.successful) if v is not None and isfinite(v))
            self._samples[value] = ValuesByProcess(tuple(finite))
        return self._samples[value]

    def use_speeds(self, speeds: Mapping[str, float]) -> None:
        """Replaces the throughputs of the runs, if `speeds` (by run_id) contains all of them."""
        own = [speeds.get(run.run_id) for run in self.successful]
        if None not in own:
            self._samples["throughput"] = ValuesByProcess(tuple(v for v in own if v is not None))

    @property
    def peak_source(self) -> str:
        """Text that says where the peak FLOP/s of the runs come from, such as a measurement."""
        return "; ".join(
            sorted({run.measured.peak_flops_source or "" for run in self.successful} - {""})
        )

    @property
    def throughput(self) -> ValuesByProcess:
        """Images per second of each successful run, computed as in `cnnbench compare`."""
        return self.process_values("throughput")

    @cached_property
    def raw_speeds(self) -> tuple[float, ...]:
        """Images per second of each successful run over all its timed steps. Unlike `throughput`,
        it does not depend on the other runs, because no disturbances are removed.
        """
        speeds = map(HISTORY["throughput"].value, self.successful)
        return tuple(speed for speed in speeds if speed is not None)

    @property
    def is_job(self) -> bool:
        """Whether a run of the group is a job of several processes."""
        return any(run.cluster is not None for run in self.records)

    @cached_property
    def steady_states(self) -> tuple[SteadyState, ...]:
        """The steady state of each successful run that has enough steps."""
        states = map(find_steady_state_of_run, self.successful)
        return tuple(state for state in states if state.shape is not SeriesShape.TOO_SHORT)

    @property
    def is_unsteady(self) -> bool:
        """Whether, in at least one run, some of the timed steps were not in a steady state."""
        return any(state.unsteady_timed_steps != 0 for state in self.steady_states)

    @cached_property
    def latest(self) -> datetime:
        """Start time of the last run, in UTC."""
        return max(parse_start_time(record.started_at) for record in self.records)

    def flag(self, name: str) -> object:
        """Returns the resolved value of a flag, which is equal for all runs; None if unknown."""
        return self.configuration.flags.get(name)

    @property
    def model(self) -> str:
        """Name of the network, or "unknown"."""
        return str(self.flag("model") or UNKNOWN)

    @property
    def precision(self) -> str:
        """Number format of the run: the value of --precision, or "unknown"."""
        return str(self.flag("precision") or UNKNOWN)

    @property
    def work_kind(self) -> str:
        """The kind of work: "training", "inference" or "evaluation". Speeds of different kinds are
        not compared.
        """
        if self.flag("forward_only"):
            return "inference"
        return "evaluation" if self.flag("eval") else "training"

    @property
    def workload(self) -> str:
        """Text with network, data set and kind of work, for which there is one chart."""
        further = (str(self.flag("data_name") or "imagenet"), self.work_kind)
        return ", ".join((self.model, *(part for part in further if part not in _USUAL)))

    @property
    def device_count(self) -> int | None:
        """Number of devices of the whole job; None if unknown."""
        placed = [record.placement for record in self.records if record.placement is not None]
        return placed[0].num_towers if placed else None

    @property
    def worker_count(self) -> int | None:
        """Number of workers of the job; 1 for a run that is no job, and None if unknown."""
        placed = [record.placement for record in self.records if record.placement is not None]
        return placed[0].num_workers if placed else None

    @property
    def device_kind(self) -> str:
        """Kind of device: "cpu", "gpu" or "unknown"."""
        return str(self.flag("device") or UNKNOWN)


def group_runs(
    records: Iterable[RunRecord],
    runs_with_peaks: Iterable[RunRecord] = (),
    order: Mapping[str, int] | None = None,
) -> tuple[RunGroup, ...]:
    """Groups runs by configuration and origin, and sorts the groups (see `RunGroup.order`).

    If a commit was compared with several other commits, such as GOOD of a bisection, there is one
    group for each of the other commits.

    Args:
      records: the runs to group.
      runs_with_peaks: further runs, whose measured peak FLOP/s are also used (see
        `with_highest_peaks`).
      order: maps commits to positions. A commit that is not in it follows the commit that was
        measured before it. None means that revisions are in order of time.
    """
    (grouped_runs,) = group_by_configuration(with_highest_peaks([*records], runs_with_peaks))
    names = unique_names(group.configuration for group in grouped_runs)
    measured = {
        group.configuration.key: [
            _PairedRecord(
                record=record,
                origin=origin,
                started=parse_start_time(record.started_at),
                pair=pair_id_of(record),
            )
            for origin, members in group.by_origin().items()
            for record in members
        ]
        for group in grouped_runs
    }
    in_time = sorted((record for members in measured.values() for record in members), key=_START)
    opponent = compared_commit_lookup(match_complete_pairs(in_time))
    origins = dict.fromkeys(record.origin for record in in_time)
    ordered = sort_by_optional_place([*origins], lambda origin: (order or {}).get(origin.revision))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _PairedRecord(MeasuredProcess):
    record: Measurement


_START = attrgetter("started")


def peak_flops_per_sec(run: RunRecord) -> float | None:
    """Peak FLOP/s of all devices of a run; None if unknown."""
    return run.measured.peak_flops_per_sec


def with_highest_peaks(
    runs: Sequence[RunRecord], runs_with_peaks: Iterable[RunRecord] = ()
) -> list[RunRecord]:
    """Replaces the measured peak FLOP/s of each run by the highest peak that was measured on the
    same machine in the same number format.

    This is done because load can only reduce a measured peak. Peaks that users set, and published
    peaks, are not changed. `runs_with_peaks` contains further runs with measured peaks.
    """

    def machine_and_format(run: RunRecord) -> tuple[Machine, str] | None:
        known = peak_flops_per_sec(run) and (run.measured.peak_flops_source or "").startswith(
            "measured"
        )
        return (Origin.of(run).machine, str(run.config.get("precision"))) if known else None

    chosen, alike = [], group_by((*runs, *runs_with_peaks), machine_and_format)
    for run in runs:
        if (where := machine_and_format(run)) and (others := alike[where])[1:]:
            best = max(peak_flops_per_sec(run) or 0.0 for run in others)
            kind = (run.measured.peak_flops_source or "").rpartition(" ")[2]
            source = f"measured: {kind}, the highest of {len(others)} processes"
            measured = replace(run.measured, peak_flops_per_sec=best, peak_flops_source=source)
            run = replace(run, measured=measured)
        chosen.append(run)
    return chosen


def split_common(names: Sequence[Sequence[str]], separator: str = ", ") -> tuple[str, list[str]]:
    """Splits names into common and individual parts. Returns the joined parts that all names have
    in common, and the joined other parts of each name.
    """
    shared = [part for part in names[0] if all(part in name for name in names)]
    own = [[part for part in name if part not in shared] for name in names]
    if not all(own):
        shared, own = [], [list(name) for name in names]
    return separator.join(shared), [separator.join(parts) for parts in own]


def split_names(members: Sequence[RunGroup]) -> tuple[str, list[str]]:
    """Splits the names of groups with `split_common`. If the groups have different
    precisions, the names contain the precisions.
    """
    parts = [group.name.split(", ") for group in members]
    formats = [group.precision for group in members]
    for own, format in zip(parts, formats, strict=True):
        # A default precision is not part of a group's name.
        own += [format] if len(set(formats)) > 1 and format not in own else []
    return split_common(parts)


def newest_groups(
    configured: Sequence[RunGroup], max_groups: int, priority_keys: Container[str] = ()
) -> list[RunGroup]:
    """Selects at most `max_groups` groups. Groups whose keys are in `priority_keys` have priority,
    followed by the newest groups. The order of the groups is kept.
    """
    order = sorted(
        configured, key=lambda group: (group.configuration.key in priority_keys, group.latest)
    )
    chosen = {*order[-max_groups:]}
    return [group for group in configured if group in chosen]


def shown_count_text(shown: int, total: int) -> str:
    """Returns text that says how many of `total` items are shown: ", the newest 24 of 60"; "" if
    all are shown.
    """
    return f", the newest {shown} of {integer(total)}" if shown < total else ""


@dataclass(frozen=True, kw_only=True)
class ReportSubject(Loaded, Displayed):
    """The records that a report is about, grouped by configuration, and their comparison with a
    baseline.

    Attributes:
      configured: the run records, grouped by configuration and origin.
      earlier: configurations that the sections leave out (see `limited_to_newest`).
      comparison: the comparison with a baseline; None if there is none.
      studies: results that are not records of single runs, such as searches of flags or profiles.
    """

    configured: tuple[RunGroup, ...]
    earlier: tuple[RunGroup, ...] = ()
    comparison: Comparison | None = None

    def __repr__(self) -> str:
        configurations = count_text(self.configured, "configuration", "configurations")
        return short_repr(self, f"{configurations}, {count_text(self.runs, 'run', 'runs')}")

    def limited_to_newest(self) -> ReportSubject:
        """Returns a copy with at most `MOST_SHOWN` configurations: the configurations with a
        changed verdict, then the newest other configurations.
        """
        entries = () if self.comparison is None else self.comparison.entries
        changed = {
            entry.configuration.key
            for entry in entries
            if entry.main.verdict not in (Verdict.SAME, Verdict.NOT_SLOWER)
        }
        shown = newest_groups(self.configured, MOST_SHOWN, changed)
        earlier = tuple(group for group in self.configured if group not in {*shown})
        return replace(self, configured=tuple(shown), earlier=earlier)

    @cached_property
    def rooflines(self) -> tuple[Roofline, ...]:
        """The rooflines of profiled processes. Each roofline uses the highest peak FLOP/s that was
        measured on its machine in its number format.
        """
        studies = []
        for study in self.studies:
            if isinstance(study, Roofline):
                group = self.profiled[study.run.run_id]
                highest = max(
                    group.process_values(peak_flops_per_sec).values,
                    default=study.machine.flops_per_sec,
                )
                studies.append(study.with_peak_rate(highest, group.peak_source))
        return tuple(studies)

    @property
    def explanations(self) -> tuple[Explanation, ...]:
        """The explanation of the comparison with the baseline, and those of `cnnbench explain`."""
        own = None if self.comparison is None else self.comparison.explanation
        others = (study for study in self.studies if isinstance(study, Explanation))
        return (*([] if own is None else [own]), *others)

    @property
    def tunings(self) -> tuple[TuneDocument, ...]:
        """The results of `cnnbench tune`, which search for the fastest flags."""
        return tuple(study for study in self.studies if isinstance(study, TuneDocument))

    @cached_property
    def profiled(self) -> Mapping[str, RunGroup]:
        """The group of each profiled process by its run_id, which has only profiled runs."""
        profiled_groups = group_runs(profiled_runs(self.studies), self.runs)
        return {record.run_id: group for group in profiled_groups for record in group.records}

    @property
    def runs(self) -> list[RunRecord]:
        """All run records, sorted by start time."""
        records = [record for group in self.configured for record in group.records]
        return sorted(records, key=lambda record: parse_start_time(record.started_at))

    @property
    def processes(self) -> list[tuple[str, RunRecord | AllReduceRecord]]:
        """All records with the names of configurations: runs, all-reduces, profiled runs."""
        names = {record.run_id: group.name for group in self.configured for record in group.records}
        profiled = [run for run in profiled_runs(self.studies) if run.run_id not in names]
        return [
            *((names[run.run_id], run) for run in self.runs),
            *(("all-reduce", record) for record in self.allreduces),
            *((f"{self.profiled[run.run_id].name}, profiled", run) for run in profiled),
        ]


def profiled_runs(studies: Iterable[Study]) -> list[RunRecord]:
    """Returns the run records of the processes for which there are rooflines or step profiles."""
    runs_of_rooflines = {
        study.run.run_id: study.run for study in studies if isinstance(study, Roofline)
    }
    profiles = (study.record for study in studies if isinstance(study, StepProfile))
    return list({**{run.run_id: run for run in profiles}, **runs_of_rooflines}.values())


def gather(
    loaded: Loaded,
    baseline: Loaded | None = None,
    criteria: Criteria = _DEFAULT,
    *,
    labels: tuple[str, str] = ("BASE", "NEW"),
    comparison: Comparison | None = None,
    order: Mapping[str, int] | None = None,
) -> ReportSubject:
    """Groups the records of a report by configuration, and compares them with a baseline.

    Args:
      criteria: by what the records are compared with the baseline.
      labels: names of the baseline and of the records.
      comparison: the comparison of the experiment to which the records belong; None if there is a
        baseline.
      order: see `group_runs`.
    """
    if baseline is not None:
        # A baseline without all-reduces cannot be compared with all-reduces, so they are left out.
        reduced = loaded.allreduces if baseline.allreduces else ()
        comparison = compare_records(
            baseline.all_records,
            (*loaded.records, *reduced),
            criteria,
            labels=labels,
            skipped=baseline.skipped,
        )
    configured = group_runs(loaded.records, profiled_runs(loaded.studies), order)
    if comparison is not None:
        _use_compared_speeds(configured, comparison)
    reductions = sorted(loaded.allreduces, key=lambda record: parse_start_time(record.started_at))
    return dataclass_from_sources(
        ReportSubject,
        loaded,
        allreduces=tuple(reductions),
        configured=configured,
        comparison=comparison,
    )


def _use_compared_speeds(configured: Iterable[RunGroup], comparison: Comparison) -> None:
    """Makes groups use the speeds of their processes in the comparison, so that a page has one
    median.

    Which disturbances are rare, and removed, depends on all processes of A and B.
    """
    speeds: dict[str, float] = {}
    for entry in comparison.entries:
        runs = [run for run in entry.runs if isinstance(run, RunRecord) and run.status == "ok"]
        values = zip(runs, HISTORY["throughput"].values(runs), strict=True)
        speeds |= {run.run_id: value for run, value in values if value is not None}
    for group in configured:
        group.use_speeds(speeds)


def with_start_times(named: Iterable[tuple[str, Roofline]]) -> list[tuple[str, Roofline]]:
    """Returns the given pairs of name and roofline. Names that occur more than once get the start
    time of their roofline.
    """
    named = list(named)
    taken = Counter(name for name, _ in named)
    return [
        (f"{name}, {start_time_text(roofline.started_at)}" if taken[name] > 1 else name, roofline)
        for name, roofline in named
    ]


def start_time_text(started_at: str) -> str:
    """Converts a start time in ISO 8601 to text for people: UTC, without the offset."""
    return parse_start_time(started_at).strftime("%Y-%m-%d %H:%M:%S")
