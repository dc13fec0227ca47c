"""The metric that ends a training, and its check in each evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.models.model import Model
from cnnbench.records.parts import Target

if TYPE_CHECKING:
    from cnnbench.run.driver.host_metrics import Evaluated

TOP_1_ACCURACY = "top_1_accuracy"
"""What tf_cnn_benchmarks calls the metric that ends a training, whatever the model."""


def target_of(params: Params, model: Model) -> Target | None:
    """The target of a run; None without one.

    Raises:
      FlagError: the model has no such metric, or the value is out of the metric's range.
    """
    if params.stop_at_top_1_accuracy is not None:
        flag, value = "stop_at_top_1_accuracy", params.stop_at_top_1_accuracy
        given, text = TOP_1_ACCURACY, str(value)
    elif params.stop_at is not None:
        flag, value = "stop_at", params.stop_at.value
        given, text = params.stop_at.metric, params.stop_at.source
    else:
        return None
    names = ("loss", *model.metric_names, *model.host_metric_names)
    aliases = {name.lower(): name for name in reversed(names)}
    if model.top_1_accuracy in names:
        aliases[TOP_1_ACCURACY] = model.top_1_accuracy
    if "top_5" in names:
        aliases["top_5_accuracy"] = "top_5"
    metric = given if given in names else aliases.get(given.lower())
    if metric is None:
        called = "top-1 accuracy" if given == TOP_1_ACCURACY else f"metric {given}"
        reason = f"model {model.name} has no {called}; its metrics are {', '.join(names)}"
        if model.has_host_metrics() and not model.host_metric_names:
            reason += " (host_metric_names does not declare those of host_metrics)"
        if flag != "stop_at":
            reason += ": use --stop_at=METRIC:VALUE"
        raise FlagError(flag, text, reason)
    if metric in (model.top_1_accuracy, "top_1", "top_5") and not 0 <= value <= 1:
        raise FlagError(flag, text, f"{metric} is from 0 to 1")
    return Target(metric=metric, value=value, lower_is_better=model.is_better_lower(metric))


def target_notice(params: Params, target: Target | None) -> str | None:
    """A notice if --stop_at_top_1_accuracy is applied to another metric; else None."""
    if target is None or params.stop_at_top_1_accuracy is None or target.metric == "top_1":
        return None
    return (
        f"--stop_at_top_1_accuracy is the {target.metric} of {params.model}, as in "
        f"tf_cnn_benchmarks: --stop_at={target}"
    )


class TargetWatch:
    """Compares each evaluation with the target.

    Metrics that a process of its own computes count at the next evaluation, which waits for them:
    how many steps a training has does not depend on how long that process takes.

    Args:
      target: of the run; None never ends it.
      late: whether such a process computes `Model.host_metrics`.
    """

    def __init__(self, target: Target | None, *, late: bool) -> None:
        self._target = target
        self._late = late
        self._waiting: Evaluated | None = None

    def reached_before(self) -> bool:
        """Whether the previous evaluation, complete by now, has reached the target."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or self._target is None:
            return False
        return self._target.reached(waiting.metrics.get(self._target.metric))

    def reached(self, found: Evaluated) -> bool:
        """Whether this evaluation reaches the target, by the metrics known so far."""
        if self._target is None:
            return False
        metrics = {"loss": found.evaluation.loss, **found.means}
        if self._target.metric not in metrics:
            if self._late:
                self._waiting = found
                return False
            metrics = {**found.metrics}
        return self._target.reached(metrics.get(self._target.metric))
