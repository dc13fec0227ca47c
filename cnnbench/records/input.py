"""What a record says about its input: the speed of each stage, and the skipped records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from cnnbench.records.codec import check_amounts_in_range


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStage:
    """Speed of the input pipeline from its start up to one stage, measured without training. In a
    job, it is the speed of the pipelines of all workers together.

    Attributes:
      name: "read", "prepare" and "batch" for files with images, "mix" if images are mixed, "device"
        for the whole pipeline. Data sets may have further stages.
      examples: number of examples that the stage delivered.
      seconds: time that the stage took for these examples. If asynchronous workers read in
        different times, it is `examples` divided by the sum of their speeds.
    """

    name: str
    examples: int
    seconds: float

    def __post_init__(self) -> None:
        check_amounts_in_range("input_stages", self)
        if not self.seconds:
            raise ValueError("input_stages.seconds: must be greater than 0")

    @property
    def examples_per_sec(self) -> float:
        """Examples per second that the stage delivered."""
        return self.examples / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRecords:
    """Input records that a run skipped because of --on_bad_record=skip.

    Attributes:
      count: number of different skipped records.
      first: defects of the first skipped records, each with file and record.
    """

    count: int = 0
    first: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_amounts_in_range("skipped_records", self)

    @classmethod
    def combined(cls, parts: Iterable[SkippedRecords]) -> SkippedRecords:
        """Adds up the skipped records of several inputs."""
        parts = tuple(parts)
        first = chain.from_iterable(part.first for part in parts)
        return cls(count=sum(part.count for part in parts), first=tuple(first))
