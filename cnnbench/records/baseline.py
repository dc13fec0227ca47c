"""The file with the baseline of a test, which the pytest fixture ``cnnbench`` writes and reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cnnbench.records.codec import Document
from cnnbench.records.documents import json_document
from cnnbench.records.run import RunRecord


@json_document("pytest --cnnbench-update")
@dataclass(frozen=True)
class BaselineDocument(Document):
    """Content of a baseline file, schema 1: the records with which later results are compared.

    Attributes:
      records: the records to compare with.
    """

    kind: ClassVar[str] = "baseline"
    schema: ClassVar[int] = 1

    records: tuple[RunRecord, ...]
