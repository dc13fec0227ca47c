"""The plan of a run: its flags, and all values that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from cnnbench.base import plugins
from cnnbench.base.job import WORKER
from cnnbench.data.dataset import InputSpec
from cnnbench.flags import (
    FLAGS,
    SPECS,
    Params,
    RunFacts,
    RunPart,
    WorkKind,
    names_of_flags,
    nondefault_identity,
    specs_of,
)
from cnnbench.flags.groups.cluster import FEWEST_COORDINATED_THREADS
from cnnbench.flags.groups.output import OutputParams
from cnnbench.machine.cpu import available_cpu_count
from cnnbench.plan.identity import digest_of_value, facts_to_agree_on, identity_on_this_machine
from cnnbench.plan.length import RunLength
from cnnbench.plan.network import NetworkPlan
from cnnbench.plan.rates import LearningRates, make_rates
from cnnbench.records.codec import encode
from cnnbench.variable_mgr.modes import Reduction

_SHOWN = {
    *names_of_flags(FLAGS, RunPart.HEADER | RunPart.TASK | RunPart.LEARNING_RATE),
    *names_of_flags(FLAGS, RunPart.BATCH | RunPart.LENGTH),
    *names_of_flags(FLAGS, RunPart.WARM_UP | RunPart.EVALUATIONS),
}
"""Flags of tf_cnn_benchmarks that its header shows, or that hardly change the speed of a step."""


class InputPlan(NamedTuple):
    """The inputs of one worker that reads all data, for training and for evaluation.

    The fields that depend on the worker, its devices and its threads have their defaults.
    """

    training: InputSpec
    validation: InputSpec


@dataclass(frozen=True, kw_only=True)
class RunPlan(RunFacts):
    """The flags of a run, and all values that follow from them.

    Properties that need the network or the data set are resolved when they are first read, and may
    raise FlagError then. `cnnbench.plan.make_plan` reads all of them.

    Attributes:
      params: a value for every flag, with the addresses of the job. Processes that write no files
        have the defaults of the flags for output.
      given: the flags as they were given, before the job, the network and the data were resolved.
      explicit_flags: names of the flags that the user gave.
      notices: lines for the user, such as notices about flags without effect.
    """

    params: Params
    given: Params
    explicit_flags: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @cached_property
    def network(self) -> NetworkPlan:
        """The network and the data set of the run."""
        return NetworkPlan.resolved(self.params)

    @cached_property
    def length(self) -> RunLength:
        """Numbers of batches, steps and evaluations, and the metric that ends the training."""
        return RunLength.resolved(self.params, self.work, self.place, self.network)

    @cached_property
    def rates(self) -> LearningRates:
        """The learning rate of every global step; 0 in evaluations of checkpoints."""
        if self.work is WorkKind.EVALUATION:
            return LearningRates(lambda step: 0.0)
        length, defaults = self.length, self.network.model.learning_rate
        extra = length.extra_steps
        sizes = length.global_batch, length.train_examples, length.training_steps + extra
        rates = make_rates(self.params, defaults, *sizes)
        if not extra:
            return rates
        return rates._replace(schedule=lambda step: rates.schedule(step + extra))

    @cached_property
    def input(self) -> InputPlan:
        """The input data and its preprocessing."""
        return InputPlan(self._input_spec(training=True), self._input_spec(training=False))

    def _input_spec(self, *, training: bool) -> InputSpec:
        params, network, length = self.params, self.network, self.length
        # Mixed images need mixed labels, which only a training loss uses, so forward passes do not
        # mix.
        mixing = names_of_flags(FLAGS, RunPart.MIXING) if self.work.only_forward else ()
        return InputSpec.from_flags(
            params,
            **dict.fromkeys(mixing, 0.0),
            dataset=network.dataset,
            subset="train" if training else "validation",
            batch_per_device=length.batch_per_device if training else length.eval_batch_per_device,
            num_devices=self.place.job.towers_per_worker,
            passes=params.gradient_accumulation_steps if training else 1,
            shard_files=training and params.auto_shard_policy == "file",
            image_size=getattr(network.model, "image_size", 0),
            channels=network.model.channels,
            num_classes=network.dataset.num_classes,
            examples=network.examples,
            elements=network.spec.elements,
            preprocess=network.preprocess(training=training),
            seed=params.tf_random_seed,
            dtype=self.numerics.dtype,
        )

    @property
    def distributes_by_strategy(self) -> bool:
        """Whether a tf.distribute strategy distributes the training batches.

        If not, each tower fetches its own batches.
        """
        return self.params.input_distribution == "strategy" and self.params.data_dir is not None

    @property
    def metrics_in_child(self) -> bool:
        """Whether a separate process computes metrics that need all examples of an evaluation."""
        # A separate process helps only if this one has other work in the meantime.
        goes_on = self.work.trains or self.params.eval_interval_secs
        return bool(self.params.collect_eval_results_async and goes_on)

    def reduction_names(self, *, on_gpu: bool) -> tuple[str, ...]:
        """Names of the algorithms that reduce the gradients; empty if towers exchange none.

        These are the ranges of the all-reduce with their algorithms, the cross-device operation, or
        the variable manager's own algorithm.
        """
        mode, exchange = self.place.mode, self.exchange
        if not exchange.exchanges:
            return ()
        if mode.reduction is Reduction.CROSS_DEVICE:
            return (exchange.cross_device.resolved_ops(on_gpu),)
        if mode.reduction is Reduction.OWN:
            return (mode.algorithm,) if mode.algorithm else ()
        return () if exchange.running is None else tuple(map(str, exchange.running.ranges))

    def with_changes(self, **changes: Any) -> RunPlan:
        """Returns a copy of the plan with changed fields. Network and data must stay the same.

        The copy keeps the properties that are resolved already.
        """
        changed = replace(self, **changes)
        resolved = vars(self).keys() - {field.name for field in fields(self)}
        vars(changed).update({name: vars(self)[name] for name in resolved})
        return changed

    def resumed(self, global_step: int, examples: int) -> RunPlan:
        """Returns the plan of a training that continues from a checkpoint, whose `global_step`
        steps trained on so many examples. See `RunLength.resumed`.
        """
        length = self.length.resumed(self.params, global_step, examples)
        if length is self.length:
            return self
        resumed = self.with_changes()
        del vars(resumed)["rates"]
        vars(resumed)["length"] = length
        return resumed

    @property
    def process_flags(self) -> Params:
        """The flags with which TensorFlow is configured in this process.

        A task without towers gets one CPU device, and a process of a job with a coordinator gets
        enough threads.
        """
        flags, job = self.params, self.place.job
        if job.in_cluster and job.task.job != WORKER:
            flags = flags.replace(device="cpu", num_gpus=1, gpu_indices="")
        if self.feeds_workers and not flags.num_inter_threads:
            threads = max(available_cpu_count(), FEWEST_COORDINATED_THREADS)
            flags = flags.replace(num_inter_threads=threads)
        return flags

    @property
    def checkpoint_save_folder(self) -> str | None:
        """The folder to which the run writes checkpoints; None if it writes no checkpoints."""
        return self.params.train_dir if self.work.trains else None

    @property
    def summarizes_evaluations(self) -> bool:
        """Whether the run writes event files of its evaluations into --eval_dir."""
        return self.work.evaluates and self.params.summary_verbosity > 0

    @property
    def recomputed_flops(self) -> int | None:
        """FLOPs per image that the backward pass repeats; None if a step repeats nothing."""
        recomputes = self.params.recompute == "blocks" and self.work.trains
        return self.network.spec.recomputed_flops_per_image if recomputes else None

    @property
    def step_metrics(self) -> tuple[str, ...]:
        """The metrics of the network that each step computes."""
        shown = self.params.print_training_accuracy or self.work is WorkKind.FORWARD
        return self.network.model.metric_names if shown else ()

    @property
    def config(self) -> dict[str, Any]:
        """The values of all flags as in a record, with resolved values in place of unset flags."""
        length, target = self.length, self.length.target
        config = {
            **self.params.as_dict(),
            "data_name": self.network.dataset.name,
            "batch_size": length.batch_per_device,
            # The batch size per device is recorded, so the global batch size is recorded as unset.
            "global_batch_size": 0,
            "eval_batch_size": length.eval_batch_per_device,
            "num_batches": length.batches,
            "num_epochs": length.epochs,
            "num_eval_batches": length.eval_batches or None,
            "num_warmup_batches": length.warm_up.least,
            "fp16_loss_scale": self.numerics.loss_scale,
        }
        # A top-1 target has a field of its own, as in records of earlier versions.
        if target is not None:
            top_1 = target.metric == "top_1"
            config["stop_at"] = None if top_1 else str(target)
            config["stop_at_top_1_accuracy"] = target.value if top_1 else None
        return config

    def to_json(self) -> dict[str, Any]:
        """The flags of `config` as JSON values."""
        return {name: encode(value) for name, value in self.config.items()}

    @staticmethod
    def changed_flags(config: Mapping[str, Any]) -> dict[str, Any]:
        """The flags of a record that identify the run and differ from their defaults."""
        return nondefault_identity(config)

    def header_flags(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The flags to name in the header of the output: all flags of `config` (as in the record)
        that identify the run and differ from their defaults.

        Empty if the lines of tf_cnn_benchmarks' header show all flags that determine the speed.
        """
        values = self.params.as_dict()
        set_flags = {name for name in values if values[name] != SPECS[name].default}
        changed = nondefault_identity(config)
        return changed if set_flags & changed.keys() - _SHOWN else {}

    @property
    def identity(self) -> dict[str, Any]:
        """The flags that distinguish this run from other runs on this machine, and digests of
        plug-ins. Repetitions of a run have equal identities.
        """
        return identity_on_this_machine(self.to_json())

    @property
    def job_facts_to_agree_on(self) -> dict[str, str]:
        """Versions, flags and digests that all processes of a job must agree on, as text by name.

        Digests of plug-ins and of the network, resolved flags and numbers of examples are included
        if each worker builds its own step: a worker with different values would train a different
        network or a different number of steps.
        """
        if not self.place.job.client_per_worker:
            return facts_to_agree_on(self.params.as_dict())
        model, spec = self.network.model, self.network.spec
        settings = (model.learning_rate, model.batch_norm, model.metric_names, spec.elements)
        flops = (spec.forward_flops_per_image, spec.training_flops_per_image)
        return {
            **facts_to_agree_on(self.config),
            **{f"SHA-256 of {name}": digest[:16] for name, digest in plugins.digests.items()},
            "digest of what plug-ins use": digest_of_value(
                [plugins.plugin_digest(path) for path in plugins.files_used_by_plugins(self.config)]
            ),
            "digest of the model's variables": digest_of_value(spec.variables),
            "digest of the model's settings": digest_of_value((settings, flops)),
            "the number of training examples": str(self.length.train_examples),
            "the number of evaluated examples": str(self.length.eval_examples),
        }


Runnable: TypeAlias = "RunPlan | Params"
"""The argument of `BenchmarkCNN`: a plan, or flags that it resolves to a plan."""


def without_outputs(plan: RunPlan) -> RunPlan:
    """Returns a copy of the plan for a process that leaves writing all files to the chief."""
    defaults = {spec.name: spec.default for spec in specs_of(OutputParams)}
    return plan.with_changes(params=plan.params.replace(**defaults))
