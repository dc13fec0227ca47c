"""Constants of the verdicts, each with its reason; docs/compare_reference.md has the formulas.

Rules of one metric are in its declaration, see `cnnbench.records.metric.Metric`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cnnbench.records.metric import Metric


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Constants of the verdicts. A sample is one value per process.

    Attributes:
      threshold: smallest change of throughput, and of other metrics without a threshold of their
        own, that counts, as a share (0.03: 3 %). On a quiet machine medians of equal processes have
        a standard deviation of about 1.3 %, so confidence intervals of 5 to 8 processes per side
        are 1.4 to 2 % wide to each side. A lower threshold would never give "same", one above 5 %
        would miss relevant changes.
      alpha: two-sided level of the tests over all configurations of a comparison (Holm). A false
        alarm is one of the two tails: with 0.04 at most 2 % of comparisons of equal sides are
        called slower, whatever the noise, if the runs of both sides were interleaved. Confidence
        intervals have the level 1 - alpha.
      further_alpha: level of each metric with a threshold of its own. Their values are nearly
        constant or their floors wide, so a low level costs little: 5 against 5 separated values
        have p = 0.008. Memory and accuracy add at most half a per cent each to the 2 % of
        throughput.
      min_processes: smallest number of processes per side for a verdict. The smallest p of 4
        against 4 is 2/70 = 0.029; that of 3 against 3 is 0.1, above any alpha in use.
      noise_factor: number of standard deviations of single A/A processes in the A/A spread. It is
        not divided by the number of processes, because more processes per session do not reduce
        the difference between sessions.
      same_limit: widest margin within which two sides may be called the same. The floor grows with
        the A/A spread, and at a spread of 30 % would make a slow-down of 10 % "the same".
    """

    threshold: float = 0.03
    alpha: float = 0.04
    further_alpha: float = 0.01
    min_processes: int = 4
    noise_factor: float = 2.0
    same_limit: float = 0.05

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

    def threshold_of(self, metric: Metric) -> float:
        """Smallest change of a metric that counts: a share, or a difference in its unit."""
        return self.threshold if metric.threshold is None else metric.threshold

    def alpha_of(self, metric: Metric) -> float:
        """Two-sided level of the tests of a metric."""
        usual = self.alpha if metric.threshold is None else self.further_alpha
        return metric.alpha or usual

    @property
    def confidence(self) -> float:
        """Confidence level of the intervals."""
        return 1 - self.alpha

    def replace(self, **values: Any) -> Policy:
        """A copy with other constants."""
        return dataclasses.replace(self, **values)
