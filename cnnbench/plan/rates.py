"""The learning rate of each step, from the flags or from the model's own schedule.

The host computes the learning rate from the step number, without TensorFlow, and passes it to the
step. The rate depends on the global batch size, but not on the mode or the number of towers.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from cnnbench.flags.groups.optimizer import OptimizerParams
from cnnbench.models.learning_rate import LearningRateSpec
from cnnbench.optimizers.registry import SCHEDULES
from cnnbench.optimizers.schedules import Schedule, ScheduledSteps


class LearningRates(NamedTuple):
    """The learning rate of each step, and the values from which it is computed. Without training,
    the rate is 0.

    Attributes:
      schedule: the learning rate as a function of the step (from 0).
      base: the learning rate after the warm-up.
      warmup_epochs, warmup_steps: length of the linear increase from 0 to `base`.
      boundaries_epochs: epochs at which the rate changes in steps; empty if it does not.
    """

    schedule: Schedule
    base: float = 0.0
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    boundaries_epochs: tuple[float, ...] = ()


def make_rates(
    flags: OptimizerParams,
    defaults: LearningRateSpec,
    global_batch: int,
    examples_per_epoch: int,
    steps: int,
) -> LearningRates:
    """Returns the learning rates of a run.

    In this order: --piecewise_learning_rate_schedule, --init_learning_rate (with or without decay,
    see --learning_rate_schedule), the model's own schedule. Only the first two use
    --num_learning_rate_warmup_epochs; only models that scale their rate by the batch size (the
    ResNets of ImageNet, today's networks) use --resnet_base_lr.

    Args:
      global_batch: images per step over all towers and workers.
      steps: number of steps of the whole run, from global step 0; a cosine ends with them.

    Raises:
      FlagError: if decay would come more often than steps.
    """
    base, warmup_epochs, epochs = _base_and_epochs(flags, defaults, global_batch)
    steps_per_epoch = examples_per_epoch / global_batch
    warmup = int(steps_per_epoch * warmup_epochs)
    boundaries = [int(epoch * steps_per_epoch) for epoch in epochs]
    if flags.piecewise_learning_rate_schedule is not None:
        rates = flags.piecewise_learning_rate_schedule.rates
        # The flag's boundaries take effect one step earlier than a model's, as in
        # tf_cnn_benchmarks.
        decayed = _piecewise([boundary - 1 for boundary in boundaries], rates)
    elif flags.init_learning_rate is None and defaults.decay_epochs:
        # The period is computed from examples instead of whole steps, as in tf_cnn_benchmarks.
        period = max(1, int(defaults.decay_epochs * examples_per_epoch // global_batch))

        def decayed(step: int) -> float:
            """Returns the learning rate of a step. It changes by the same factor after every
            period.
            """
            return base * defaults.decay_factor ** (step // period)

    elif flags.init_learning_rate is None:
        if defaults.whole_batches:
            boundaries = [int(epoch * int(steps_per_epoch)) for epoch in epochs]
        decayed = _piecewise(boundaries, [base * factor for factor in defaults.factors])
    else:
        run = ScheduledSteps(base, warmup, steps, steps_per_epoch)
        decayed = SCHEDULES.find(flags.learning_rate_schedule)(run, flags)

    def schedule(step: int) -> float:
        return base * step / warmup if step < warmup else decayed(step)

    return LearningRates(schedule, base, warmup_epochs, warmup, epochs)


def _base_and_epochs(
    flags: OptimizerParams, defaults: LearningRateSpec, global_batch: int
) -> tuple[float, float, tuple[float, ...]]:
    """Returns `base`, `warmup_epochs` and `boundaries_epochs` of `LearningRates`."""
    pieces, base = flags.piecewise_learning_rate_schedule, flags.init_learning_rate
    if pieces is not None:
        return pieces.rates[0], flags.num_learning_rate_warmup_epochs, pieces.boundaries
    if base is not None:
        return base, flags.num_learning_rate_warmup_epochs, ()
    base = defaults.base
    if defaults.base_batch is not None:
        base = base if flags.resnet_base_lr is None else flags.resnet_base_lr
        base *= global_batch / defaults.base_batch
    return base, defaults.warmup_epochs, defaults.boundaries_epochs


def _piecewise(boundaries: Sequence[int], rates: Sequence[float]) -> Schedule:
    """A schedule of constant learning rates: ``rates[k]`` applies until step ``boundaries[k]``.

    The boundary step is included. The last rate applies after the last boundary.
    """
    return lambda step: rates[bisect.bisect_left(boundaries, step)]
