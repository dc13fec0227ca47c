"""Step counts from flags in steps or epochs, with an upper limit."""

from __future__ import annotations

import math

from cnnbench.errors import FlagError
from cnnbench.flags.groups.run import RunParams

DEFAULT_NUM_BATCHES = 100
MOST_STEPS = 2**31 - 1
MOST_EVALUATIONS = 100_000


def batches_and_epochs(
    num_batches: int | None,
    num_epochs: float | None,
    global_batch: int,
    examples: int,
) -> tuple[int, float]:
    """The number of global batches, and the epochs they make.

    Without either, 100 batches; epochs are rounded up to whole batches.

    Args:
      global_batch: images per step over all devices.
      examples: images in one epoch.
    """
    if num_epochs:
        batches = epoch_to_step("num_epochs", num_epochs, global_batch, examples)
    else:
        batches = num_batches or DEFAULT_NUM_BATCHES
    return batches, batches * global_batch / examples


def evaluation_batches(params: RunParams, global_batch: int, examples: int) -> int:
    """Global batches of an evaluation; as of the training where no flag of its own is given.

    Every pass over the examples ends with a batch that is filled up, so that passes have whole
    numbers of batches.
    """
    flag = "num_eval_epochs" if params.num_eval_epochs else "num_epochs"
    epochs = getattr(params, flag)
    if not epochs or params.num_eval_batches:
        return params.num_eval_batches or params.num_batches or DEFAULT_NUM_BATCHES
    passes, part = divmod(epochs, 1.0)
    steps = int(passes) * math.ceil(examples / global_batch)
    steps += math.ceil(int(part * examples) / global_batch)
    return _countable(flag, epochs, max(1, steps), global_batch, examples)


def evaluated_examples(batches: int, global_batch: int, examples: int, shards: int) -> int:
    """Examples that count in an evaluation, padding of the last batch excluded.

    Args:
      batches: global batches.
      examples: of the validation subset.
      shards: workers that read equal shares of it.
    """
    of_shard = global_batch // shards
    steps = math.ceil(math.ceil(examples / shards) / of_shard)
    passes, rest = divmod(batches, steps)
    shares = (len(range(shard, examples, shards)) for shard in range(shards))
    return passes * examples + sum(min(rest * of_shard, share) for share in shares)


def epoch_to_step(flag: str, epoch: float, global_batch: int, examples: int) -> int:
    """The first step count at which `epoch` epochs of images have been seen."""
    steps = max(1, math.ceil(int(epoch * examples) / global_batch))
    return _countable(flag, epoch, steps, global_batch, examples)


def evaluation_steps(
    params: RunParams, batches: int, epochs: float, examples: int, global_batch: int
) -> frozenset[int]:
    """Steps after which training pauses for an evaluation.

    Args:
      params: which of the four flags is given.
      batches, epochs: length of the training.
      examples: images in one epoch.

    Raises:
      FlagError: evaluations would come more often than steps, or too many of them.
    """
    if every := params.eval_during_training_every_n_steps:
        _check_count("eval_during_training_every_n_steps", every, batches / every)
        steps = set(range(every, batches + 1, every))
    elif period := params.eval_during_training_every_n_epochs:
        flag = "eval_during_training_every_n_epochs"
        if period * examples < global_batch:
            per_epoch = examples / global_batch
            reason = f"is less than one step; an epoch has {per_epoch:.3g} steps"
            raise FlagError(flag, period, reason)
        _check_count(flag, period, epochs / period)
        points = [(i + 1) * period for i in range(math.ceil(epochs / period))]
        steps = {epoch_to_step(flag, e, global_batch, examples) for e in points if e < epochs}
    else:
        flag = "eval_during_training_at_specified_epochs"
        steps = set(params.eval_during_training_at_specified_steps)
        for epoch in params.eval_during_training_at_specified_epochs:
            steps.add(epoch_to_step(flag, epoch, global_batch, examples))
    # The evaluation after the last step is the final one and has its own line.
    return frozenset(step for step in steps if step < batches)


def _countable(flag: str, epochs: float, steps: int, global_batch: int, examples: int) -> int:
    if steps > MOST_STEPS:
        most = MOST_STEPS * global_batch / examples
        raise FlagError(flag, epochs, f"must be at most {most:.3g}: {MOST_STEPS} steps")
    return steps


def _check_count(flag: str, value: float, count: float) -> None:
    if count > MOST_EVALUATIONS:
        raise FlagError(flag, value, f"means {count:.3g} evaluations, not up to {MOST_EVALUATIONS}")
