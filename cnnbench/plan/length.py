"""The length of a run: batches, steps, evaluations, and the metric value that ends the training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from cnnbench.base.steady_state import MIN_STEPS
from cnnbench.base.text import number
from cnnbench.errors import FlagError
from cnnbench.flags import Params, PlaceInJob, WorkKind
from cnnbench.models.model import Model
from cnnbench.plan.network import NetworkPlan
from cnnbench.records.run import Target

DEFAULT_NUM_BATCHES = 100


MINIMUM_WARMUP = 10


TOP_1_ACCURACY = "top_1_accuracy"
"""Name in tf_cnn_benchmarks of the metric that ends a training, for any model."""


_MOST_STEPS = 2**31 - 1


_MOST_COUNTED = 100_000


# --warmup=auto checks for a steady state again after 10 % more steps, but at least 5 steps.
_SMALLEST_STRIDE = 5


_GROWTH = 1.1


@dataclass(frozen=True)
class WarmUpLength:
    """The minimum and maximum number of warm-up steps of a run.

    Attributes:
      least: minimum number of steps.
      most: maximum number of steps; equal to `least` unless `auto`.
      auto: whether to continue after `least` steps until the step times are steady.
      together: number of steps that are executed and timed together; divides `least` and `most`.
    """

    least: int
    most: int
    auto: bool = False
    together: int = 1

    @cached_property
    def steadiness_check_steps(self) -> frozenset[int]:
        """The steps after which --warmup=auto checks whether the step times are steady.

        The distance between checks grows with the number of steps: the time of a check grows with
        its square, and more checks find more false steady states.
        """
        if not self.auto:
            return frozenset()
        counts = []
        count, most = max(self.least // self.together, MIN_STEPS), self.most // self.together
        while count < most:
            counts.append(count)
            count = max(count + _SMALLEST_STRIDE, int(count * _GROWTH))
        return frozenset(number * self.together for number in (*counts, most))


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """The batch sizes of a run, and its numbers of batches, steps, examples and evaluations.

    The numbers of warm-up steps and timed steps, and the steps before evaluations, are multiples of
    --steps_per_execution.

    Attributes:
      batch_per_device: images per device in one forward and backward pass.
      global_batch: images per training step, of all devices and passes.
      eval_batch_per_device: images per device in an evaluation step.
      batches, epochs: length of the timed loop, or with --eval of the evaluation.
      train_examples: images of one training epoch; 0 with --eval.
      eval_batches: global batches of one evaluation.
      eval_examples: examples of one evaluation, without padding.
      eval_steps: global steps after which the training pauses for an evaluation.
      target: metric that ends the training; None if no metric does.
      extra_examples: how many examples more the steps before a restored checkpoint trained on than
        the same number of steps with `global_batch`; negative if there were fewer.
    """

    batch_per_device: int
    global_batch: int
    eval_batch_per_device: int
    batches: int
    epochs: float
    warm_up: WarmUpLength
    train_examples: int
    eval_batches: int
    eval_examples: int
    eval_steps: frozenset[int]
    target: Target | None
    extra_examples: int = 0

    @classmethod
    def resolved(
        cls, flags: Params, work: WorkKind, place: PlaceInJob, network: NetworkPlan
    ) -> RunLength:
        """Computes batch sizes and numbers of steps from the flags.

        FlagError for impossible numbers of steps and evaluation points.
        """
        dataset = network.dataset
        towers = place.towers_per_step
        batch = flags.batch_size or network.model.batch_size
        passes = flags.gradient_accumulation_steps
        if flags.global_batch_size:
            batch = _divide_batch(flags.global_batch_size, towers, passes)
        eval_batch = flags.eval_batch_size or batch
        evaluating = work is WorkKind.EVALUATION
        epoch = dataset.num_examples("validation" if evaluating else "train", flags.data_dir)
        eval_batches, eval_examples = 0, 0
        if work.evaluates:
            seen = epoch if evaluating else dataset.num_examples("validation", flags.data_dir)
            eval_batches, eval_examples = _eval_length(flags, place, seen, eval_batch * towers)
        global_batch = (eval_batch if evaluating else batch) * passes * towers
        if evaluating:
            batch, batches = eval_batch, eval_batches
        elif flags.num_epochs:
            batches = _step_at_epoch("num_epochs", flags.num_epochs, global_batch, epoch)
        else:
            batches = flags.num_batches or DEFAULT_NUM_BATCHES
        together = flags.steps_per_execution
        batches = round_up_steps(batches, together)
        epochs = batches * global_batch / epoch
        eval_steps = _eval_steps(flags, batches, epochs, epoch, global_batch)
        return cls(
            batch_per_device=batch,
            global_batch=global_batch,
            eval_batch_per_device=eval_batch,
            batches=batches,
            epochs=epochs,
            warm_up=WarmUpLength(0, 0) if evaluating else _warm_up(flags),
            train_examples=0 if evaluating else epoch,
            eval_batches=eval_batches,
            eval_examples=eval_examples,
            eval_steps=frozenset(round_up_steps(step, together) for step in eval_steps),
            target=_parse_target(flags, network.model),
        )

    @property
    def training_steps(self) -> int:
        """Number of steps of the whole training from global step 0, including warm-up steps."""
        return self.warm_up.least + self.batches

    @property
    def extra_steps(self) -> int:
        """`extra_examples` in steps of `global_batch`, rounded down. Schedules per epoch add it to
        the global step.
        """
        return self.extra_examples // self.global_batch

    def examples_after(self, global_step: int) -> int:
        """Number of examples that the first `global_step` steps train on, of all runs together."""
        return global_step * self.global_batch + self.extra_examples

    def resumed(self, flags: Params, global_step: int, examples: int) -> RunLength:
        """Returns the length of a training that continues from a checkpoint.

        Lengths and evaluation points in epochs count examples, so earlier runs may have had other
        batch sizes and numbers of devices. Those in steps count global steps.

        Args:
          examples: number of training examples of the first `global_step` steps.
        """
        extra = examples - global_step * self.global_batch
        if not extra:
            return self
        batches, together = self.batches, flags.steps_per_execution
        if flags.num_epochs:
            left = _examples_until(flags.num_epochs, self.train_examples) - examples
            batches = global_step + round_up_steps(-(-left // self.global_batch), together)
        epochs = (batches * self.global_batch + extra) / self.train_examples
        points = _eval_steps(flags, batches, epochs, self.train_examples, self.global_batch, extra)
        return replace(
            self,
            batches=batches,
            epochs=epochs,
            eval_steps=frozenset(round_up_steps(step, together) for step in points),
            extra_examples=extra,
        )

    def check_steps_left(self, flags: Params, done: int) -> None:
        """Raises FlagError if the checkpoint in --train_dir has more steps (`done`) than a run."""
        # A checkpoint's step number includes warm-up steps, because they train the network, too.
        if done - self.batches <= self.warm_up.most:
            return
        place = f"the checkpoint in --train_dir={flags.train_dir} is at"
        if flags.num_epochs:
            epochs = number(self.examples_after(done) / self.train_examples)
            reason = f"{place} epoch {epochs} already; ask for more epochs or for another directory"
            raise FlagError("num_epochs", flags.num_epochs, reason)
        reason = f"{place} step {done} already; ask for more batches or for another directory"
        raise FlagError("num_batches", self.batches, reason)


def round_up_steps(steps: int, together: int) -> int:
    """The number of steps, rounded up to a multiple of `together`."""
    return -(-steps // together) * together


def _divide_batch(global_batch: int, devices: int, passes: int) -> int:
    """Divides a global batch by devices and passes. Returns the images of one device in one pass.

    FlagError if the global batch cannot be divided equally.
    """
    per_step = devices * passes
    if global_batch % per_step:
        lower = global_batch // per_step * per_step
        near = f"{lower} or {lower + per_step}" if lower else f"{per_step}"
        times = f" times {passes} passes" if passes > 1 else ""
        reason = f"must be a multiple of the {devices} devices of an update{times}, such as {near}"
        raise FlagError("global_batch_size", global_batch, reason)
    return global_batch // per_step


def _eval_length(
    params: Params, place: PlaceInJob, examples: int, global_batch: int
) -> tuple[int, int]:
    """Returns the number of global batches and the number of examples in an evaluation.

    If no flag gives its length, an evaluation is as long as the training. The last batch of each
    pass over the examples is padded, so that each pass consists of whole batches.
    """
    flag = "num_eval_epochs" if params.num_eval_epochs else "num_epochs"
    epochs = getattr(params, flag)
    if not epochs or params.num_eval_batches:
        batches = params.num_eval_batches or params.num_batches or DEFAULT_NUM_BATCHES
    else:
        passes, part = divmod(epochs, 1.0)
        steps = int(passes) * math.ceil(examples / global_batch)
        steps += math.ceil(int(part * examples) / global_batch)
        batches = _checked_steps(flag, epochs, max(1, steps), global_batch, examples)
    if params.data_dir is None:
        return batches, batches * global_batch
    shards = 1 if place.asynchronous else place.job.num_workers
    return batches, count_evaluated_examples(batches, global_batch, examples, shards)


def _warm_up(params: Params) -> WarmUpLength:
    least = params.num_warmup_batches
    if least is None:
        # TensorFlow's autotuner tries convolution algorithms in the first steps on a GPU, so the
        # warm-up must include these steps.
        least = max(MINIMUM_WARMUP, 5 * (params.autotune_threshold or 1) ** 2)
        _refuse_too_many(
            "autotune_threshold", params.autotune_threshold or 1, least, "warm-up steps"
        )
    together = params.steps_per_execution
    least = round_up_steps(least, together)
    if params.warmup != "auto":
        return WarmUpLength(least, least, together=together)
    if params.max_warmup_batches < least:
        raise FlagError(
            "max_warmup_batches",
            params.max_warmup_batches,
            f"is less than the minimum of {least} warm-up steps (see --num_warmup_batches); "
            f"use at least {least}",
        )
    most = round_up_steps(params.max_warmup_batches, together)
    return WarmUpLength(least, most, auto=True, together=together)


def _parse_target(params: Params, model: Model) -> Target | None:
    """Returns the metric value at which the training ends (--stop_at); None if no flag sets it.

    Raises:
      FlagError: the model has no such metric, or the value is out of the metric's range.
    """
    if params.stop_at_top_1_accuracy is not None:
        flag, value = "stop_at_top_1_accuracy", params.stop_at_top_1_accuracy
        metric_name, text = TOP_1_ACCURACY, str(value)
    elif params.stop_at is not None:
        flag, value = "stop_at", params.stop_at.value
        metric_name, text = params.stop_at.metric, params.stop_at.source
    else:
        return None
    names = ("loss", *model.metric_names, *model.host_metric_names)
    aliases = {name.lower(): name for name in reversed(names)}
    if model.top_1_accuracy in names:
        aliases[TOP_1_ACCURACY] = model.top_1_accuracy
    if "top_5" in names:
        aliases["top_5_accuracy"] = "top_5"
    metric = metric_name if metric_name in names else aliases.get(metric_name.lower())
    if metric is None:
        called = "top-1 accuracy" if metric_name == TOP_1_ACCURACY else f"metric {metric_name}"
        reason = f"model {model.name} has no {called}; its metrics are {', '.join(names)}"
        if model.has_host_metrics() and not model.host_metric_names:
            reason += " (host_metric_names does not declare those of host_metrics)"
        if flag != "stop_at":
            reason += ": use --stop_at=METRIC:VALUE"
        raise FlagError(flag, text, reason)
    if metric in (model.top_1_accuracy, "top_1", "top_5") and not 0 <= value <= 1:
        raise FlagError(flag, text, f"{metric} must be from 0 to 1")
    lower = metric == "loss" or metric in model.lower_is_better
    return Target(metric=metric, value=value, lower_is_better=lower)


def count_evaluated_examples(batches: int, global_batch: int, examples: int, shards: int) -> int:
    """Number of examples in an evaluation, without the padding of the last batch.

    Args:
      batches: global batches.
      examples: examples of the validation subset.
      shards: workers that read equal shares of it.
    """
    of_shard = global_batch // shards
    steps = math.ceil(math.ceil(examples / shards) / of_shard)
    passes, rest = divmod(batches, steps)
    shares = (len(range(shard, examples, shards)) for shard in range(shards))
    return passes * examples + sum(min(rest * of_shard, share) for share in shares)


def _examples_until(epoch: float, examples: int) -> int:
    return max(1, int(epoch * examples))


def _step_at_epoch(
    flag: str, epoch: float, global_batch: int, examples: int, extra: int = 0
) -> int:
    """Returns the smallest number of steps that read at least `epoch` epochs of images.

    `extra` is `RunLength.extra_examples`.
    """
    steps = max(1, math.ceil((_examples_until(epoch, examples) - extra) / global_batch))
    return _checked_steps(flag, epoch, steps, global_batch, examples)


def _eval_steps(
    params: Params,
    batches: int,
    epochs: float,
    examples: int,
    global_batch: int,
    extra: int = 0,
) -> frozenset[int]:
    """Returns the global steps, before the last, after which training pauses for an evaluation.

    Args:
      params: contains at most one of the four eval_during_training flags.
      batches, epochs: length of the training.
      examples: images in one epoch.
      extra: see `RunLength.extra_examples`.

    Raises:
      FlagError: evaluations would come more often than steps, or too many of them.
    """
    if every := params.eval_during_training_every_n_steps:
        _refuse_too_many("eval_during_training_every_n_steps", every, batches / every)
        steps = set(range(every, batches + 1, every))
    elif period := params.eval_during_training_every_n_epochs:
        flag = "eval_during_training_every_n_epochs"
        if period * examples < global_batch:
            per_epoch = examples / global_batch
            reason = f"is less than one step; an epoch has {number(per_epoch)} steps"
            raise FlagError(flag, period, reason)
        _refuse_too_many(flag, period, epochs / period)
        points = [(i + 1) * period for i in range(math.ceil(epochs / period))]
        points = [epoch for epoch in points if epoch < epochs]
        steps = {_step_at_epoch(flag, epoch, global_batch, examples, extra) for epoch in points}
    else:
        flag = "eval_during_training_at_specified_epochs"
        steps = set(params.eval_during_training_at_specified_steps)
        for epoch in params.eval_during_training_at_specified_epochs:
            steps.add(_step_at_epoch(flag, epoch, global_batch, examples, extra))
    # Every run ends with an evaluation anyway, so the last step is left out here.
    return frozenset(step for step in steps if step < batches)


def _checked_steps(flag: str, epochs: float, steps: int, global_batch: int, examples: int) -> int:
    if steps > _MOST_STEPS:
        most = _MOST_STEPS * global_batch // examples
        reason = f"must be at most {most}, because a run has at most {_MOST_STEPS} steps"
        raise FlagError(flag, epochs, reason)
    return steps


def _refuse_too_many(flag: str, value: float, count: float, what: str = "evaluations") -> None:
    if count > _MOST_COUNTED:
        most = f"at most {_MOST_COUNTED} are possible"
        raise FlagError(flag, value, f"means {number(count)} {what}, but {most}")
