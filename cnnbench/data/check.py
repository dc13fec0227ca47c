"""Check of every record of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cnnbench.data.dataset import SUBSETS, Dataset
from cnnbench.data.findings import Findings


@dataclass(frozen=True)
class SubsetReport:
    """Content of one subset; without files where it is missing altogether."""

    subset: str
    files: Sequence[Path]
    file_bytes: int
    found: Findings

    def lines(self) -> list[str]:
        """The statistics as text, one line each."""
        if not self.files:
            return [f"{self.subset}: no files"]
        found = self.found
        head = (
            f"{self.subset}: {found.records} valid records in {len(self.files)} files, "
            f"{self.file_bytes:,} bytes"
        )
        return [head, *(f"  {line}" for line in found.details)]


def check(data_dir: str, dataset: Dataset, num_classes: int) -> list[SubsetReport]:
    """Reads every record of every subset in a directory; labels must be in [0, num_classes)."""
    found = dataset.subsets_in(data_dir)
    return [_report(subset, found.get(subset, ()), dataset, num_classes) for subset in SUBSETS]


def _report(subset: str, files: Sequence[Path], dataset: Dataset, num_classes: int) -> SubsetReport:
    if not files:
        return SubsetReport(subset, (), 0, Findings())
    found = dataset.check(files, num_classes)
    if not found.records and not found.defects:
        found.defects.append(f"{files[0].parent}: the {subset} files hold no records")
    return SubsetReport(subset, files, sum(path.stat().st_size for path in files), found)
