"""The plan of a run, resolved from its parameters before TensorFlow is loaded.

Everything that can be refused without a device is refused here: unknown models
and data sets, empty data directories, impossible step counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.jobs.job import Job
from cnnbench.base.stats.steady_state import MIN_STEPS
from cnnbench.data.dataset import Dataset, find_dataset, load_plugin
from cnnbench.data.spec import Preprocess
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import Params
from cnnbench.flags.cluster import agreed_facts, asynchronous, coordinated, digest_of
from cnnbench.flags.groups.run import evaluates
from cnnbench.flags.optimizers import OPTIMIZERS
from cnnbench.flags.reductions import all_reduce_of, bucket_bytes
from cnnbench.models import registry
from cnnbench.models.declare import declare
from cnnbench.models.elements import Element, resolve
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec
from cnnbench.records.parts import Target
from cnnbench.run.driver.learning_rate import Schedule, make_schedule
from cnnbench.run.driver.plan_checks import (
    check_backbone,
    check_elements,
    check_frozen,
    check_input,
    check_int8,
    check_model,
    check_shards,
    check_urls,
    set_aux_head,
)
from cnnbench.run.step.update_plan import UpdatePlan, plan_update
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce import single

DEFAULT_NUM_BATCHES = 100
MINIMUM_WARMUP = 10
DEFAULT_FP16_LOSS_SCALE = 128.0

TOP_1_ACCURACY = "top_1_accuracy"
"""Name that tf_cnn_benchmarks has for the metric that ends a training, for any model."""

_MOST_STEPS = 2**31 - 1
_MOST_COUNTED = 100_000

# Distance of the checks of --warmup=auto: least number of steps, and growth of the series.
_SMALLEST_STRIDE = 5
_GROWTH = 1.1


COMPUTE_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "float32"}
"""Compute dtype by --precision; with int8, that of everything but convolutions."""


@dataclass(frozen=True)
class WarmUp:
    """The length of a warm-up.

    Attributes:
      least: minimum number of steps.
      most: maximum number of steps; equal to least unless auto.
      auto: whether to continue after `least` until the steps are steady.
    """

    least: int
    most: int
    auto: bool = False

    @cached_property
    def checks(self) -> frozenset[int]:
        """Numbers of the steps after which the times so far are checked.

        Their distance grows with the series: a check takes time in proportion to the
        square of its length, and more checks find more false steady states.
        """
        if not self.auto:
            return frozenset()
        found = []
        step = max(self.least, MIN_STEPS)
        while step < self.most:
            found.append(step)
            step = max(step + _SMALLEST_STRIDE, int(step * _GROWTH))
        return frozenset([*found, self.most])


@dataclass(frozen=True)
class Plan:
    """Sizes and step counts of one run.

    Attributes:
      mode: "training", "evaluation", "training + evaluation", "forward only" or "input only",
        as the header prints it.
      batch_per_device, global_batch: images per training step.
      eval_batch_per_device: images per device in an evaluation step.
      num_batches, num_epochs: length of the timed loop (in evaluation mode: of
        the evaluation).
      train_examples: images of one training epoch; 0 in evaluation mode.
      num_eval_batches: global batches of one evaluation.
      eval_examples: examples of one evaluation, without padding.
      eval_steps: timed steps after which an evaluation is due.
      aggregation: how gradients are packed and reduced, in modes with a copy per tower.
      asynchronous: whether workers update the variables independently. Then a step is an update by
        one worker, and the global batch is that of its towers.
      examples: elements of an example of the data set, with resolved sizes.
    """

    model: Model
    spec: ModelSpec
    dataset: Dataset
    mode: str
    batch_per_device: int
    global_batch: int
    eval_batch_per_device: int
    num_batches: int
    num_epochs: float
    warm_up: WarmUp
    train_examples: int
    num_eval_batches: int
    eval_examples: int
    eval_steps: frozenset[int]
    aggregation: AggregationSpec
    update: UpdatePlan
    examples: tuple[Element, ...]
    job: Job
    asynchronous: bool
    coordinated: bool = False
    target: Target | None = None

    def preprocess(self, *, training: bool) -> Preprocess | None:
        """The model's preprocessing of an example; None if the model has none."""
        if type(self.model).preprocess is Model.preprocess:
            return None
        return partial(self.model.preprocess, training=training)

    @property
    def training_steps(self) -> int:
        """Steps of the whole training from global step 0; warm-up steps train too."""
        return self.warm_up.least + self.num_batches

    def schedule(self, params: Params) -> Schedule:
        """The learning rate of every step."""
        steps = self.training_steps
        defaults = self.model.learning_rate
        return make_schedule(params, defaults, self.global_batch, self.train_examples, steps)

    def check_steps_left(self, train_dir: str, done: int) -> None:
        """Refuses a training whose checkpoint, of global step `done`, is beyond --num_batches."""
        if done - self.num_batches > self.warm_up.most:  # warm-up steps train, too
            reason = (
                f"the checkpoint in --train_dir={train_dir} is at step {done} already; ask for "
                "more batches or for another directory"
            )
            raise FlagError("num_batches", self.num_batches, reason)

    @property
    def trains(self) -> bool:
        """Whether weights are updated."""
        return self.mode.startswith("training")

    def resolved(self, params: Params) -> dict[str, Any]:
        """The parameters, with resolved values in place of defaults."""
        return {
            **params.as_dict(),
            "data_name": self.dataset.name,
            "batch_size": self.batch_per_device,
            "eval_batch_size": self.eval_batch_per_device,
            "num_batches": self.num_batches,
            "num_epochs": self.num_epochs,
            "num_eval_batches": self.num_eval_batches or None,
            "num_warmup_batches": self.warm_up.least,
            "fp16_loss_scale": initial_loss_scale(params),
            **self._target_flags(),
        }

    def agreed(self, params: Params) -> dict[str, str]:
        """Facts that must be equal in all processes of a job, as `agreed_facts`.

        Where each worker builds a step of its own, also what the flags resolve to, the sources of
        plug-ins, and what follows from plug-ins and data: one that differs would train another
        network, or another number of steps.
        """
        if not self.job.client_per_worker:
            return agreed_facts(params)
        model = self.model
        settings = (model.learning_rate, model.batch_norm, model.metric_names, self.spec.elements)
        flops = (self.spec.forward_flops_per_image, self.spec.training_flops_per_image)
        return {
            **agreed_facts(SimpleNamespace(**self.resolved(params))),
            **{f"SHA-256 of {name}": digest[:16] for name, digest in plugins.digests.items()},
            "digest of the model's variables": digest_of(self.spec.variables),
            "digest of the model's settings": digest_of((settings, flops)),
            "the number of training examples": str(self.train_examples),
            "the number of evaluated examples": str(self.eval_examples),
        }

    def _target_flags(self) -> dict[str, Any]:
        """Values of the flags for targets; a top-1 accuracy has the flag of earlier records."""
        if self.target is None:
            return {}
        top_1 = self.target.metric == "top_1"
        return {
            "stop_at": None if top_1 else str(self.target),
            "stop_at_top_1_accuracy": self.target.value if top_1 else None,
        }


@plugins.reported(UsageError)
def make_plan(params: Params) -> Plan:
    """Resolves model, data set, batch sizes and step counts of validated parameters.

    Raises:
      FlagError: unknown model, data set or all-reduce algorithm, an impossible evaluation point,
        label smoothing for a loss without labels, or a missing backbone.
    """
    mode = _mode(params)
    dataset, model, spec = _declared(params, mode)
    examples = resolve(dataset.elements, model, dataset.num_classes)
    check_elements(spec, model, dataset, examples)
    batch = params.batch_size or model.batch_size
    eval_batch = params.eval_batch_size or batch
    epoch = dataset.num_examples("validation" if params.eval else "train", params.data_dir)
    job, alone = params.job, asynchronous(params)
    towers = job.towers_per_worker if alone else job.num_towers
    eval_batches, eval_examples = 0, 0
    if mode in ("evaluation", "training + evaluation"):
        evaluated = epoch if params.eval else dataset.num_examples("validation", params.data_dir)
        eval_batches, eval_examples = _of_evaluations(
            params, evaluated, eval_batch * towers, job.num_workers
        )
    if params.eval:
        batch, batches = eval_batch, eval_batches
    elif params.num_epochs:
        batches = _epoch_to_step("num_epochs", params.num_epochs, batch * towers, epoch)
    else:
        batches = params.num_batches or DEFAULT_NUM_BATCHES
    epochs = batches * batch * towers / epoch
    check_frozen(params, spec, len(job.own_towers))
    if params.precision == "int8":
        check_int8(model, spec)
    check_shards(params, dataset, job)
    aggregation = _aggregation(params)
    return Plan(
        model=model,
        spec=spec,
        dataset=dataset,
        mode=mode,
        batch_per_device=batch,
        global_batch=batch * towers,
        eval_batch_per_device=eval_batch,
        num_batches=batches,
        num_epochs=epochs,
        warm_up=_warm_up(params, mode),
        train_examples=0 if params.eval else epoch,
        num_eval_batches=eval_batches,
        eval_examples=eval_examples,
        eval_steps=_evaluation_steps(params, batches, epochs, epoch, batch * towers),
        aggregation=aggregation,
        update=_update(params, aggregation, towers),
        examples=examples,
        job=job,
        asynchronous=alone,
        coordinated=coordinated(params),
        target=_target_of(params, model),
    )


def _update(params: Params, aggregation: AggregationSpec, towers: int) -> UpdatePlan:
    return plan_update(
        params.update_mode,
        aggregation,
        towers,
        reduction=params.gradient_reduction,
        weight_decay=params.weight_decay,
        clip=params.gradient_clip,
        linear=OPTIMIZERS[params.optimizer].linear,
        asynchronous=asynchronous(params),
        narrow=params.fp16_vars,
    )


def _declared(params: Params, mode: str) -> tuple[Dataset, Model, ModelSpec]:
    """Data set and model, including plug-ins, checked against the flags."""
    if params.dataset_plugin:
        load_plugin(params.dataset_plugin)
    if params.model_plugin:
        registry.load_plugin(params.model_plugin)
    check_urls(params)
    dataset = find_dataset(params.data_name, params.data_dir, params.model)
    model = registry.get_model(params.model, dataset.name)
    set_aux_head(params, model)
    check_model(params, model, mode)
    check_input(params, dataset)
    spec = declare(model, dataset.num_classes)
    if params.backbone_model_path is not None and mode.startswith("training"):
        check_backbone(params.backbone_model_path, model, spec)
    return dataset, model, spec


def _of_evaluations(
    params: Params, examples: int, global_batch: int, workers: int
) -> tuple[int, int]:
    """Batches and examples of an evaluation, as long as the training unless it has own flags.

    Every pass over the examples ends with a batch that is filled up, so that passes have whole
    numbers of batches.
    """
    flag = "num_eval_epochs" if params.num_eval_epochs else "num_epochs"
    epochs = getattr(params, flag)
    if not epochs or params.num_eval_batches:
        batches = params.num_eval_batches or params.num_batches or DEFAULT_NUM_BATCHES
    else:
        passes, part = divmod(epochs, 1.0)
        steps = int(passes) * math.ceil(examples / global_batch)
        steps += math.ceil(int(part * examples) / global_batch)
        batches = _countable(flag, epochs, max(1, steps), global_batch, examples)
    if params.data_dir is None:
        return batches, batches * global_batch
    shards = 1 if asynchronous(params) else workers
    return batches, evaluated_examples(batches, global_batch, examples, shards)


def initial_loss_scale(params: Params) -> float:
    """Factor on the loss in the first step; 1 except for fp16."""
    if params.precision != "fp16":
        return 1.0
    return params.fp16_loss_scale or DEFAULT_FP16_LOSS_SCALE


def _mode(params: Params) -> str:
    if params.eval:
        return "evaluation"
    if params.forward_only:
        return "forward only"
    if params.input_only:
        return "input only"
    return "training + evaluation" if evaluates(params) else "training"


def _warm_up(params: Params, mode: str) -> WarmUp:
    if mode == "evaluation":
        return WarmUp(0, 0)
    least = params.num_warmup_batches
    if least is None:
        # The GPU convolution autotuner tries its candidates during the first steps.
        least = max(MINIMUM_WARMUP, 5 * (params.autotune_threshold or 1) ** 2)
        _check_count("autotune_threshold", params.autotune_threshold or 1, least, "warm-up steps")
    if params.warmup != "auto":
        return WarmUp(least, least)
    if params.max_warmup_batches < least:
        raise FlagError(
            "max_warmup_batches",
            params.max_warmup_batches,
            f"is less than the {least} steps of --num_warmup_batches that come first; "
            f"use at least {least}",
        )
    return WarmUp(least, params.max_warmup_batches, auto=True)


def _aggregation(params: Params) -> AggregationSpec:
    spec = params.all_reduce_spec
    if spec is not None:
        # Only now: a plug-in may have registered an algorithm.
        spec.check_names(all_reduce.names())
    if params.eval or params.forward_only:
        # Without gradients there is no reduction, so an unusable algorithm such as nccl is ignored.
        return AggregationSpec(all_reduce=single(params.update_mode.all_reduce or "copy"))
    compact = params.compact_gradient_transfer and params.precision != "fp32"
    return AggregationSpec.of(
        vars(params),
        all_reduce=all_reduce_of(params),
        gradient_bucket_bytes=bucket_bytes(params),
        compact_dtype=COMPUTE_DTYPES[params.precision] if compact else None,
        sparse_to_dense=params.sparse_to_dense_grads,
        group_size=params.all_reduce_group_size,
        share_memory=params.all_reduce_share_memory,
    )


def _target_of(params: Params, model: Model) -> Target | None:
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
    lower = metric == "loss" or metric in model.lower_is_better
    return Target(metric=metric, value=value, lower_is_better=lower)


def evaluated_examples(batches: int, global_batch: int, examples: int, shards: int) -> int:
    """Examples that count in an evaluation, padding of the last batch excluded.

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


def _epoch_to_step(flag: str, epoch: float, global_batch: int, examples: int) -> int:
    """The first step count at which `epoch` epochs of images have been seen."""
    steps = max(1, math.ceil(int(epoch * examples) / global_batch))
    return _countable(flag, epoch, steps, global_batch, examples)


def _evaluation_steps(
    params: Params, batches: int, epochs: float, examples: int, global_batch: int
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
        steps = {_epoch_to_step(flag, e, global_batch, examples) for e in points if e < epochs}
    else:
        flag = "eval_during_training_at_specified_epochs"
        steps = set(params.eval_during_training_at_specified_steps)
        for epoch in params.eval_during_training_at_specified_epochs:
            steps.add(_epoch_to_step(flag, epoch, global_batch, examples))
    # The evaluation after the last step is the final one and has its own line.
    return frozenset(step for step in steps if step < batches)


def _countable(flag: str, epochs: float, steps: int, global_batch: int, examples: int) -> int:
    if steps > _MOST_STEPS:
        most = _MOST_STEPS * global_batch / examples
        raise FlagError(flag, epochs, f"must be at most {most:.3g}: {_MOST_STEPS} steps")
    return steps


def _check_count(flag: str, value: float, count: float, what: str = "evaluations") -> None:
    if count > _MOST_COUNTED:
        raise FlagError(flag, value, f"means {count:.3g} {what}, not up to {_MOST_COUNTED}")
