"""Where the difference between two sides is: the document of ``cnnbench explain``."""

from __future__ import annotations

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
      base, new: seconds in a step of A and of B, means over the faster half of the steps; 0 where
        a side lacks the row.
      spread: twice the standard error of the difference, in seconds, between medians of processes,
        or between steps where each side has one process.
      share: share of the row in the measured difference of the step; None where that is not larger
        than its own spread, so that it may be 0.
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
      base, new: seconds of the explained rows in a step of A and of B, means over processes of the
        medians over their steps.
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

    Attributes:
      answer: the answer in one sentence.
      base_label, new_label: descriptions of A and of B.
      base, new: seconds of a timed step of A and of B, means over the faster half of the steps.
      spread: twice the standard error of the difference, in seconds.
      mean_base, mean_new: means over all timed steps; absent in earlier documents.
      profiled_base, profiled_new: seconds of a profiled step of A and of B, means over the faster
        half of them.
      rows: rows, the largest difference first; with `remainder` their differences add up to that
        of `base` and `new`.
      causes: significant causes, the largest first; if there are none, the work that differs.
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
    mean_base: float | None = field(default=None, metadata=OPTIONAL)
    mean_new: float | None = field(default=None, metadata=OPTIONAL)
    profiled_base: float
    profiled_new: float
    rows: tuple[ExplainedRow, ...]
    causes: tuple[Cause, ...]
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
    def remainder(self) -> float:
        """Seconds of the difference that profiled steps do not show."""
        return self.difference - (self.profiled_new - self.profiled_base)
