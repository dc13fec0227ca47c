"""Metrics of measurements, the policy for verdicts, and the rules of a team."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from cnnbench.base.files import parse_json
from cnnbench.base.slow_steps import FEWEST, SlowSteps, find_slow_steps, median_slow_steps
from cnnbench.base.stats import median
from cnnbench.base.text import binary, counted_names, integer, number
from cnnbench.machine.facts import comparable_fact
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import HIDDEN, OPTIONAL
from cnnbench.records.metric import (
    ALL,
    FASTER,
    LESS,
    METRICS,
    QUICKER,
    Metric,
    load_metrics,
    register_metric,
)
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import (
    BENCHMARKS,
    ErrorInfo,
    ModelInfo,
    RunRecord,
    Subject,
    subject_of_record,
)

# Metrics of records, their measurements, and the policy of decisions.
#
# The rules for a single metric are in its declaration; see `cnnbench.records.metric.Metric`.
#
# `common_slow_steps` finds the slow steps that the runs of a side have in common.
# `median_step_text` describes slow steps that the median step time does not show.
# `cnnbench.base.slow_steps` explains both. docs/methodology.md contains the error rates.

# Measurements (one process of one configuration each), and their origins.

RUN = RunRecord.kind
ALL_REDUCE, BUILD, PEER, COPY = "allreduce", "build", "peer", "copy"

KINDS = {
    RUN: "runs",
    ALL_REDUCE: "all-reduces",
    BUILD: "all-reduces that were only built",
    PEER: "peers",
    COPY: "memory copies",
    **dict.fromkeys(BENCHMARKS, "benchmarks of other programs"),
}
"""Kinds of measurements with their plurals, in order of display. Measurements of different kinds
are never compared. All but RUN are rows of all-reduce records."""

CONTEXT = (PEER, COPY)
"""Kinds that show changes of machine or TensorFlow, and do not affect the exit code."""

_COMMIT, _CHANGES = 12, 7
"""Number of digits shown of a commit, and of a digest of changes."""

_ABBREVIATED = re.compile("[0-9a-f]{7,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredReduction:
    """A row of the all-reduce record of one process.

    Attributes:
      kind: ALL_REDUCE; BUILD, for --build_only; PEER, a reduction of another library; COPY, all
        devices copying memory at once.
      status: "failed" if it could not be measured or summed wrongly, "interrupted" if it was cut
        short, else "ok", however the process ended.
      config: flags of the process, with the row's values for those that list what is measured.
      facts: facts about process and row, as text.
      seconds: seconds of the median reduction or copy; None if none was timed or sums were wrong.
      bytes_per_sec: bus bandwidth; of a copy, the bytes that all devices write together.
      build_seconds: seconds to trace it and to call it for the first time.
    """

    kind: str
    run_id: str
    started_at: str
    status: str
    error: ErrorInfo | None
    config: Mapping[str, Any]
    explicit_flags: tuple[str, ...]
    environment: Mapping[str, Any]
    facts: tuple[tuple[str, str], ...]
    subject: Subject | None = None
    seconds: float | None = None
    bytes_per_sec: float | None = None
    build_seconds: float | None = None


Measurement: TypeAlias = RunRecord | MeasuredReduction
"""A run record, or a row of an all-reduce record."""


def kind_of(measured: Measurement) -> str:
    """Kind of a measurement, a key of `KINDS`."""
    imported = measured.imported if isinstance(measured, RunRecord) else None
    return measured.kind if imported is None else imported.kind


def fact_text(value: Any, name: str = "") -> str:
    """A fact as text. Strings are unchanged; other values are written as JSON. See
    `comparable_fact`.
    """
    value = comparable_fact(name, value)
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value)


def readable_fact(name: str, value: Any) -> str:
    """A fact for people: like `fact_text`, but bytes are written in powers of 1024."""
    text = fact_text(value, name)
    return binary(int(text)) if name.endswith("_bytes") and text.isdecimal() else text


def short_commit(text: str) -> str:
    """The first digits of a full commit hash. Other text is unchanged."""
    whole = len(text) == 40 and set(text) <= set("0123456789abcdef")
    return text[:_COMMIT] if whole else text


def process_facts(record: RunRecord | AllReduceRecord) -> tuple[tuple[str, str], ...]:
    """Names and texts of facts about a process and the measured code. Commits are shortened."""
    facts = [
        (name, fact_text(value, name)[: _COMMIT if name == "git_commit" else None])
        for name, value in record.environment.items()
    ]
    if (subject := record.subject) is not None:
        names = ("repository", "revision", "dirty", "changes", "unknown")
        named = {f"subject_{name}": getattr(subject, name) for name in names}
        known = {name: fact_text(value) for name, value in named.items() if value is not None}
        facts += [(name, short_commit(text)) for name, text in known.items()]
    return tuple(facts)


Machine: TypeAlias = tuple[tuple[str, str], ...]
"""Facts by name."""

_MACHINE = ("gpu_names", "cpu_model", "architecture", "usable_cpus", "cgroup_cpu_limit")
"""Facts that identify a machine. Host names are not included, because a pool of equal machines
counts as one machine. Facts that may change on a machine, such as a driver, are not included,
because histories should show their effect.
"""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of a measurement. Measurements of different origins are never pooled.

    It is the measured code (side, repository, revision, uncommitted changes), the size of its
    network, the version of TensorFlow and the machine; "" and None where unknown. User labels
    except `commit` and `repository` are no part of it.

    Attributes:
      side: side of an experiment, "a" or "b".
      revision: the commit of cnnbench itself where no other is known.
      dirty: whether files differed from the revision.
      changes: digest of these differences.
      network: parameters and FLOPs per image of a run; None of reductions, and of runs that ended
        before they were known.
    """

    side: str = ""
    repository: str = ""
    revision: str = ""
    dirty: bool | None = None
    changes: str = ""
    network: ModelInfo | None = None
    tensorflow: str = ""
    machine: Machine = ()

    @classmethod
    def of(cls, measured: Measurement | AllReduceRecord) -> Origin:
        """The origin of a measurement."""
        ab = measured.ab if isinstance(measured, RunRecord) else None
        subject = subject_of_record(measured.subject, measured.config, ab)
        facts = measured.environment
        commit = facts.get("git_commit")
        if subject.revision is None and not subject.unknown and isinstance(commit, str):
            dirty, changes = facts.get("git_dirty"), fact_text(facts.get("git_changes", ""))
            dirty = dirty if isinstance(dirty, bool) else None
            if subject.changes is not None:  # A plug-in outside of any repository has only changes.
                dirty, changes = True, subject.changes + changes
            subject = replace(subject, revision=commit, dirty=dirty, changes=changes)
        return cls(
            side=subject.side or "",
            repository=subject.repository or "",
            revision=subject.revision or "",
            dirty=subject.dirty,
            changes=subject.changes or "",
            network=measured.model if isinstance(measured, RunRecord) else None,
            tensorflow=fact_text(facts.get("tensorflow_version", "")),
            machine=tuple((name, fact_text(facts[name])) for name in _MACHINE if name in facts),
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Cached, because histories look up the origin of every measurement.
        return hash((*self.code, self.side, self.network, self.tensorflow, self.machine))

    @property
    def short(self) -> str:
        """The revision with a shortened commit. If there are changes, "+" and digits of their
        digest follow.
        """
        text = short_commit(self.revision)
        return f"{text}+{self.changes[:_CHANGES]}" if self.dirty and text else text

    @cached_property
    def network_size(self) -> str:
        """Exact parameters and FLOPs, because any difference means a different network; or ""."""
        if (network := self.network) is None:
            return ""
        parameters = network.parameters, network.trainable_parameters
        flops = network.training_flops_per_image, network.forward_flops_per_image
        texts = ["/".join(map(integer, dict.fromkeys(both))) for both in (parameters, flops)]
        return f"network of {texts[0]} parameters, {texts[1]} FLOPs"

    @property
    def code(self) -> tuple[str, str, bool | None, str]:
        """The state of the measured code, independent of side and machine."""
        return self.repository, self.revision, self.dirty, self.changes

    def parts(self) -> dict[str, str]:
        """Names and texts of the origin's parts, for people; "" if unknown."""
        return {
            "side": self.side.upper(),
            "repository": self.repository,
            "revision": self.short,
            "network": self.network_size,
            "TensorFlow": self.tensorflow,
            "machine": machine_name(dict(self.machine)),
        }


def complete_origins(origins: Iterable[Origin]) -> dict[Origin, Origin]:
    """Completes origins with facts from other origins.

    An abbreviated commit is completed if exactly one of the other commits begins with it. A run
    that ended before its network was known gets the network of an equal origin.
    """
    distinct = tuple(dict.fromkeys(origins))
    revisions = sorted({origin.revision for origin in distinct})
    whole = {}
    for place, text in enumerate(revisions):
        if _ABBREVIATED.fullmatch(text):
            # "g" sorts after all hexadecimal digits.
            longer = revisions[place : bisect_left(revisions, f"{text}g")]
            if all(map(longer[-1].startswith, longer)):
                whole[text] = longer[-1]
    homes = {
        origin: replace(origin, revision=whole[origin.revision])
        if origin.revision in whole
        else origin
        for origin in distinct
    }
    known = {
        replace(origin, network=None): origin
        for origin in reversed(homes.values())
        if origin.network
    }
    return {
        origin: home if home.network else known.get(home, home) for origin, home in homes.items()
    }


def varying_parts(origins: Iterable[Origin]) -> dict[str, tuple[str, ...]]:
    """The parts that differ between origins, with their values in the order of appearance."""
    texts_by_name: dict[str, dict[str, None]] = {}
    distinct = tuple(dict.fromkeys(origins))
    for origin in distinct:
        for name, text in origin.parts().items():
            texts_by_name.setdefault(name, {})[text or "unknown"] = None
    differ = {name: tuple(texts) for name, texts in texts_by_name.items() if len(texts) > 1}
    if len(distinct) > 1 and not differ:
        return {"machine": tuple(f"#{place}" for place in range(1, len(distinct) + 1))}
    return differ


def origin_titles(origins: Iterable[Origin], without: Iterable[str] = ()) -> dict[Origin, str]:
    """Names of origins, made of the parts that vary, except `without`; "" for a single origin."""
    distinct = tuple(dict.fromkeys(origins))
    if len(distinct) == 1:
        return {distinct[0]: ""}
    names = [name for name in varying_parts(distinct) if name not in (*without, "machine")]
    machines = machine_names(distinct)
    named: dict[Origin, str] = {}
    taken: set[str] = set()
    for origin in distinct:
        parts = origin.parts()
        words = [origin_part_text(name, parts[name]) for name in names]
        if "machine" not in without and len(set(machines.values())) > 1:
            words.append(machines[origin])
        text, number = ", ".join(words), 1
        while text in taken:
            number += 1
            text = ", ".join([*words, f"#{number}"])
        taken.add(text)
        named[origin] = text
    return named


def machine_names(origins: Iterable[Origin]) -> dict[Origin, str]:
    """The name of each origin's machine. Machines with equal names are numbered."""
    named: dict[Machine, str] = {}
    taken: dict[str, int] = {}
    names = {}
    for origin in origins:
        if origin.machine not in named:
            name = machine_name(dict(origin.machine))
            taken[name] = taken.get(name, 0) + 1
            named[origin.machine] = name if taken[name] == 1 else f"{name} #{taken[name]}"
        names[origin] = named[origin.machine]
    return names


def machine_name(facts: Mapping[str, str]) -> str:
    """A short name of a machine: its GPUs or, without GPUs, its processor and the usable share."""
    gpus = facts.get("gpu_names", "")
    with contextlib.suppress(ValueError):
        names = parse_json(gpus)
        gpus = counted_names(names) if isinstance(names, list) else gpus
    if gpus:
        return gpus
    cpus, limit = facts.get("usable_cpus"), facts.get("cgroup_cpu_limit")
    parts = [facts.get("cpu_model", "unknown machine")]
    parts += [f"{cpus} CPUs"] if cpus else []
    parts += [f"limited to {limit}"] if limit else []
    return ", ".join(parts)


def origin_part_text(part: str, text: str) -> str:
    """The text of a part of `Origin.parts`, for names with several parts."""
    if not text:
        return f"unknown {part}"
    return {"side": f"side {text}", "TensorFlow": f"TensorFlow {text}"}.get(part, text)


# Metrics that commands offer: of runs (`cnnbench.records.metrics`) and of reductions.

load_metrics()
THROUGHPUT, STARTUP, CPU_TIME = (METRICS[name] for name in ("throughput", "startup", "cpu_time"))
_GIGA = 1e9


def _bus_bandwidth(row: MeasuredReduction) -> float | None:
    """Bus bandwidth in GB/s. For a copy: the bytes per second that all devices write together."""
    return None if row.bytes_per_sec is None else row.bytes_per_sec / _GIGA


def _register_bandwidth(name: str, about: str, of: str, *others: str, **rules: Any) -> Metric:
    """Registers a bandwidth that is judged as the throughput of a kind of measurement."""
    rules |= {"about": about, "kinds": (of, *others), "judged": {of: THROUGHPUT.name}, **FASTER}
    register_metric("GB/s", name=name, **rules)(_bus_bandwidth)
    return ALL[name]


def _register_build_time(unit: str, **rules: Any) -> None:
    rules |= {"about": "Tracing of the reduction and its first call", **QUICKER}
    register_metric(unit, threshold=STARTUP.threshold, **rules)(attrgetter("build_seconds"))


BUS_BANDWIDTH = _register_bandwidth(
    "bus_bandwidth", "Bus bandwidth of the median reduction", ALL_REDUCE, PEER, gates=True
)
_BOTH: dict[str, Any] = {"kinds": (ALL_REDUCE, PEER), "judged": {}, **QUICKER}
register_metric("s", name="reduction_seconds", about="The median reduction", **_BOTH)(
    attrgetter("seconds")
)
_register_build_time("s", name="build_seconds", kinds=(ALL_REDUCE, BUILD, PEER), judged={})
_register_build_time(
    "seconds",
    name="build",
    kinds=(ALL_REDUCE, BUILD),
    judged=dict.fromkeys((ALL_REDUCE, BUILD), STARTUP.name),
    followed=False,
)
_register_bandwidth("peer_bandwidth", "Bus bandwidth of another library", PEER, followed=False)
_register_bandwidth("copy_bandwidth", "Bytes that all devices write together", COPY)

for _kind, _unit in BENCHMARKS.items():
    register_metric(
        _unit,
        name=_kind,
        about=f"Value of a benchmark of another program in {_unit}",
        kinds=(_kind,),
        judged={_kind: THROUGHPUT.name},
        gates=True,
        **(QUICKER if _unit == "s" else LESS),
    )(partial(lambda kind, record: record.imported.values.get(kind), _kind))

SPEEDS = (THROUGHPUT, BUS_BANDWIDTH)
"""The main metrics of runs and all-reduces. A geometric mean of their changes is reported."""

DEFAULT_METRICS = tuple(name for name, metric in METRICS.items() if metric.by_default)
"""The default of --metrics."""


def metrics_to_judge(names: Container[str], kinds: Container[str]) -> tuple[Metric, ...]:
    """The metrics in --metrics that are used to judge measurements of these kinds.

    They are in the order of `METRICS`. The order of the names has no effect.
    """
    places = {name: place for place, name in enumerate(METRICS)}
    ranked = [
        (min(places[name] for name in own), metric)
        for metric in ALL.values()
        if (
            own := {name for kind, name in metric.judged.items() if kind in kinds and name in names}
        )
    ]
    return tuple(metric for _, metric in sorted(ranked, key=itemgetter(0)))


# Constants of the verdicts, with reasons. docs/compare_reference.md contains the formulas.


_OF_RULES: Mapping[str, Any] = {**HIDDEN, **OPTIONAL}
"""Metadata of fields that are not written to documents."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The constants of the tests, and rules for single metrics.

    A sample has one value per process.

    Attributes:
      threshold: smallest change of throughput, and of other metrics without a threshold of their
        own, that counts, as a share (0.03: 3 %). On a quiet machine medians of equal processes have
        a standard deviation of about 1.3 %, so confidence intervals of 5 to 8 processes per side
        are 1.4 to 2 % wide to each side. A lower threshold would never give "same", one above 5 %
        would miss relevant changes.
      alpha: two-sided level of the tests over all configurations of a comparison, and over all
        metrics that were asked for (Holm). A false alarm is one of the two tails: with 0.04 at most
        2 % of comparisons of equal sides are called slower, whatever the noise, if the runs of both
        sides were interleaved. Confidence intervals have the level 1 - alpha, or 1 - share * alpha.
      further_alpha: level of each metric with a threshold of its own that has no share of alpha.
        Their values are nearly constant or their floors wide, so a low level costs little: 5
        against 5 separated values have p = 0.008. Without --metrics, memory and accuracy add at
        most half a per cent each to the 2 % of throughput.
      min_processes: smallest number of processes per side for a verdict. The smallest p of 4
        against 4 is 2/70 = 0.029; that of 3 against 3 is 0.1, above any alpha in use.
      noise_factor: number of standard deviations of single A/A processes in the A/A spread. It is
        not divided by the number of processes, because more processes per session do not reduce
        the difference between sessions.
      same_limit: widest margin within which two sides may be called the same. The floor grows with
        the A/A spread, and at a spread of 30 % would make a slow-down of 10 % "the same".
      memory_threshold, startup_threshold, accuracy_threshold: smallest change that counts of these.
      memory_bytes: smallest change of peak memory that counts, in bytes.
      own_threshold, fail_on: what rules say about one metric of one configuration: the smallest
        change that counts, and what sets exit code 1; None without rules.
      share: share of alpha of one metric of one configuration; None if metrics do not share it.
    """

    threshold: float = 0.03
    alpha: float = 0.04
    further_alpha: float = 0.01
    min_processes: int = 4
    noise_factor: float = 2.0
    same_limit: float = 0.05
    memory_threshold: float = field(default=METRICS["memory"].threshold or 0.0, init=False)
    memory_bytes: int = field(default=int(METRICS["memory"].least), init=False)
    startup_threshold: float = field(default=STARTUP.threshold or 0.0, init=False)
    accuracy_threshold: float = field(default=METRICS["accuracy"].threshold or 0.0, init=False)
    own_threshold: float | None = field(default=None, metadata=_OF_RULES)
    share: float | None = field(default=None, metadata=_OF_RULES)
    fail_on: tuple[str, ...] | None = field(default=None, metadata=_OF_RULES)

    def __post_init__(self) -> None:
        for name, level in (("alpha", self.alpha), ("further_alpha", self.further_alpha)):
            if not 0 < level < 1:
                raise ValueError(f"{name}={level}: must lie between 0 and 1")
        if self.min_processes < 1:
            raise ValueError(f"min_processes={self.min_processes}: must be at least 1")
        for name, value in self.constants.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value}: must be finite and not negative")

    @property
    def constants(self) -> dict[str, float]:
        """The constants that are the same for all configurations and metrics."""
        kept = (
            constant.name
            for constant in dataclasses.fields(self)
            if "hidden" not in constant.metadata
        )
        return {name: getattr(self, name) for name in kept}

    def threshold_of(self, metric: Metric) -> float:
        """Smallest relevant change of a metric: a share, or a difference in its unit."""
        usual = self.threshold if metric.threshold is None else metric.threshold
        return usual if self.own_threshold is None else self.own_threshold

    def alpha_of(self, metric: Metric) -> float:
        """Two-sided significance level of the tests of a metric. If metrics share alpha, it is the
        whole alpha.
        """
        if self.share is not None:
            return self.alpha
        usual = self.alpha if metric.threshold is None else self.further_alpha
        return metric.alpha or usual

    @property
    def confidence(self) -> float:
        """Confidence level of the intervals."""
        return 1 - self.alpha

    def replace(self, **values: Any) -> Policy:
        """A copy with other constants."""
        return dataclasses.replace(self, **values)


# Slow steps of runs as text.


def common_slow_steps(runs: Iterable[RunRecord]) -> SlowSteps | None:
    """The slow steps that most successful runs of a side have in common; None if there are none."""
    return median_slow_steps(
        [find_slow_steps(run.step_seconds) for run in runs if run.status == "ok"]
    )


def median_step_text(runs: Sequence[RunRecord], threshold: float) -> str:
    """Text about the speed at the median step, and the slow steps that cause the difference.

    "" if it exceeds the speed of the successful runs by at most the threshold (a share), or if runs
    have too few steps.
    """
    good = [run for run in runs if run.status == "ok" and run.batch]
    judged = [speed for speed in throughputs(good) if speed is not None]
    if not judged or min(len(run.step_seconds) for run in good) < FEWEST:
        return ""
    at_median = median(
        run.batch.global_ / median(run.step_seconds) for run in good if run.batch is not None
    )
    if at_median <= (1 + threshold) * median(judged):
        return ""
    slow = common_slow_steps(good)
    text = "" if slow is None else f"{slow.text}; "
    return f"{text}{number(at_median)} images/sec at the median step"
