"""The target of a training: the value of a metric that ends it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A metric of evaluations and the value at which training ends.

    Attributes:
      metric: "loss", "top_1", "top_5" or a name among `Evaluation.metrics`.
      value: the metric's.
      lower_is_better: whether the metric must be at most `value`; otherwise at least.
    """

    metric: str
    value: float
    lower_is_better: bool = False

    def reached(self, found: float | None) -> bool:
        """Whether this value of the metric reaches the target; NaN and None never do."""
        if found is None:
            return False
        return found <= self.value if self.lower_is_better else found >= self.value

    def __str__(self) -> str:
        return f"{self.metric}:{str(self.value).removesuffix('.0')}"
