"""The record of `cnnbench tune`: the fastest flags that were found, and the test against the user's
flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar

from cnnbench.records.codec import (
    OPTIONAL,
    TIME,
    Document,
    check_amount_in_range,
    json_document,
    parse_start_time,
)

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
