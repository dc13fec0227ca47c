"""Records of `cnnbench strategies` and `cnnbench tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

from cnnbench.base.stats import ValuesByProcess
from cnnbench.base.text import number
from cnnbench.records.codec import (
    ABSENT,
    OPTIONAL,
    TIME,
    Document,
    check_amount_in_range,
    check_amounts_in_range,
    choice_metadata,
    json_document,
    parse_start_time,
)
from cnnbench.records.subject import Subject

# The document of `cnnbench strategies`: speed and memory with each mode of --variable_update.

ONE_TOWER = "one_tower"
"""Name of the row for a run with one tower, with which the modes are compared."""

REFERENCE, EQUAL, DIFFERENT, APART = "reference", "equal", "different", "not compared"
UNKNOWN = ""
WEIGHTS = (REFERENCE, EQUAL, DIFFERENT, APART, UNKNOWN)


@dataclass(frozen=True, kw_only=True)
class StrategyRow:
    """A row of the table of `cnnbench strategies`: the measurements of one mode of
    --variable_update. Values that were not measured are None.

    Attributes:
      mode: value of --variable_update, or "one_tower".
      all_reduce: all-reduce in use, as in `placement` of a record; "" for none.
      processes: number of successful processes.
      images_per_sec: median over the processes of the speed over the timed steps.
      low, high: 95 % interval of images_per_sec, or its range with too few processes.
      overhead: how much longer a step takes than a step of one tower with the same work, as a share
        of the step time of one tower; the median over the rounds.
      peak_memory_bytes, build_seconds, first_step_seconds: medians over the processes.
      variables, variable_copies, reduction_operations: as in `placement` of a record.
      weights: "reference", "equal" or "different" (compared with the reference), "not compared"; ""
        if there is no checkpoint.
      weight_distance: largest difference of two elements of a variable from the reference, as a
        share of the variable's largest element.
      weight_variable: the variable with that difference; "" if all bits are equal.
      problem: why a process failed, or "".
    """

    mode: str
    all_reduce: str = ""
    processes: int = 0
    images_per_sec: float | None = None
    low: float | None = None
    high: float | None = None
    overhead: float | None = None
    peak_memory_bytes: float | None = None
    build_seconds: float | None = None
    first_step_seconds: float | None = None
    variables: int | None = None
    variable_copies: int | None = None
    reduction_operations: int | None = None
    weights: str = field(default=UNKNOWN, metadata=choice_metadata(WEIGHTS))
    weight_distance: float | None = None
    weight_variable: str = ""
    problem: str = ""

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise ValueError(f"rows.weights: {self.weights!r} is none of {', '.join(WEIGHTS)}")
        # Not checked: an overhead may be negative, and a distance of weights may be infinite or
        # NaN.
        check_amounts_in_range("rows", self, unlimited_fields=("overhead", "weight_distance"))
        if self.overhead is not None and not isfinite(self.overhead):
            raise ValueError(f"rows.overhead: {self.overhead} is not finite")


@dataclass(frozen=True, kw_only=True)
class StrategyProcess:
    """A successful process of `cnnbench strategies`: its mode of --variable_update and its speed.

    Attributes:
      mode: value of --variable_update, or "one_tower".
      round: number of the round, from 1.
      run_id: run_id of its record.
      images_per_sec: images per second over the timed steps, after disturbances that are rare among
        the mode's processes are removed; None if unknown.
    """

    mode: str
    round: int
    run_id: str
    images_per_sec: float | None

    def __post_init__(self) -> None:
        if self.images_per_sec is not None:
            check_amount_in_range("processes.images_per_sec", self.images_per_sec)


@json_document("cnnbench strategies --format=json")
@dataclass(frozen=True, kw_only=True)
class StrategiesDocument(Document):
    """Result of ``cnnbench strategies``: one row for each mode of --variable_update.

    Attributes:
      run_id: unique name of the measurement.
      started_at: start of the command, ISO 8601 with offset, UTC.
      command: argv.
      config: resolved parameters of the first mode.
      rows: one row per mode, one tower first.
      processes: successful processes in the order of the rows.
      weights_tolerance: largest distance of weights that are considered equal.
      environment: properties of machine and software by name; unknown properties are absent.
      subject: the measured code; absent if unknown.
      incomplete: how the command ended early, and what was measured by then; absent if it did not.
      planned: number of processes that were planned; absent if the command did not end early.
    """

    kind: ClassVar[str] = "strategies"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "processes")

    run_id: str
    started_at: str = field(metadata=TIME)
    command: tuple[str, ...]
    config: Mapping[str, Any]
    rows: tuple[StrategyRow, ...]
    processes: tuple[StrategyProcess, ...]
    weights_tolerance: float
    environment: Mapping[str, Any] = field(default_factory=dict)
    subject: Subject | None = field(default=None, metadata=ABSENT)
    incomplete: str | None = field(default=None, metadata=ABSENT)
    planned: int | None = field(default=None, metadata=ABSENT)

    def __post_init__(self) -> None:
        parse_start_time(self.started_at)
        if not self.rows:
            raise ValueError("rows: none")


def images_per_sec_of_mode(processes: Sequence[StrategyProcess], mode: str) -> ValuesByProcess:
    """Returns the images/sec of the processes of a mode whose speed is known."""
    of_mode = (process.images_per_sec for process in processes if process.mode == mode)
    return ValuesByProcess(tuple(speed for speed in of_mode if speed is not None))


def weight_comparison_lines(
    rows: Sequence[StrategyRow], tolerance: float
) -> list[tuple[str, bool]]:
    """Returns lines of text that compare the trained weights of the modes. Each line is paired with
    True if its result is as expected, and with False if weights differ.
    """
    reference = next((row.mode for row in rows if row.weights == REFERENCE), None)
    if reference is None:
        return [("weights were not compared", True)]
    remarks = []
    equal = [row for row in rows if row.weights == EQUAL]
    if equal:
        largest = max(row.weight_distance or 0.0 for row in equal)
        bits = "all bits" if largest == 0.0 else f"within {number(largest)} of the largest value"
        names = ", ".join(row.mode for row in equal)
        remarks.append((f"weights equal those of {reference}, {bits}: {names}", True))
    for row in rows:
        if row.weights == DIFFERENT:
            share = f"{number(row.weight_distance)} of its largest value, more than {tolerance:g}"
            of = f"weights of {row.mode} differ from those of {reference}"
            remarks.append((f"{of}: {row.weight_variable} by {share}", False))
    return remarks


# The document of `cnnbench tune`: the fastest flags that were found, and the test against the
# user's flags.

FASTER, NOT_FASTER, SAME, SLOWER = "faster", "not faster", "same", "slower"
OPEN, NONE = "open", "none"
VERDICTS = (FASTER, NOT_FASTER, SAME, SLOWER, OPEN, NONE)
"""Verdicts on the leading candidate: four verdicts of `ab`; "open" if the proof is inconclusive or
no candidate was measured; "none" if no candidate was faster than the flags as given."""

AS_GIVEN = "as given"
"""Name of the candidate that consists only of the flags that the user gave."""


@dataclass(frozen=True, kw_only=True)
class TuneRow:
    """A candidate (a set of flags and environment variables) of `cnnbench tune`, with its speed.
    Values that were not measured are None.

    Attributes:
      candidate: the settings that the candidate adds, or "as given".
      flags: all flags of the candidate.
      variables: environment variables of the candidate, by name.
      changes: values of --allow for what the candidate trains differently.
      group: name of the group in which the candidate was measured first.
      processes: number of measured processes.
      images_per_sec: median over the processes of the races.
      gain: by how much the candidate is faster than the flags as given, as a share, estimated from
        all rounds.
      low, high: ends of the 95 % interval of gain.
      left: why the candidate was no longer measured: "slower", "behind", "failed" or "untried"; ""
        if it was measured to the end.
      after: number of the candidate's last round; None if it was measured to the end.
      reason: why the candidate was no longer measured, in words, or "".
    """

    candidate: str
    flags: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict, metadata=OPTIONAL)
    changes: tuple[str, ...] = ()
    group: str = ""
    processes: int = 0
    images_per_sec: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    left: str = ""
    after: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.images_per_sec is not None:
            check_amount_in_range("rows.images_per_sec", self.images_per_sec)
        _check_gain("rows.", self)


@dataclass(frozen=True, kw_only=True)
class RefusedCandidate:
    """A candidate (a set of flags) of `cnnbench tune` that cannot run, and the reason.

    Attributes:
      group: name of the candidate's group in the search space.
      candidate: the flags that the candidate adds.
      reason: why the candidate cannot run.
    """

    group: str
    candidate: str
    reason: str


@json_document("cnnbench tune --format=json")
@dataclass(frozen=True, kw_only=True)
class TuneDocument(Document):
    """Result of ``cnnbench tune`` (schema 1): the fastest flags that were found, the proof, and all
    candidates.

    Attributes:
      started_at: start of the first session of the search, ISO 8601 with offset, UTC.
      search_command: argv of the search.
      command: argv of the fastest proven command line. With environment variables, the program is
        `env`.
      verdict: verdict on the leader against the flags as given: "faster", "not faster", "same",
        "slower", "open" (also if no candidate was tried), or "none" if the flags as given lead.
      reason: reason of the verdict.
      leader: name of the leading candidate at the end of the races.
      gain: by how much the leader is faster than the flags as given, as a share, from the pairs.
      low, high: ends of the confidence interval of gain.
      confidence: confidence level of the interval, such as 0.96.
      p: p value of the test in the pairs; None if there was no test.
      pairs: number of measured pairs.
      given: the flags as given.
      seed: seed of all random orders.
      seconds: wall seconds of all processes.
      budget_seconds: seconds that --minutes allows.
      scatter: standard deviation of the speeds of processes with the same flags, as a share; None
        if unknown.
      failure: the error that ended the proof, or "".
      threshold: smallest change of the speed that matters, as a share; None if there are no pairs.
      enough_minutes: value of --minutes with which a new search would probably have a better
        answer; None if more time would not change the answer.
      rows: the candidates, the fastest first; candidates that were not measured come last.
      refused: candidates that cannot run.
    """

    kind: ClassVar[str] = "tune"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "refused")

    started_at: str = field(metadata=TIME)
    search_command: tuple[str, ...]
    command: tuple[str, ...]
    verdict: str
    reason: str
    leader: str
    gain: float | None
    low: float | None
    high: float | None
    confidence: float | None
    pairs: int
    given: tuple[str, ...]
    seed: int
    seconds: float
    budget_seconds: float
    scatter: float | None
    failure: str
    rows: tuple[TuneRow, ...]
    refused: tuple[RefusedCandidate, ...]
    p: float | None = field(default=None, metadata=OPTIONAL)
    threshold: float | None = field(default=None, metadata=OPTIONAL)
    enough_minutes: int | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        parse_start_time(self.started_at)
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict: {self.verdict!r} is none of {', '.join(VERDICTS)}")
        _check_gain("", self)


def _check_gain(key_prefix: str, result: TuneRow | TuneDocument) -> None:
    for key in ("gain", "low", "high"):
        value = getattr(result, key)
        if value is not None and not isfinite(value):
            raise ValueError(f"{key_prefix}{key}: {value} is not finite")
