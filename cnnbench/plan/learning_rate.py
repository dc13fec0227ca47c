"""Learning rate of each step, from the flags or from the model's own schedule.

Plain arithmetic of the step number, without TensorFlow: the rate is computed by
the host and handed to the step. It depends on the global batch size, never on the
mode or on how many towers share that batch.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from cnnbench.flags.groups.optimizer import OptimizerParams
from cnnbench.models.spec import LearningRateSpec
from cnnbench.optimizers.registry import SCHEDULES
from cnnbench.optimizers.schedules import Schedule, ScheduledSteps
from cnnbench.plan.length import Length
from cnnbench.plan.setup import Setup
from cnnbench.plan.work import Work


@dataclass(frozen=True)
class Outline:
    """Parameters of a schedule, whichever flags or model it comes from.

    Attributes:
      base: the rate after the warm-up.
      warmup_epochs, warmup_steps: length of the linear increase from 0 to `base`.
      boundaries_epochs: where the rate changes by a factor of its own; empty without any.
    """

    base: float
    warmup_epochs: float
    warmup_steps: int
    boundaries_epochs: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        flags: OptimizerParams,
        defaults: LearningRateSpec,
        global_batch: int,
        examples_per_epoch: int,
    ) -> Outline:
        """The outline of `make_schedule` with the same arguments."""
        pieces, base = flags.piecewise_learning_rate_schedule, flags.init_learning_rate
        epochs: float = flags.num_learning_rate_warmup_epochs
        boundaries: tuple[float, ...] = ()
        if pieces is not None:
            base, boundaries = pieces.rates[0], pieces.boundaries
        elif base is None:
            epochs, boundaries = defaults.warmup_epochs, defaults.boundaries_epochs
            base = defaults.base
            if defaults.base_batch is not None:
                base = base if flags.resnet_base_lr is None else flags.resnet_base_lr
                base *= global_batch / defaults.base_batch
        steps_per_epoch = examples_per_epoch / global_batch
        return cls(base, epochs, int(steps_per_epoch * epochs), boundaries)


@dataclass(frozen=True)
class LearningRates:
    """The learning rates of a run; 0 in an evaluation."""

    outline: Outline
    schedule: Schedule

    @classmethod
    def resolved(cls, setup: Setup, defaults: LearningRateSpec, length: Length) -> LearningRates:
        """The rates that the flags ask for, or those of the model; see `make_schedule`."""
        if setup.work is Work.EVALUATION:
            return cls(Outline(0.0, 0.0, 0), lambda step: 0.0)
        sizes = length.global_batch, length.train_examples
        schedule = make_schedule(setup.params, defaults, *sizes, length.training_steps)
        return cls(Outline.of(setup.params, defaults, *sizes), schedule)


def make_schedule(
    flags: OptimizerParams,
    defaults: LearningRateSpec,
    global_batch: int,
    examples_per_epoch: int,
    steps: int,
) -> Schedule:
    """The learning rate of a run, by step from 0.

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
    steps_per_epoch = examples_per_epoch / global_batch
    outline = Outline.of(flags, defaults, global_batch, examples_per_epoch)
    base, warmup = outline.base, outline.warmup_steps
    boundaries = [int(epoch * steps_per_epoch) for epoch in outline.boundaries_epochs]
    if flags.piecewise_learning_rate_schedule is not None:
        rates = flags.piecewise_learning_rate_schedule.rates
        # One step earlier than a model's own boundaries, as in tf_cnn_benchmarks.
        schedule = _piecewise([boundary - 1 for boundary in boundaries], rates)
    elif flags.init_learning_rate is None and defaults.decay_epochs:
        # As many examples of the data set, not steps of an epoch, as in tf_cnn_benchmarks.
        period = max(1, int(defaults.decay_epochs * examples_per_epoch // global_batch))

        def schedule(step: int) -> float:
            """A staircase without end; the first step of a period has its rate."""
            return base * defaults.decay_factor ** (step // period)

    elif flags.init_learning_rate is None:
        if defaults.whole_batches:
            boundaries = [int(epoch * int(steps_per_epoch)) for epoch in outline.boundaries_epochs]
        schedule = _piecewise(boundaries, [base * factor for factor in defaults.factors])
    else:
        run = ScheduledSteps(base, warmup, steps, steps_per_epoch)
        schedule = SCHEDULES.find(flags.learning_rate_schedule)(run, flags)
    if not warmup:
        return schedule
    return lambda step: base * step / warmup if step < warmup else schedule(step)


def _piecewise(boundaries: Sequence[int], rates: Sequence[float]) -> Schedule:
    """Rate k up to and including boundary k, the last rate after the last boundary."""
    return lambda step: rates[bisect.bisect_left(boundaries, step)]
