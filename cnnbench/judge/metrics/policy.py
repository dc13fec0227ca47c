"""Constants of the verdicts, each with its reason; docs/compare.md has the formulas."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Constants of the verdicts. A sample is one value per process.

    Attributes:
      threshold: smallest change of throughput that counts, as a share (0.03: 3 %). On a
        quiet machine the medians of like processes differ with a standard deviation of
        about 1.3 %, so that the confidence intervals of 5 to 8 processes per side are
        1.4 to 2 % wide to each side: below that "same" could never be said, and above
        5 % gates would miss what they are made for.
      alpha: two-sided level of the tests over all configurations of a comparison
        (Holm). A false alarm is only one of the two tails: 0.04 promises that at most
        2 % of comparisons of like with like turn red, whatever the noise, as long as
        the runs of both sides were interleaved. Confidence intervals are of 1 - alpha.
      further_alpha: the same for each of the other metrics, whose values are nearly constant
        or judged with wide floors, so that asking for more costs little: 5 against 5 that
        are separated have p = 0.008. Memory and accuracy add at most half a per cent each
        to the 2 % of throughput.
      min_processes: per side, for any verdict but inconclusive. With 4 against 4, the
        smallest p is 2/70 = 0.029; with 3 against 3 it is 0.1 and no alpha in use can be
        reached.
      noise_factor: standard deviations of single processes in an A/A measurement that
        make the A/A spread. Two sessions may differ by as much as two processes, and
        more processes per session do not help against that, hence not divided by their
        number.
      same_limit: widest margin within which two sides may be called the same. The floor
        grows with the A/A spread; on a machine with a spread of 30 % it would make a
        slow-down of 10 % "the same", which it must not.
      memory_threshold: the same for peak memory. It is nearly constant on a GPU, and
        moves by some per cent on a CPU, where it is that of the whole process.
      memory_bytes: changes of fewer bytes never count: allocators round, and libraries
        come and go.
      startup_threshold: the same for start-up time, of which importing TensorFlow, a
        matter of disks and caches, is the largest part.
      accuracy_threshold: smallest change of top-1 accuracy that counts, as a difference
        (0.005: half a percentage point). MLPerf's ResNet target is given to 0.1 points,
        and seeds alone move it by a few tenths.
    """

    threshold: float = 0.03
    alpha: float = 0.04
    further_alpha: float = 0.01
    min_processes: int = 4
    noise_factor: float = 2.0
    same_limit: float = 0.05
    memory_threshold: float = 0.05
    memory_bytes: int = 16 * 2**20
    startup_threshold: float = 0.2
    accuracy_threshold: float = 0.005

    def __post_init__(self) -> None:
        for name, level in (("alpha", self.alpha), ("further_alpha", self.further_alpha)):
            if not 0 < level < 1:
                raise ValueError(f"{name}={level}: must lie between 0 and 1")
        if self.min_processes < 1:
            raise ValueError(f"min_processes={self.min_processes}: must be at least 1")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{field.name}={value}: must be finite and not negative")

    @property
    def confidence(self) -> float:
        """Of the intervals."""
        return 1 - self.alpha

    def replace(self, **values: Any) -> Policy:
        """A copy with other constants."""
        return dataclasses.replace(self, **values)
