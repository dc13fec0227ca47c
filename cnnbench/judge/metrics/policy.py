"""The constants of the statistical tests. docs/compare_reference.md contains the formulas, and
docs/methodology.md the error rates of verdicts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from cnnbench.judge.metrics.judged import STARTUP
from cnnbench.records.codec import HIDDEN, document_keys
from cnnbench.records.metric import METRICS, Metric

FAILURES = ("slower", "faster", "changed")
"""Words that `fail_on` accepts, except "never"."""

_QUESTIONS = ("slower", "faster")


def asked_directions(fail_on: Collection[str] | None) -> tuple[str, ...]:
    """Returns the changes that a verdict must find or exclude: "slower", "faster" or both.

    `fail_on` contains words of --fail_on. Without either word, the question is whether NEW is
    slower.
    """
    return tuple(word for word in (fail_on or ()) if word in _QUESTIONS) or _QUESTIONS[:1]


def check_fail_on(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the words of --fail_on that set exit code 1; () for "never". Raises ValueError if
    "never" is combined with other words.
    """
    never = "never" in words
    if not words or (never and len({*words}) > 1):
        raise ValueError(f"must be one or more of {', '.join(FAILURES)}, or only never")
    return () if never else tuple(dict.fromkeys(words))


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The constants of the statistical tests, such as thresholds and significance levels, and the
    settings of rules for one metric.

    A sample has one value per process.

    Attributes:
      threshold: smallest relevant change of throughput, and of other metrics without an own
        threshold, as a share (0.03: 3 %). On a quiet machine, the medians of equal processes have a
        standard deviation of about 1.3 %, so confidence intervals from 5 to 8 processes of each of
        BASE and NEW extend by 1.4 to 2 % in both directions. A lower threshold would never give the
        verdict "same". A threshold above 5 % would miss relevant changes.
      alpha: two-sided significance level of the tests over all configurations of a comparison, and
        over all requested metrics (Benjamini and Hochberg). A false alarm is one of the two tails:
        with 0.04, at most 2 % of comparisons of equal code are called slower, whatever the noise,
        if the runs of BASE and NEW were interleaved. Confidence intervals have the level 1 - alpha,
        or 1 - share * alpha.
      further_alpha: significance level for each metric that has an own threshold and no share of
        alpha. The values of such a metric are nearly constant, or its threshold is large, so a low
        level costs little power: 5 values that are all above 5 other values have p = 0.008. Without
        --metrics, memory and accuracy add at most half a per cent each to the 2 % of throughput.
      min_processes: minimum number of processes of each of BASE and NEW for a verdict. The smallest
        p-value of 4 against 4 processes is 2/70 = 0.029. For 3 against 3 it is 0.1, which is above
        any alpha in use.
      memory_threshold, startup_threshold, accuracy_threshold: smallest relevant change of peak
        memory, start-up time and accuracy.
      memory_bytes: smallest relevant change of peak memory, in bytes.
      own_threshold, fail_on: settings of rules for one metric of one configuration: the smallest
        relevant change, and which verdicts set exit code 1; None without rules.
      gates: whether rules name verdicts on this metric that set exit code 1. They then do so even
        if the metric was not requested.
      share: share of alpha for one metric of one configuration; None if alpha is not shared.
      split: 0.5 if throughput and CPU time of the same runs are both tested, so that each has half
        of the share; otherwise 1.
      asked: whether an inconclusive result sets the exit code.
      questions: changes that a verdict must find or exclude, see `asked_directions`.
    """

    threshold: float = 0.03
    alpha: float = 0.04
    further_alpha: float = 0.01
    min_processes: int = 4
    memory_threshold: float = field(default=METRICS["memory"].threshold or 0.0, init=False)
    memory_bytes: int = field(default=int(METRICS["memory"].least), init=False)
    startup_threshold: float = field(default=STARTUP.threshold or 0.0, init=False)
    accuracy_threshold: float = field(default=METRICS["accuracy"].threshold or 0.0, init=False)
    own_threshold: float | None = field(default=None, metadata=HIDDEN)
    share: float | None = field(default=None, metadata=HIDDEN)
    split: float = field(default=1.0, metadata=HIDDEN)
    asked: bool = field(default=True, metadata=HIDDEN)
    questions: tuple[str, ...] = field(default=_QUESTIONS[:1], metadata=HIDDEN)
    fail_on: tuple[str, ...] | None = field(default=None, metadata=HIDDEN)
    gates: bool = field(default=False, metadata=HIDDEN)

    def __post_init__(self) -> None:
        for name, level in (("alpha", self.alpha), ("further_alpha", self.further_alpha)):
            if not 0 < level < 1:
                raise ValueError(f"{name}={level}: must lie between 0 and 1")
        if self.min_processes < 1:
            raise ValueError(f"min_processes={self.min_processes}: must be at least 1")
        for name, value in self.constants.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value}: must be finite and not negative")

    @property
    def constants(self) -> dict[str, float]:
        """The constants that are equal for all configurations and metrics, by name."""
        return {key.name: key.get(self) for key in document_keys(Policy)}

    def threshold_of(self, metric: Metric) -> float:
        """The smallest relevant change: a share of the base, or a difference of values."""
        usual = self.threshold if metric.threshold is None else metric.threshold
        return usual if self.own_threshold is None else self.own_threshold

    def alpha_of(self, metric: Metric) -> float:
        """Returns the two-sided significance level for the tests of a metric. If several metrics
        share alpha, returns the whole alpha, not a share.
        """
        if self.share is not None:
            return self.alpha
        usual = self.alpha if metric.threshold is None else self.further_alpha
        return metric.alpha or usual

    @property
    def alpha_share(self) -> float:
        """The share of the significance level alpha that the tests of the metric use: the share
        that rules give to it, or half of this share if throughput and CPU time are both tested.
        """
        return self.split * (1.0 if self.share is None else self.share)

    @property
    def confidence(self) -> float:
        """Confidence level of the intervals: 1 - alpha."""
        return 1 - self.alpha

    def replace(self, **values: Any) -> Policy:
        """Returns a copy of the policy in which the given constants are replaced."""
        return dataclasses.replace(self, **values)
