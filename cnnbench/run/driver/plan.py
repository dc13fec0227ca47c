"""The plan of a run, resolved from its parameters before TensorFlow is loaded.

Everything that can be refused without a device is refused here: unknown models
and data sets, empty data directories, impossible step counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from cnnbench.base.jobs.job import Job
from cnnbench.base.stats.steady_state import MIN_STEPS, steady_state
from cnnbench.base.text.numbers import binary
from cnnbench.data.dataset import Dataset, find_dataset, load_plugin
from cnnbench.data.spec import Preprocess
from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.flags.checks import all_reduce_of, bucket_bytes
from cnnbench.flags.cluster import asynchronous, coordinated, job_of
from cnnbench.flags.groups.run import evaluates
from cnnbench.machine.cpu import processor
from cnnbench.machine.host import Host
from cnnbench.models import registry
from cnnbench.models.declare import declare
from cnnbench.models.elements import Element, resolve
from cnnbench.models.model import Model
from cnnbench.models.spec import ModelSpec
from cnnbench.records.target import Target
from cnnbench.run.driver import checkpoint_folder
from cnnbench.run.driver.step_counts import batches_and_epochs, evaluated_examples, evaluation_steps
from cnnbench.run.driver.target import target_of
from cnnbench.variable_mgr import all_reduce
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce import single

MINIMUM_WARMUP = 10
DEFAULT_FP16_LOSS_SCALE = 128.0

# Warm-up steps between two checks of --warmup=auto: at least, and as a factor.
_SMALLEST_STRIDE = 5
_GROWTH = 1.1

_LARGEST_GRAPH = 2**31 - 2**26  # of a protocol buffer, with room for the operations

COMPUTE_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "float32"}
"""By --precision; with int8, of everything but convolutions."""

# Without one of these a product of 8-bit integers overflows the 16 bits of its sums.
_INT8_INSTRUCTIONS = ("avx512_vnni", "avx_vnni", "amx_int8")


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
        """Whether the warm-up may end: its last quarter, and 10 steps, are steady.

        Args:
          seconds: times of all steps so far.
        """
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
      warm_up: untimed steps before it.
      train_examples: images of one training epoch; 0 in evaluation mode.
      num_eval_batches: global batches of one evaluation.
      eval_examples: that count in it, padding left out.
      eval_steps: timed steps after which an evaluation is due.
      aggregation: how gradients are packed and reduced, in modes with a copy per tower.
      job: who takes part.
      asynchronous: whether every worker updates the variables by itself, so that a step is
        an update by one of them, and the global batch what its towers work on.
      examples: what one example of the data set is made of, sizes resolved.
      target: ends the training when an evaluation reaches it.
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
    examples: tuple[Element, ...]
    job: Job
    asynchronous: bool
    coordinated: bool = False
    target: Target | None = None

    def preprocess(self, *, training: bool) -> Preprocess | None:
        """The model's own way from an example to what it takes; None if it takes it as it is."""
        if type(self.model).preprocess is Model.preprocess:
            return None
        return partial(self.model.preprocess, training=training)

    @property
    def warmup(self) -> int:
        """Untimed steps, those that --warmup=auto may add not counted."""
        return self.warm_up.least

    @property
    def training_steps(self) -> int:
        """Of the whole training, counted from global step 0; warm-up steps train too."""
        return self.warm_up.least + self.num_batches

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

    def _target_flags(self) -> dict[str, Any]:
        """Each target by one of its spellings; a top-1 accuracy by that of earlier records."""
        if self.target is None:
            return {}
        top_1 = self.target.metric == "top_1"
        return {
            "stop_at": None if top_1 else str(self.target),
            "stop_at_top_1_accuracy": self.target.value if top_1 else None,
        }


def make_plan(params: Params) -> Plan:
    """Resolves models, data set, batch sizes and step counts.

    Args:
      params: validated parameters.

    Returns:
      The plan.

    Raises:
      FlagError: unknown model, data set or all-reduce algorithm, an evaluation point that
        cannot be, smoothed labels for a loss without any, or a backbone that is not there.
    """
    if params.dataset_plugin:
        load_plugin(params.dataset_plugin)
    if params.model_plugin:
        registry.load_plugin(params.model_plugin)
    dataset = find_dataset(params.data_name, params.data_dir, params.model)
    model = registry.get_model(params.model, dataset.name)
    _set_aux_head(params, model)
    mode = _mode(params)
    if params.label_smoothing and mode.startswith("training") and not model.has_softmax_loss():
        raise FlagError(
            "label_smoothing",
            params.label_smoothing,
            f"needs a softmax loss, but --model={params.model} has one of its own; leave it out",
        )
    if params.input_preprocessor not in dataset.preprocessors:
        choices = " or ".join(dataset.preprocessors)
        reason = f"data set {dataset.name} takes {choices}"
        raise FlagError("input_preprocessor", params.input_preprocessor, reason)
    if params.on_bad_record == "skip" and params.data_dir and not dataset.skips_bad_records:
        reason = f"the files of data set {dataset.name} are read whole; use fail"
        raise FlagError("on_bad_record", "skip", reason)
    target = target_of(params, model)
    if params.print_training_accuracy and "top_1" not in model.metric_names:
        metrics = ", ".join(model.metric_names)
        has = f"its metrics are {metrics}" if metrics else "it has other metrics"
        reason = f"model {model.name} has no top-1 accuracy; {has}: leave the flag out"
        raise FlagError("print_training_accuracy", "true", reason)
    if params.collect_eval_results_async and evaluates(params) and not model.has_host_metrics():
        raise FlagError(
            "collect_eval_results_async",
            "true",
            f"--model={params.model} has no metrics that need a process; leave it out",
        )
    spec = declare(model, dataset.num_classes)
    if params.backbone_model_path is not None and mode.startswith("training"):
        _check_backbone(params.backbone_model_path, model, spec)
    examples = resolve(dataset.elements, model, dataset.num_classes)
    _check_elements(spec, model, dataset, examples)
    batch = params.batch_size or model.batch_size
    eval_batch = params.eval_batch_size or batch
    train_examples = 0 if params.eval else dataset.num_examples("train", params.data_dir)
    job = job_of(params)
    towers = job.towers_per_worker if asynchronous(params) else job.num_towers
    eval_batches, eval_epochs, eval_examples = 0, 0.0, 0
    if mode in ("evaluation", "training + evaluation"):
        validation = dataset.num_examples("validation", params.data_dir)
        eval_batches, eval_epochs = batches_and_epochs(
            params.num_eval_batches or (None if params.num_eval_epochs else params.num_batches),
            params.num_eval_epochs or (None if params.num_eval_batches else params.num_epochs),
            eval_batch * towers,
            validation,
            "num_eval_epochs" if params.num_eval_epochs else "num_epochs",
        )
        eval_examples = eval_batches * eval_batch * towers
        if params.data_dir is not None:
            shards = 1 if asynchronous(params) else job.num_workers
            eval_examples = evaluated_examples(
                eval_batches, eval_batch * towers, validation, shards
            )
    if mode == "evaluation":
        batches, epochs, batch = eval_batches, eval_epochs, eval_batch
    else:
        batches, epochs = batches_and_epochs(
            params.num_batches, params.num_epochs, batch * towers, train_examples
        )
    _check_frozen(params, spec, len(job.own_towers))
    if params.precision == "int8":
        _check_int8(model, spec)
    _check_shards(params, dataset, job)
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
        aggregation=_aggregation(params),
        examples=examples,
        job=job,
        asynchronous=asynchronous(params),
        coordinated=coordinated(params),
        target=target,
    )


def _check_frozen(params: Params, spec: ModelSpec, towers: int) -> None:
    size = {"fp32": 4, "int8": 5}.get(params.precision, 2) * spec.parameters * towers
    if params.forward_only and params.freeze_when_forward_only and size >= _LARGEST_GRAPH:
        raise FlagError(
            "freeze_when_forward_only",
            "true",
            f"{params.model} on {towers} devices has {binary(size)} of weights, and a "
            "graph holds less than 2 GiB; use fewer devices or a 16-bit --precision",
        )


def _check_int8(model: Model, spec: ModelSpec) -> None:
    if not any(len(one.shape) == 4 for one in spec.variables):
        raise FlagError("precision", "int8", f"{model.name} has no convolution to run in 8 bits")
    found = processor(Host()).get("cpu_isa")
    if not isinstance(found, list) or not set(found) & set(_INT8_INSTRUCTIONS):
        reason = f"this CPU has none of {', '.join(_INT8_INSTRUCTIONS)}; use bf16 or fp32"
        raise FlagError("precision", "int8", reason)
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        raise FlagError(
            "precision", "int8", "its kernels are oneDNN's; unset TF_ENABLE_ONEDNN_OPTS"
        )


def _check_shards(params: Params, dataset: Dataset, job: Job) -> None:
    """Refuses to share out files that cannot be, or of which there are not enough."""
    policy, workers = params.auto_shard_policy, job.num_workers
    if policy != "file" or workers == 1 or params.data_dir is None or params.eval:
        return
    files = len(dataset.subsets_in(params.data_dir)["train"])
    if not dataset.skips_bad_records:
        reason = f"every worker reads the files of data set {dataset.name} whole; use data or off"
    elif files < workers:
        reason = f"there are {files} training files for {workers} workers; use data or off"
    else:
        return
    raise FlagError("auto_shard_policy", policy, reason)


def _set_aux_head(params: Params, model: Model) -> None:
    if not params.aux_head:
        return
    if model.aux_head is None:
        reason = f"--model={params.model} has no auxiliary head to switch on; leave it out"
        raise FlagError("aux_head", "true", reason)
    model.aux_head = True


def _check_elements(
    spec: ModelSpec, model: Model, dataset: Dataset, examples: Sequence[Element]
) -> None:
    """Refuses a model that takes what the data set does not give.

    Raises:
      FlagError: names the first such element.
    """
    if type(model).preprocess is not Model.preprocess:
        return
    given = {one.name: (one.shape, one.dtype) for one in examples}
    for one in spec.elements:
        if given.get(one.name) != (one.shape, one.dtype):
            offered = ", ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in given.items())
            raise FlagError(
                "model",
                model.name,
                f"takes {one.name} {one.shape} {one.dtype} of an example, but data set "
                f"{dataset.name} gives {offered}",
            )


def _check_backbone(path: str, model: Model, spec: ModelSpec) -> None:
    within = [v for v in spec.variables if v.name.startswith(f"{model.backbone}/")]
    if not model.backbone or not within:
        raise FlagError("backbone_model_path", path, f"--model={model.name} has no backbone")
    if checkpoint_folder.latest(path) is None:
        raise FlagError("backbone_model_path", path, "there is no checkpoint")


def initial_loss_scale(params: Params) -> float:
    """Factor on the loss in the first step: 1 but for fp16, whose range is small."""
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
    return "training + evaluation" if _evaluates_during_training(params) else "training"


def _evaluates_during_training(params: Params) -> bool:
    return bool(
        params.eval_during_training_every_n_steps
        or params.eval_during_training_every_n_epochs
        or params.eval_during_training_at_specified_steps
        or params.eval_during_training_at_specified_epochs
    )


def _warm_up(params: Params, mode: str) -> WarmUp:
    if mode == "evaluation":
        return WarmUp(0, 0)
    least = _least_warmup(params)
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


def _least_warmup(params: Params) -> int:
    if params.num_warmup_batches is not None:
        return params.num_warmup_batches
    # The GPU convolution autotuner tries its candidates during the first steps.
    return max(MINIMUM_WARMUP, 5 * (params.autotune_threshold or 1) ** 2)


def _aggregation(params: Params) -> AggregationSpec:
    spec = params.all_reduce_spec
    if spec is not None:
        # Not before: a plug-in may have registered an algorithm.
        spec.check_names(all_reduce.names())
    if params.eval or params.forward_only:
        # What is not reduced need not be reducible: nccl is no reason not to evaluate on a CPU.
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
