"""The document of `cnnbench tune`, schema 1: the fastest flags of a network, and their proof."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar

from cnnbench.records.amounts import check_amount
from cnnbench.records.codec import OPTIONAL, TIME, Document, started

FASTER, SAME, SLOWER, OPEN, NONE = "faster", "same", "slower", "open", "none"
VERDICTS = (FASTER, SAME, SLOWER, OPEN, NONE)
"""Verdicts on the leader: three of `ab`; "open" if inconclusive or without a measured candidate;
"none" if no candidate was faster in the races."""

AS_GIVEN = "as given"
"""Name of the candidate that adds no flag."""


@dataclass(frozen=True, kw_only=True)
class TuneRow:
    """A candidate; None where nothing was measured.

    Attributes:
      candidate: the flags that it adds, or "as given".
      flags: all of its flags.
      changes: words of --allow for what it trains differently.
      group: name of the group of its first race.
      processes: number of measured processes.
      images_per_sec: median over the processes.
      gain: speed above that of the flags as given, as a share of it, estimated from all races.
      low, high: ends of the 95 % interval of gain.
      left: why it left its race: "slower", "behind", "failed" or "untried"; "" if it did not.
      after: number of its last round; None if it did not leave.
      reason: why it left, in words, or "".
      slower_by: how much slower a "slower" one was than the best, as a share of the best speed.
      p: p value of that test.
      place: place of one that was left "behind" among the remaining candidates, from 1.
    """

    candidate: str
    flags: tuple[str, ...]
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
    slower_by: float | None = field(default=None, metadata=OPTIONAL)
    p: float | None = field(default=None, metadata=OPTIONAL)
    place: int | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if self.images_per_sec is not None:
            check_amount("rows.images_per_sec", self.images_per_sec)
        _check_finite("rows.", self)


@dataclass(frozen=True, kw_only=True)
class RefusedCandidate:
    """A candidate that cannot run.

    Attributes:
      group: name of its group in the space.
      candidate: the flags that it adds.
      reason: why it cannot run.
    """

    group: str
    candidate: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class TuneDocument(Document):
    """Result of ``cnnbench tune``, schema 1.

    Attributes:
      started_at: start of the first session of the search, ISO 8601 with offset, UTC.
      search_command: argv of the search.
      command: the fastest proven command line, in words; for a job one of `cnnbench launch`.
      verdict: verdict on the leader against the flags as given: "faster", "same", "slower", "open"
        (also if no candidate was tried), or "none" if the flags as given lead.
      reason: reason of the verdict.
      leader: name of the leading candidate at the end of the races.
      gain: speed of the leader above that of the flags as given, as a share of it, from the pairs.
      low, high: ends of the interval of gain.
      confidence: confidence of that interval, such as 0.96.
      p: p value of the test in these pairs; None if there was none.
      pairs: number of measured pairs.
      weights: a sentence on whether the leader trains the same weights.
      trains_alike: whether it does; None where that was not compared.
      weights_steps: number of steps after which the weights were compared; None if they were not.
      weight_distance: largest difference of two elements of a variable, as a share of the
        variable's largest element.
      weight_variable: the variable with that difference; "" if all bits are equal.
      weights_tolerance: largest distance of weights that are called equal.
      given: the flags as given.
      seed: seed of all random orders.
      seconds: wall seconds of all processes.
      budget_seconds: seconds that --minutes allows.
      scatter: standard deviation of a process in the races, as a share; None if unknown.
      failure: the error that ended the proof, or "".
      enough_minutes: value of --minutes with which the search could go on; None where more time
        would not change the answer.
      rows: the candidates, the fastest first; then those that were not measured.
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
    weights: str
    trains_alike: bool | None
    given: tuple[str, ...]
    seed: int
    seconds: float
    budget_seconds: float
    scatter: float | None
    failure: str
    rows: tuple[TuneRow, ...]
    refused: tuple[RefusedCandidate, ...]
    p: float | None = field(default=None, metadata=OPTIONAL)
    enough_minutes: int | None = field(default=None, metadata=OPTIONAL)
    weights_steps: int | None = field(default=None, metadata=OPTIONAL)
    weight_distance: float | None = field(default=None, metadata=OPTIONAL)
    weight_variable: str = field(default="", metadata=OPTIONAL)
    weights_tolerance: float | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        started(self.started_at)
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict: {self.verdict!r} is none of {', '.join(VERDICTS)}")
        _check_finite("", self)

    @property
    def proven(self) -> bool:
        """Whether the leader is faster and, as far as compared, trains the same."""
        return self.verdict == FASTER and self.trains_alike is not False


def _check_finite(section: str, of: TuneRow | TuneDocument) -> None:
    for key in ("gain", "low", "high"):
        value = getattr(of, key)
        if value is not None and not isfinite(value):
            raise ValueError(f"{section}{key}: {value} is not finite")
