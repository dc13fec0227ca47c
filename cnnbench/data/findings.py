"""Findings of a record check. No TensorFlow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class RecordDefect(ValueError):
    """A defect of a record; the text completes "FILE: record N: "."""


@dataclass
class Findings:
    """Valid records of a subset and lines about them; defects name file and record."""

    records: int = 0
    details: list[str] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ImageFacts:
    """Facts of a valid record of a labelled image: class, size in pixels, number of boxes."""

    label: int
    height: int
    width: int
    stored_bytes: int
    boxes: int = 0


class ImageTally:
    """Statistics of labelled images."""

    def __init__(self) -> None:
        self._labels: Counter[int] = Counter()
        self._heights: set[int] = set()
        self._widths: set[int] = set()
        self._bytes = 0
        self._boxes = 0

    def add(self, facts: ImageFacts) -> None:
        """Counts a valid record."""
        self._labels[facts.label] += 1
        self._heights.add(facts.height)
        self._widths.add(facts.width)
        self._bytes += facts.stored_bytes
        self._boxes += facts.boxes

    def lines(self) -> list[str]:
        """The statistics as text; none without a record."""
        if not self._labels:
            return []
        per_class = self._labels.values()
        mean_bytes = self._bytes / self._labels.total()
        return [
            f"labels: {len(self._labels)} different from {min(self._labels)} to "
            f"{max(self._labels)}, {min(per_class)} to {max(per_class)} records each",
            f"images: {min(self._heights)} to {max(self._heights)} high, {min(self._widths)} to "
            f"{max(self._widths)} wide, {mean_bytes:,.0f} bytes on average, {self._boxes} boxes",
        ]
