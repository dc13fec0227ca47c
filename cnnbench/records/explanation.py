"""`Explanation`: why the step times of A and B in a comparison differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from cnnbench.records.codec import OPTIONAL, Document, JsonKeys, choice_metadata, json_document

CAUSES = (
    "threads",
    "input",
    "program",
    "gaps",
    "precision",
    "batch norm",
    "reduction",
    "copies",
    "layers",
    "work",
    "operations",
    "kernel",
    "everything",
    "network",
    "batch",
    "pauses",
)
"""Kinds of causes; docs/explain.md has their rules."""


@dataclass(frozen=True, kw_only=True)
class ExplainedRow:
    """Seconds per step that operations of one layer, kind and direction take in A and in B of a
    comparison.

    Attributes:
      layer, kind, direction: key of the row, as in a step profile.
      base, new: seconds in a step of A and of B (see `Explanation`); 0 if the profiles have no such
        row.
      spread: twice the standard error of the difference, in seconds, estimated from the variation
        between processes or, if A or B has only one process, between steps.
      share: share of the row in the difference of the step times; None if that difference is within
        its own spread, so that it may be 0.
    """

    json_keys: ClassVar[JsonKeys] = (..., "difference")

    layer: str
    kind: str
    direction: str
    base: float
    new: float
    spread: float
    share: float | None

    @property
    def difference(self) -> float:
        """Seconds per step by which the operations of this row take longer in B than in A."""
        return self.new - self.base


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause of the difference between the step times of A and B, with the seconds that the cause
    explains.

    Attributes:
      kind: one of `CAUSES`.
      base, new: seconds in a step of A and of B, summed over the rows that the cause explains.
      spread: twice the standard error of the difference, in seconds.
      place: where the time is spent, in a few words, such as "conv1, gradient of kernels".
      text: description of the cause in a sentence, without times.
      evidence: lines of evidence.
    """

    json_keys: ClassVar[JsonKeys] = (..., "difference")

    kind: str = field(metadata=choice_metadata(CAUSES))
    base: float
    new: float
    spread: float
    place: str
    text: str
    evidence: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """Seconds per step by which the explained rows take longer in B than in A."""
        return self.new - self.base

    @property
    def evidence_not_in_text(self) -> tuple[str, ...]:
        """Lines of evidence that `text` does not contain yet. For example, `text` may already name
        the first flag that differs.
        """
        return tuple(line for line in self.evidence if line not in self.text)


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """A flag, or a recorded property of machine or software, that differs between A and B.

    Attributes:
      fact: description of the flag or property.
      base, new: its values in A and in B, as text.
    """

    fact: str
    base: str
    new: str


@json_document("cnnbench explain --format=json, cnnbench ab --format=json")
@dataclass(frozen=True, kw_only=True)
class Explanation(Document):
    """Result of ``cnnbench explain``: why a step of B takes more or less time than a step of A
    (schema 1).

    All times are means over all steps of a process, after rare disturbances are removed as in
    `cnnbench compare`, and then means over the processes of A or of B. Therefore the times of the
    rows add up to the step time.

    Attributes:
      answer: the answer in one sentence.
      base_label, new_label: descriptions of A and of B.
      base, new: seconds of a timed step of A and of B, without a profiler.
      spread: twice the standard error of the difference, in seconds.
      chance: the largest difference of a timed step, in seconds, that may be chance; NaN if an
        earlier document does not have it.
      profiled_base, profiled_new: seconds of a profiled step of A and of B, the sums of the rows.
      rows: rows, the largest difference first. The differences of all rows and `remainder` add up
        to the difference of `base` and `new`. If there are pauses, a row contains their time, and
        all other rows contain the time of ordinary steps.
      causes: significant causes, the largest first; if there are none, the work that differs.
      by_work: whether the causes are only differences in work, which may not change the time.
      facts: flags and recorded properties that differ between A and B; flags come first.
      base_processes, new_processes: number of profiled processes of A and of B.
      steps: number of profiled steps of each process.
    """

    kind: ClassVar[str] = "explanation"
    schema: ClassVar[int] = 1
    item_lines: ClassVar[tuple[str, ...]] = ("rows", "causes", "facts")
    json_keys: ClassVar[JsonKeys] = (
        ...,
        "difference",
        "remainder",
        "not_profiled",
        "unexplained",
    )

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
    def difference(self) -> float:
        """Seconds by which a timed step of B takes longer than a timed step of A."""
        return self.new - self.base

    @property
    def differs_significantly(self) -> bool:
        """Whether the step times of A and B differ significantly."""
        known = bool(self.causes) and not self.by_work
        return abs(self.difference) > (self.spread if known else self.chance)

    @property
    def remainder(self) -> float:
        """Seconds of the difference between the step times of A and B that the profiled steps do
        not show.
        """
        return self.not_profiled.difference

    @property
    def not_profiled(self) -> ExplainedRow:
        """A row with the seconds of the difference between A and B that the profiled steps do not
        show. Its spread is unknown (NaN).
        """
        base, new = self.base - self.profiled_base, self.new - self.profiled_new
        return self.make_row("not in the profiles", base=base, new=new)

    def make_row(
        self,
        layer: str,
        kind: str = "",
        direction: str = "",
        *,
        base: float,
        new: float,
        spread: float = math.nan,
    ) -> ExplainedRow:
        """Creates a row from the seconds per step in A (`base`) and in B (`new`), and computes the
        share of the row in the difference.
        """
        # If the step times differ by no more than their spread, the difference may be 0, so shares
        # of it are meaningless.
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
    def unexplained(self) -> float:
        """Seconds of the difference between the step times of A and B that the significant causes
        do not explain.
        """
        causes = () if self.by_work else self.causes
        return self.difference - sum(cause.difference for cause in causes)
