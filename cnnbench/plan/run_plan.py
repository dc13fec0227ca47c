"""The plan of a run, resolved from its parameters before TensorFlow is loaded.

Everything that can be refused without a device is refused here: unknown models and data sets, empty
data directories, impossible step counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cnnbench.base import plugins
from cnnbench.errors import UsageError
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.params import Params
from cnnbench.plan.inputs import InputPlan
from cnnbench.plan.learning_rate import LearningRates
from cnnbench.plan.length import Length
from cnnbench.plan.network import NetworkPlan, SetupWithNetwork
from cnnbench.plan.resolve import joined, make_setup
from cnnbench.plan.same_run import agreed_facts, digest_of, identity_here
from cnnbench.plan.setup import Setup
from cnnbench.records.codec import encode
from cnnbench.variable_mgr import all_reduce


@dataclass(frozen=True, kw_only=True)
class RunPlan(SetupWithNetwork):
    """The setup of a run with its network and its data."""

    length: Length
    rates: LearningRates
    input: InputPlan

    @property
    def config(self) -> dict[str, Any]:
        """The parameters as stored in records, with resolved values in place of defaults."""
        length, target = self.length, self.length.target
        config = {
            **self.params.as_dict(),
            "data_name": self.network.dataset.name,
            "batch_size": length.batch_per_device,
            "eval_batch_size": length.eval_batch_per_device,
            "num_batches": length.num_batches,
            "num_epochs": length.num_epochs,
            "num_eval_batches": length.num_eval_batches or None,
            "num_warmup_batches": length.warm_up.least,
            "fp16_loss_scale": self.numerics.loss_scale,
        }
        if target is not None:  # a top-1 accuracy has the flag of earlier records
            top_1 = target.metric == "top_1"
            config["stop_at"] = None if top_1 else str(target)
            config["stop_at_top_1_accuracy"] = target.value if top_1 else None
        return config

    def to_json(self) -> dict[str, Any]:
        """`config` as JSON values."""
        return {name: encode(value) for name, value in self.config.items()}

    @property
    def identity(self) -> dict[str, Any]:
        """What distinguishes this run from others on this machine; equal in equal runs."""
        return identity_here(self.to_json())

    @property
    def agreed(self) -> dict[str, str]:
        """Facts that must be equal in all processes of a job, as `agreed_facts`.

        Where each worker builds a step of its own, also what the flags resolve to, the sources of
        plug-ins, and what follows from plug-ins and data: one that differs would train another
        network, or another number of steps.
        """
        if not self.place.job.client_per_worker:
            return agreed_facts(self.params.as_dict())
        model, spec = self.network.model, self.network.spec
        settings = (model.learning_rate, model.batch_norm, model.metric_names, spec.elements)
        flops = (spec.forward_flops_per_image, spec.training_flops_per_image)
        return {
            **agreed_facts(self.config),
            **{f"SHA-256 of {name}": digest[:16] for name, digest in plugins.digests.items()},
            "digest of what plug-ins use": digest_of(
                [plugins.digest(path) for path in plugins.parts(self.config)]
            ),
            "digest of the model's variables": digest_of(spec.variables),
            "digest of the model's settings": digest_of((settings, flops)),
            "the number of training examples": str(self.length.train_examples),
            "the number of evaluated examples": str(self.length.eval_examples),
        }


@plugins.reported(UsageError)
def make_plan(
    run: Setup | Params,
    environ: MutableMapping[str, str] = os.environ,
    tell: Callable[[str], None] | None = None,
) -> RunPlan:
    """Resolves network, data, batch sizes and step counts; parameters are checked first.

    With `tell` this process takes its place in the job: see `with_exchanged_addresses`.

    Raises:
      FlagError: unknown model, data set or all-reduce algorithm, an impossible evaluation point,
        label smoothing for a loss without labels, or a missing backbone.
    """
    setup = make_setup(run, environ) if isinstance(run, Params) else run
    if tell is not None:
        setup = joined(setup, environ, tell)
    network = NetworkPlan.resolved(setup)
    if setup.exchange.all_reduce_spec is not None:
        # Only now: a plug-in may have registered an algorithm.
        setup.exchange.all_reduce_spec.check_names(all_reduce.names())
    length = Length.resolved(setup, network)
    rates = LearningRates.resolved(setup, network.model.learning_rate, length)
    inputs = InputPlan.resolved(setup, network, length)
    return RunPlan(**vars(setup), network=network, length=length, rates=rates, input=inputs)


Runnable: TypeAlias = "RunPlan | Params"
"""What `BenchmarkCNN` runs."""


def without_outputs(plan: RunPlan) -> RunPlan:
    """The plan of a process that writes nothing, since the chief does."""
    outputs = OutputParams()
    return replace(plan, params=plan.params.replace(**vars(outputs)), outputs=outputs)
