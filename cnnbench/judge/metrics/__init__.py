"""The metrics and the origin of measurements, and the constants of the tests (`Policy`)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from bisect import bisect_left
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from cnnbench.base.files import parse_json
from cnnbench.base.slow_steps import FEWEST, SlowSteps, find_slow_steps, median_slow_steps
from cnnbench.base.stats import median
from cnnbench.base.text import counted_names, format_bytes, integer, number
from cnnbench.machine.facts import comparable_fact
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.records.codec import HIDDEN, NOT_EMPTY, document_keys
from cnnbench.records.metric import ALL, FASTER, LESS, METRICS, QUICKER, Metric, register_metric
from cnnbench.records.metrics.figures import throughputs
from cnnbench.records.run import (
    BENCHMARK_SCORE,
    BENCHMARKS,
    ErrorInfo,
    ModelInfo,
    RunRecord,
    Subject,
    subject_of_record,
)

# `cnnbench.records.metric.Metric` declares each metric with its threshold and direction.
# `cnnbench.base.slow_steps` explains how slow steps are found.
# docs/methodology.md contains the error rates of verdicts.

# Defines a measurement (one process of one configuration) and its origin.

RUN = RunRecord.kind
ALL_REDUCE, BUILD, PEER, COPY = "allreduce", "build", "peer", "copy"

KINDS = {
    RUN: ("run", "runs"),
    ALL_REDUCE: ("all-reduce", "all-reduces"),
    BUILD: ("all-reduce that was only built", "all-reduces that were only built"),
    PEER: ("peer", "peers"),
    COPY: ("memory copy", "memory copies"),
    **dict.fromkeys(BENCHMARKS, ("benchmark of another program", "benchmarks of other programs")),
}
"""Kinds of measurements, each with a noun in singular and plural, in order of display. Measurements
of different kinds are never compared. ALL_REDUCE, BUILD, PEER and COPY are rows of all-reduce
records.
"""

CONTEXT = (PEER, COPY)
"""Kinds of measurements that never affect the exit code, because they do not measure the compared
code. They show changes of the machine or of TensorFlow.
"""

_COMMIT, _CHANGES = 12, 7
"""Number of digits that output shows of a commit, and of a digest of uncommitted changes."""

_ABBREVIATED = re.compile("[0-9a-f]{7,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredReduction:
    """The measurement in one row of an all-reduce record, which is from one process.

    Attributes:
      kind: ALL_REDUCE; BUILD, for --build_only; PEER, a reduction of another library; COPY, all
        devices copying memory at once.
      status: "failed" if the reduction could not be measured or has wrong sums, "interrupted" if it
        was cut short, otherwise "ok", even if the process failed later.
      config: flags of the process. Flags that list what is measured have the value of this row.
      facts: names and values of recorded properties of the process and the row, as text.
      seconds: seconds of the median reduction or copy; None if none was timed or sums were wrong.
      bytes_per_sec: bus bandwidth; for a copy, the bytes per second that all devices write
        together.
      build_seconds: seconds to trace the reduction and to call it for the first time.
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
    """Returns the kind of a measurement, which is a key of `KINDS`."""
    imported = measured.imported if isinstance(measured, RunRecord) else None
    return measured.kind if imported is None else imported.kind


def fact_text(value: Any, name: str = "") -> str:
    """Converts the value of a recorded property to text: strings are unchanged, other values are
    written as JSON (see `comparable_fact`).
    """
    value = comparable_fact(name, value)
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value)


def readable_fact(name: str, value: Any) -> str:
    """Converts the value of a recorded property to text for people: like `fact_text`, but bytes are
    written as KiB, MiB and so on.
    """
    text = fact_text(value, name)
    return format_bytes(int(text)) if name.endswith("_bytes") and text.isdecimal() else text


def short_commit(text: str) -> str:
    """Shortens a full commit hash to its first 12 digits. Other text is returned unchanged."""
    whole = len(text) == 40 and set(text) <= set("0123456789abcdef")
    return text[:_COMMIT] if whole else text


def process_facts(record: RunRecord | AllReduceRecord) -> tuple[tuple[str, str], ...]:
    """Returns (name, text) for each recorded property of a process, its environment and the
    measured code. Commits are shortened.
    """
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
"""The recorded properties that identify a machine, as pairs of name and text."""

_MACHINE = ("gpu_names", "cpu_model", "architecture", "usable_cpus", "cgroup_cpu_limit")
"""Properties that identify a machine. Host names are excluded, so that a pool of equal machines
counts as one machine. Properties that may change on a machine, such as a driver, are excluded, so
that histories show their effect.
"""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What was measured where: the code, the size of the network, the TensorFlow version and the
    machine. Measurements with different origins are never pooled.

    Unknown values are "" or None. Of the labels that users set, only `commit` and `repository` are
    part of the origin.

    Attributes:
      side: "a" or "b" for a process of side A or B of an experiment, otherwise "".
      revision: commit of the measured code or, if it is unknown, the commit of cnnbench itself.
      dirty: whether files differed from the revision.
      changes: digest of the uncommitted changes.
      network: parameters and FLOPs per image of a run; None for all-reduces, and for runs that
        ended before the network was built.
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
        """Returns the origin of a measurement or of an all-reduce record."""
        ab = measured.ab if isinstance(measured, RunRecord) else None
        subject = subject_of_record(measured.subject, measured.config, ab)
        facts = measured.environment
        commit = facts.get("git_commit")
        if subject.revision is None and not subject.unknown and isinstance(commit, str):
            dirty, changes = facts.get("git_dirty"), fact_text(facts.get("git_changes", ""))
            dirty = dirty if isinstance(dirty, bool) else None
            if subject.changes is not None:  # Code outside of a repository has no revision.
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
        # The hash is cached, because histories look up the origin of every measurement.
        return hash((*self.code_state, self.side, self.network, self.tensorflow, self.machine))

    @property
    def short_revision(self) -> str:
        """The shortened commit of the revision. If files were changed, "+" and the first digits of
        the digest of the changes follow.
        """
        text = short_commit(self.revision)
        return f"{text}+{self.changes[:_CHANGES]}" if self.dirty and text else text

    @cached_property
    def network_size(self) -> str:
        """Text with the exact numbers of parameters and FLOPs of the network; "" if unknown. If two
        texts differ, the networks are different.
        """
        if (network := self.network) is None:
            return ""
        parameters = network.parameters, network.trainable_parameters
        flops = network.training_flops_per_image, network.forward_flops_per_image
        texts = ["/".join(map(integer, dict.fromkeys(both))) for both in (parameters, flops)]
        return f"network of {texts[0]} parameters, {texts[1]} FLOPs"

    @property
    def code_state(self) -> tuple[str, str, bool | None, str]:
        """The state of the code: repository, revision, whether files were changed, their digest."""
        return self.repository, self.revision, self.dirty, self.changes

    def part_texts(self) -> dict[str, str]:
        """The components of the origin, such as revision and machine: names and texts for people.
        The text of an unknown component is "".
        """
        return {
            "side": self.side.upper(),
            "repository": self.repository,
            "revision": self.short_revision,
            "network": self.network_size,
            "TensorFlow": self.tensorflow,
            "machine": machine_name(dict(self.machine)),
        }


def fill_in_origins(origins: Iterable[Origin]) -> dict[Origin, Origin]:
    """Maps each origin to a copy in which missing values, such as the network, are taken from other
    origins that are otherwise equal.

    An abbreviated commit is completed if all longer commits that begin with it agree. A run that
    ended before its network was known gets the network of an origin that is otherwise equal.
    """
    distinct = tuple(dict.fromkeys(origins))
    revisions = sorted({origin.revision for origin in distinct})
    whole = {}
    for place, text in enumerate(revisions):
        if _ABBREVIATED.fullmatch(text):
            # Finds all commits that begin with `text`. "g" sorts after all hexadecimal digits.
            longer = revisions[place : bisect_left(revisions, f"{text}g")]
            if all(map(longer[-1].startswith, longer)):
                whole[text] = longer[-1]
    homes = {one: replace(one, revision=whole.get(one.revision, one.revision)) for one in distinct}
    networked = (home for home in reversed(homes.values()) if home.network)
    known = {replace(home, network=None): home for home in networked}
    return {one: home if home.network else known.get(home, home) for one, home in homes.items()}


def varying_parts(origins: Iterable[Origin]) -> dict[str, tuple[str, ...]]:
    """Maps the name of each component that differs between the origins, such as "revision", to its
    different values as text, in the order of appearance.
    """
    texts_by_name: dict[str, dict[str, None]] = {}
    distinct = tuple(dict.fromkeys(origins))
    for origin in distinct:
        for name, text in origin.part_texts().items():
            texts_by_name.setdefault(name, {})[text or "unknown"] = None
    differ = {name: tuple(texts) for name, texts in texts_by_name.items() if len(texts) > 1}
    if len(distinct) > 1 and not differ:
        return {"machine": tuple(f"#{place}" for place in range(1, len(distinct) + 1))}
    return differ


def origin_titles(origins: Iterable[Origin], without: Iterable[str] = ()) -> dict[Origin, str]:
    """Maps each origin to a unique name, made of the components that differ between the origins.
    Components in `without` are not used. A single origin has the name "".
    """
    distinct = tuple(dict.fromkeys(origins))
    if len(distinct) == 1:
        return {distinct[0]: ""}
    names = [name for name in varying_parts(distinct) if name not in (*without, "machine")]
    machines = machine_names(distinct)
    named: dict[Origin, str] = {}
    taken: set[str] = set()
    for origin in distinct:
        parts = origin.part_texts()
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
    """Maps each origin to the name of its machine. Equal names of machines are numbered."""
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
    """Returns a short name of a machine: its GPUs or else its processor, CPUs and CPU limit."""
    gpus = facts.get("gpu_names", "")
    with contextlib.suppress(ValueError):
        names = parse_json(gpus)
        gpus = counted_names(names) if isinstance(names, list) else gpus
    if gpus:
        return gpus
    cpus, limit = facts.get("usable_cpus"), facts.get("cgroup_cpu_limit")
    parts = [facts.get("cpu_model", "unknown machine")]
    parts += [f"{cpus} {'CPU' if cpus == '1' else 'CPUs'}"] if cpus else []
    parts += [f"limited to {limit}"] if limit else []
    return ", ".join(parts)


def origin_part_text(part: str, text: str) -> str:
    """Returns the text for one component of an origin, such as "TensorFlow 2.21.0" or "unknown
    revision". Names of origins consist of several of these texts.
    """
    if not text:
        return f"unknown {part}"
    return {"side": f"side {text}", "TensorFlow": f"TensorFlow {text}"}.get(part, text)


# Registers the metrics of all-reduces. The metrics of runs are in `cnnbench.records.metrics`.

ALL.load_own()
THROUGHPUT, STARTUP, CPU_TIME = (METRICS[name] for name in ("throughput", "startup", "cpu_time"))
_GIGA = 1e9


def _bus_bandwidth(row: MeasuredReduction) -> float | None:
    """Returns the bus bandwidth in GB/s; for a memory copy, what all devices write together."""
    return None if row.bytes_per_sec is None else row.bytes_per_sec / _GIGA


def _register_bandwidth(
    name: str, about: str, measurement_kind: str, *other_kinds: str, **rules: Any
) -> Metric:
    """Registers the bandwidth of measurements of kind `measurement_kind` as a metric, which is
    judged if --metrics contains the throughput.
    """
    rules |= {
        "about": about,
        "kinds": (measurement_kind, *other_kinds),
        "judged": {measurement_kind: THROUGHPUT.name},
        **FASTER,
    }
    register_metric(name, "GB/s", **rules)(_bus_bandwidth)
    return ALL[name]


def _register_build_time(name: str, unit: str, **rules: Any) -> None:
    rules |= {"about": "Tracing of the reduction and its first call", **QUICKER}
    build = attrgetter("build_seconds")
    register_metric(name, unit, threshold=STARTUP.threshold, **rules)(build)


BUS_BANDWIDTH = _register_bandwidth(
    "bus_bandwidth", "Bus bandwidth of the median reduction", ALL_REDUCE, PEER, gates=True
)
_BOTH: dict[str, Any] = {"kinds": (ALL_REDUCE, PEER), "judged": {}, **QUICKER}
register_metric("reduction_seconds", "s", about="The median reduction", **_BOTH)(
    attrgetter("seconds")
)
_register_build_time("build_seconds", "s", kinds=(ALL_REDUCE, BUILD, PEER), judged={})
_register_build_time(
    "build",
    "seconds",
    kinds=(ALL_REDUCE, BUILD),
    judged=dict.fromkeys((ALL_REDUCE, BUILD), STARTUP.name),
    followed=False,
)
_register_bandwidth("peer_bandwidth", "Bus bandwidth of another library", PEER, followed=False)
_register_bandwidth("copy_bandwidth", "Bytes that all devices write together", COPY)

for _kind, _unit in BENCHMARKS.items():
    register_metric(
        _kind,
        _unit,
        about="Value of a benchmark of another program"
        + (" whose larger values are better" if _kind == BENCHMARK_SCORE else f" in {_unit}"),
        kinds=(_kind,),
        judged={_kind: THROUGHPUT.name},
        gates=True,
        **({} if _kind == BENCHMARK_SCORE else QUICKER if _unit == "s" else LESS),
    )(partial(lambda kind, record: record.imported.values.get(kind), _kind))

SPEEDS = (THROUGHPUT, BUS_BANDWIDTH)
"""The main metrics of runs and all-reduces. Comparisons report their geometric means."""

DEFAULT_METRICS = tuple(name for name, metric in METRICS.items() if metric.by_default)
"""The default of --metrics."""


def metrics_to_judge(names: Container[str], kinds: Container[str]) -> tuple[Metric, ...]:
    """Returns the metrics by which measurements of the given kinds are judged, if --metrics
    contains `names`.

    The metrics are in the order of `METRICS`. The order of the names has no effect.
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


# Defines the constants of the tests. docs/compare_reference.md contains the formulas.


_QUESTIONS = ("slower", "faster")


def questions_of(fail_on: Collection[str] | None) -> tuple[str, ...]:
    """Returns the changes that a verdict must find or exclude: "slower", "faster" or both.

    `fail_on` contains words of --fail_on. Without either word, the question is whether NEW is
    slower.
    """
    return tuple(word for word in (fail_on or ()) if word in _QUESTIONS) or _QUESTIONS[:1]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The constants of the statistical tests, such as thresholds and significance levels, and the
    settings of rules for one metric.

    A sample has one value per process.

    Attributes:
      threshold: smallest relevant change of throughput, and of other metrics without an own
        threshold, as a share (0.03: 3 %). On a quiet machine, the medians of equal processes have a
        standard deviation of about 1.3 %, so confidence intervals from 5 to 8 processes of each of
        BASE and NEW extend by 1.4 to 2 % in both directions. A lower threshold would never give the
        verdict "same". A threshold above 5 % would miss relevant changes.
      alpha: two-sided significance level of the tests over all configurations of a comparison, and
        over all requested metrics (Benjamini and Hochberg). A false alarm is one of the two tails:
        with 0.04, at most 2 % of comparisons of equal code are called slower, whatever the noise,
        if the runs of BASE and NEW were interleaved. Confidence intervals have the level 1 - alpha,
        or 1 - share * alpha.
      further_alpha: significance level for each metric that has an own threshold and no share of
        alpha. The values of such a metric are nearly constant, or its threshold is large, so a low
        level costs little power: 5 values that are all above 5 other values have p = 0.008. Without
        --metrics, memory and accuracy add at most half a per cent each to the 2 % of throughput.
      min_processes: minimum number of processes of each of BASE and NEW for a verdict. The smallest
        p-value of 4 against 4 processes is 2/70 = 0.029. For 3 against 3 it is 0.1, which is above
        any alpha in use.
      noise_factor: number of standard deviations of single A/A processes in the A/A spread. It is
        not divided by the number of processes, because more processes per session do not reduce
        the difference between sessions.
      same_limit: largest change for the verdict "same", even if the A/A spread makes the smallest
        relevant change larger. With a spread of 30 %, a slowdown of 10 % would otherwise be "the
        same".
      memory_threshold, startup_threshold, accuracy_threshold: smallest relevant change of peak
        memory, start-up time and accuracy.
      memory_bytes: smallest relevant change of peak memory, in bytes.
      own_threshold, fail_on: settings of rules for one metric of one configuration: the smallest
        relevant change, and which verdicts set exit code 1; None without rules.
      gates: whether rules name verdicts on this metric that set exit code 1. They then do so even
        if the metric was not requested.
      share: share of alpha for one metric of one configuration; None if alpha is not shared.
      split: 0.5 if throughput and CPU time of the same runs are both tested, so that each has half
        of the share; otherwise 1.
      asked: whether an inconclusive result sets the exit code.
      questions: changes that a verdict must find or exclude, see `questions_of`.
      by_interval: whether the verdicts slower and faster require that the whole confidence interval
        exceeds the threshold, so that at most alpha of the answers on either side are wrong.
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
    own_threshold: float | None = field(default=None, metadata=HIDDEN)
    share: float | None = field(default=None, metadata=HIDDEN)
    split: float = field(default=1.0, metadata=HIDDEN)
    asked: bool = field(default=True, metadata=HIDDEN)
    questions: tuple[str, ...] = field(default=_QUESTIONS[:1], metadata=HIDDEN)
    fail_on: tuple[str, ...] | None = field(default=None, metadata=HIDDEN)
    gates: bool = field(default=False, metadata=HIDDEN)
    by_interval: bool = field(default=False, metadata=NOT_EMPTY)

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
        """The constants that are equal for all configurations and metrics, by name."""
        return {key.name: key.get(self) for key in document_keys(Policy)}

    def threshold_of(self, metric: Metric) -> float:
        """The smallest relevant change: a share of the base, or a difference of values."""
        usual = self.threshold if metric.threshold is None else metric.threshold
        return usual if self.own_threshold is None else self.own_threshold

    def alpha_of(self, metric: Metric) -> float:
        """Returns the two-sided significance level for the tests of a metric. If several metrics
        share alpha, returns the whole alpha, not a share.
        """
        if self.share is not None:
            return self.alpha
        usual = self.alpha if metric.threshold is None else self.further_alpha
        return metric.alpha or usual

    @property
    def alpha_share(self) -> float:
        """The share of the significance level alpha that the tests of the metric use: the share
        that rules give to it, or half of this share if throughput and CPU time are both tested.
        """
        return self.split * (1.0 if self.share is None else self.share)

    @property
    def confidence(self) -> float:
        """Confidence level of the intervals: 1 - alpha."""
        return 1 - self.alpha

    def replace(self, **values: Any) -> Policy:
        """Returns a copy of the policy in which the given constants are replaced."""
        return dataclasses.replace(self, **values)


# Finds slow steps of runs, and describes them as text.


def common_slow_steps(runs: Iterable[RunRecord]) -> SlowSteps | None:
    """Returns the slow steps that most successful runs have in common; None if there are none."""
    return median_slow_steps(
        [find_slow_steps(run.step_seconds) for run in runs if run.status == "ok"]
    )


def median_step_text(runs: Sequence[RunRecord], threshold: float) -> str:
    """Returns text about the images per second at the median step, and about the slow steps that
    lower the mean speed; "" if slow steps make little difference.

    The difference is little if the speed at the median step exceeds the throughput of the
    successful runs by at most `threshold` (a share). The text is also "" if a run has too few
    steps.
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
