"""The plan of a run, resolved from its parameters before TensorFlow is loaded.

Everything that can be refused without a device is refused here: unknown models
and data sets, empty data directories, impossible step counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.jobs.job import Job
from cnnbench.base.stats.steady_state import MIN_STEPS, steady_state
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
from cnnbench.run.driver.plan_checks import (
    check_backbone,
    check_elements,
    check_frozen,
    check_input,
    check_int8,
    check_model,
    check_shards,
    set_aux_head,
)
from cnnbench.run.driver.step_counts import (
    batches_and_epochs,
    evaluated_examples,
    evaluation_batches,
    evaluation_steps,
)
from cnnbench.run.driver.target import target_of
from cnnbench.run.step.update_plan import UpdatePlan, plan_update
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce import single

MINIMUM_WARMUP = 10
DEFAULT_FP16_LOSS_SCALE = 128.0

# Warm-up steps between two checks of --warmup=auto: at least, and as a factor.
_SMALLEST_STRIDE = 5
_GROWTH = 1.1


COMPUTE_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "float32"}
"""By --precision; with int8, of everything but convolutions."""


@dataclass(frozen=True)
class WarmUp:
    """The length of a warm-up.

    Attributes:
      least: steps in any case.
      most: steps at most; equal to least unless auto.
      auto: whether to go on after `least` until the steps are steady.
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

    def steady(self, seconds: Sequence[float]) -> bool:
        """Whether the warm-up may end: the last quarter of all steps, and 10 steps, are steady."""
        return steady_state(seconds).reached

    def status(self, steady: bool) -> str:
        """`RunRecord.warmup_status` of a finished warm-up: fixed, steady or limit."""
        if not self.auto:
            return "fixed"
        return "steady" if steady else "limit"


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
      eval_examples: that count in it, padding left out.
      eval_steps: timed steps after which an evaluation is due.
      aggregation: how gradients are packed and reduced, in modes with a copy per tower.
      asynchronous: whether every worker updates the variables by itself, so that a step is
        an update by one of them, and the global batch what its towers work on.
      examples: what one example of the data set is made of, sizes resolved.
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
    def warmup(self) -> int:
        """Untimed steps, without those that --warmup=auto may add."""
        return self.warm_up.least

    @property
    def training_steps(self) -> int:
        """Steps of the whole training from global step 0; warm-up steps train too."""
        return self.warm_up.least + self.num_batches

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
            "num_warmup_batches": self.warmup,
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
            **{f"SHA-256 of {name}": digest[:16] for name, digest in plugins.digests().items()},
            "digest of the model's variables": digest_of(self.spec.variables),
            "digest of the model's settings": digest_of((settings, flops)),
            "the number of training examples": str(self.train_examples),
            "the number of evaluated examples": str(self.eval_examples),
        }

    def _target_flags(self) -> dict[str, Any]:
        """Each target under one of its flags; a top-1 accuracy under that of earlier records."""
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
    train_examples = 0 if params.eval else dataset.num_examples("train", params.data_dir)
    job, alone = params.job, asynchronous(params)
    towers = job.towers_per_worker if alone else job.num_towers
    eval_batches, eval_epochs, eval_examples = 0, 0.0, 0
    if mode in ("evaluation", "training + evaluation"):
        eval_batches, eval_epochs, eval_examples = _of_evaluations(
            params, dataset, eval_batch * towers, job.num_workers
        )
    if mode == "evaluation":
        batches, epochs, batch = eval_batches, eval_epochs, eval_batch
    else:
        batches, epochs = batches_and_epochs(
            params.num_batches, params.num_epochs, batch * towers, train_examples
        )
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
        train_examples=train_examples,
        num_eval_batches=eval_batches,
        eval_examples=eval_examples,
        eval_steps=evaluation_steps(params, batches, epochs, train_examples, batch * towers),
        aggregation=aggregation,
        update=_update(params, aggregation, towers),
        examples=examples,
        job=job,
        asynchronous=alone,
        coordinated=coordinated(params),
        target=target_of(params, model),
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
    params: Params, dataset: Dataset, global_batch: int, workers: int
) -> tuple[int, float, int]:
    """Batches, epochs and examples of an evaluation."""
    validation = dataset.num_examples("validation", params.data_dir)
    batches = evaluation_batches(params, global_batch, validation)
    epochs = batches * global_batch / validation
    if params.data_dir is None:
        return batches, epochs, batches * global_batch
    shards = 1 if asynchronous(params) else workers
    return batches, epochs, evaluated_examples(batches, global_batch, validation, shards)


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
