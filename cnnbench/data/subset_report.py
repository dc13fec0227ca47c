"""What a check found in a subset, for people and programs. No TensorFlow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cnnbench.data.imagenet_records import RecordFacts


@dataclass
class SubsetReport:
    """What one subset holds.

    Attributes:
      subset: "train" or "validation".
      files: their number.
      file_bytes: of all files together.
      records: sound ones.
      labels: sound records per label.
      heights: sound records per image height in pixels.
      widths: sound records per image width in pixels.
      image_bytes: of all images as stored.
      boxes: of all sound records together.
      defects: one line each, naming file and record.
    """

    subset: str
    files: int = 0
    file_bytes: int = 0
    records: int = 0
    labels: Counter[int] = field(default_factory=Counter)
    heights: Counter[int] = field(default_factory=Counter)
    widths: Counter[int] = field(default_factory=Counter)
    image_bytes: int = 0
    boxes: int = 0
    defects: list[str] = field(default_factory=list)

    def add(self, facts: RecordFacts) -> None:
        """Counts a sound record."""
        self.records += 1
        self.labels[facts.label] += 1
        self.heights[facts.height] += 1
        self.widths[facts.width] += 1
        self.image_bytes += facts.jpeg_bytes
        self.boxes += facts.boxes

    def lines(self) -> list[str]:
        """The statistics for people, one line each."""
        head = (
            f"{self.subset}: {self.records} sound records in {self.files} files, "
            f"{self.file_bytes:,} bytes"
        )
        if not self.records:
            return [head]
        per_class = self.labels.values()
        return [
            head,
            f"  labels: {len(self.labels)} different from {min(self.labels)} to "
            f"{max(self.labels)}, {min(per_class)} to {max(per_class)} records each",
            f"  images: {min(self.heights)} to {max(self.heights)} high, {min(self.widths)} to "
            f"{max(self.widths)} wide, {self.image_bytes / self.records:,.0f} bytes on average, "
            f"{self.boxes} boxes",
        ]
