"""Where the difference between two sides is: the document of ``cnnbench explain``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from cnnbench.records.codec import OPTIONAL, Document, computed, one_of

CAUSES = (
    *("threads", "input", "program", "gaps", "precision", "batch norm", "reduction", "copies"),
    *("layers", "work", "operations", "kernel", "everything", "network", "batch", "pauses"),
)
"""Kinds of causes; docs/explain.md has their rules."""


@dataclass(frozen=True, kw_only=True)
class ExplainedRow:
    """Time of one layer, kind and direction on both sides, in seconds of a step.

    Attributes:
      layer, kind, direction: key of the row, as in a step profile.
      base, new: seconds in a step of A and of B; see `Explanation`; 0 where a side lacks the row.
      spread: twice the standard error of the difference, in seconds, between processes, or between
        steps where a side has one process.
      share: share of the row in the difference of the step; None where that is not larger than its
        own spread, so that it may be 0.
    """

    layer: str
    kind: str
    direction: str
    base: float
    new: float
    spread: float
    share: float | None

    @property
    @computed
    def difference(self) -> float:
        """Seconds that a step of B takes more than one of A."""
        return self.new - self.base


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Something that sets the sides apart, with the time that it explains.

    Attributes:
      kind: one of `CAUSES`.
      base, new: seconds of the explained rows in a step of A and of B: the sums of these rows.
      spread: twice the standard error of the difference, in seconds.
      place: place in a few words, such as "conv1, gradient of kernels".
      text: description in a sentence, without times.
      evidence: evidence, a line each.
    """

    kind: str = field(metadata=one_of(CAUSES))
    base: float
    new: float
    spread: float
    place: str
    text: str
    evidence: tuple[str, ...] = ()

    @property
    @computed
    def difference(self) -> float:
        """Seconds that a step of B takes more than one of A."""
        return self.new - self.base

    @property
    def further(self) -> tuple[str, ...]:
        """The evidence that the text does not have, which names the first flag that differs."""
        return tuple(one for one in self.evidence if one not in self.text)


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """A fact that differs between the sides.

    Attributes:
      fact: description of the fact.
      base, new: its values on A and on B, as text.
    """

    fact: str
    base: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Explanation(Document):
    """Why a step of B takes another time than one of A, schema 1.

    All times are means per process over all steps, after rare disturbances are removed as in
    `cnnbench compare`, and means over the processes of a side. So times of parts add up.

    Attributes:
      answer: the answer in one sentence.
      base_label, new_label: descriptions of A and of B.
      base, new: seconds of a timed step of A and of B, without a profiler.
      spread: twice the standard error of the difference, in seconds.
      chance: the largest difference of a timed step, in seconds, that may be chance; NaN if an
        earlier document does not have it.
      profiled_base, profiled_new: seconds of a profiled step of A and of B, the sums of the rows.
      rows: rows, the largest difference first; with `remainder` their differences add up to that
        of `base` and `new`. If there are pauses, their time is a row of its own, and in all other
        rows slow steps count as ordinary ones.
      causes: significant causes, the largest first; if there are none, the work that differs.
      by_work: whether the causes are only differences in work, whose times may be chance.
      facts: facts that differ, flags first.
      base_processes, new_processes: number of profiled processes of A and of B.
      steps: number of profiled steps of each process.
    """

    kind: ClassVar[str] = "explanation"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "causes", "facts")

    answer: str
    base_label: str
    new_label: str
    base: float
    new: float
    spread: float
    chance: float = field(default=math.nan, metadata=OPTIONAL)
    profiled_base: float
    profiled_new: float
    rows: tuple[ExplainedRow, ...]
    causes: tuple[Cause, ...]
    by_work: bool = field(default=False, metadata=OPTIONAL)
    facts: tuple[FactChange, ...]
    base_processes: int
    new_processes: int
    steps: int

    @property
    @computed
    def difference(self) -> float:
        """Seconds that a timed step of B takes more than one of A."""
        return self.new - self.base

    @property
    @computed
    def mean_base(self) -> float:
        """The same as `base`, for readers of earlier documents."""
        return self.base

    @property
    @computed
    def mean_new(self) -> float:
        """The same as `new`, for readers of earlier documents."""
        return self.new

    @property
    @computed
    def remainder(self) -> float:
        """Seconds of the difference that profiled steps do not show."""
        return self.not_profiled.difference

    @property
    @computed
    def not_profiled(self) -> ExplainedRow:
        """What profiled steps do not show, as a row whose spread is unknown (NaN)."""
        base, new = self.base - self.profiled_base, self.new - self.profiled_new
        return self.row("not in the profiles", base=base, new=new)

    def row(
        self,
        layer: str,
        kind: str = "",
        direction: str = "",
        *,
        base: float,
        new: float,
        spread: float = math.nan,
    ) -> ExplainedRow:
        """A row of times in seconds, with its share of the difference."""
        # The difference may be 0 by its spread, twice its standard error.
        is_known = abs(self.difference) > self.spread
        return ExplainedRow(
            layer=layer,
            kind=kind,
            direction=direction,
            base=base,
            new=new,
            spread=spread,
            share=(new - base) / self.difference if is_known else None,
        )

    @property
    @computed
    def unexplained(self) -> float:
        """Seconds of the difference that no significant cause explains."""
        causes = () if self.by_work else self.causes
        return self.difference - sum(cause.difference for cause in causes)
