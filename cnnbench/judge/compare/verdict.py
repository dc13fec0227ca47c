"""Verdicts of a comparison."""

from __future__ import annotations

import enum

from cnnbench.judge.metrics.registry import Metric


class Level(enum.Enum):
    """Meaning of a verdict for a gate; the values are GitHub's levels of annotations."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"
    NONE = ""


class Verdict(enum.Enum):
    """The verdict on a metric; FASTER means better and SLOWER worse for any metric."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"
    FAILED = "failed"
    CHANGED_WORK = "changed work"

    @property
    def undecided(self) -> bool:
        """Whether the verdict is open and nothing failed."""
        return self in (Verdict.INCONCLUSIVE, Verdict.NOT_COMPARABLE, Verdict.MISSING)

    def word(self, metric: Metric) -> str:
        """The verdict in the words of a metric."""
        if self is Verdict.FASTER:
            return metric.better
        return metric.worse if self is Verdict.SLOWER else self.value
