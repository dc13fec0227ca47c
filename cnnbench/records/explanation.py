"""Where the difference between two sides is: the document of ``cnnbench explain``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from cnnbench.records.codec import Document, computed, one_of

CAUSES = (
    *("threads", "input", "program", "gaps", "precision", "batch norm", "reduction", "copies"),
    *("layers", "work", "operations", "kernel", "everything", "network", "batch"),
)
"""Kinds of causes; docs/explain.md has their rules."""


@dataclass(frozen=True, kw_only=True)
class ExplainedRow:
    """Time of one layer, kind and direction on both sides, in seconds of a step.

    Attributes:
      layer, kind, direction: see `cnnbench.records.step_profile`.
      base, new: of A and of B, means over the faster half of the steps; 0 where a side lacks it.
      spread: twice the standard error of the difference between medians of processes; between
        steps where each side has one process.
      share: of the measured difference of the step; None where that is 0.
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
        """What B takes more than A."""
        return self.new - self.base


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Something that sets the sides apart, with the time that it explains.

    Attributes:
      kind: one of `CAUSES`.
      base, new: of the rows that it explains, seconds of a step; means over processes of the
        medians over their steps.
      spread: of the difference, see `ExplainedRow`.
      place: where it is, in a few words, such as "conv1, gradient of kernels".
      text: what it is, in a sentence without its times.
      evidence: what it rests on, a line each.
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
        """What B takes more than A."""
        return self.new - self.base


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """A fact that differs between the sides, as text."""

    fact: str
    base: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Explanation(Document):
    """Why a step of B takes another time than one of A, schema 1.

    Attributes:
      answer: in one sentence.
      base_label, new_label: of the sides.
      base, new: seconds of a timed step of both; the mean over the faster half.
      spread: of the difference, see `ExplainedRow`.
      profiled_base, profiled_new: the same of the profiled steps.
      rows: the largest difference first; together with `remainder` they add up to the difference
        of `base` and `new`.
      causes: that stand out, the one that explains most first; if none does, the work that differs.
      facts: that differ, flags first.
      base_processes, new_processes: profiled.
      steps: profiled steps of each process.
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
        """What a step of B takes more than one of A."""
        return self.new - self.base

    @property
    @computed
    def remainder(self) -> float:
        """The part of the difference that profiled steps do not show."""
        return self.difference - (self.profiled_new - self.profiled_base)
