"""Input of a run: data, preprocessing, and its distribution to devices and workers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cnnbench.data.spec import InputSpec
from cnnbench.flags.groups.strategies import StrategyParams
from cnnbench.plan.length import Length
from cnnbench.plan.network import NetworkPlan
from cnnbench.plan.setup import Setup


@dataclass(frozen=True, kw_only=True)
class InputPlan:
    """Input of a run.

    Attributes:
      data_dir: folder of the files; None for synthetic data.
      training, validation: inputs of one worker that reads all data; workers, devices and threads
        are set when the run is built.
      distribution: distribution of the batches by a strategy; None where towers fetch their own.
      metrics_in_process: whether metrics that need all examples are computed in a process of their
        own.
    """

    data_dir: str | None
    training: InputSpec
    validation: InputSpec
    distribution: StrategyParams | None
    metrics_in_process: bool

    @classmethod
    def resolved(cls, setup: Setup, network: NetworkPlan, length: Length) -> InputPlan:
        """The input that the flags ask for."""
        flags = setup.params

        def spec(training: bool) -> InputSpec:
            return InputSpec.from_flags(
                flags,
                dataset=network.dataset,
                data_dir=flags.data_dir,
                subset="train" if training else "validation",
                batch_per_device=(
                    length.batch_per_device if training else length.eval_batch_per_device
                ),
                num_devices=setup.place.job.towers_per_worker,
                shard_files=training and flags.auto_shard_policy == "file",
                image_size=getattr(network.model, "image_size", 0),
                channels=network.model.channels,
                num_classes=network.spec.num_classes,
                examples=network.examples,
                elements=network.spec.elements,
                preprocess=network.preprocess(training=training),
                seed=flags.tf_random_seed,
                dtype=setup.numerics.dtype,
            )

        by_strategy = flags.input_distribution == "strategy" and flags.data_dir is not None
        # Without training or a next evaluation, nothing would run beside the child process.
        goes_on = setup.work.trains or flags.eval_interval_secs
        return cls(
            data_dir=flags.data_dir,
            training=spec(training=True),
            validation=spec(training=False),
            distribution=flags.group(StrategyParams) if by_strategy else None,
            metrics_in_process=bool(flags.collect_eval_results_async and goes_on),
        )

    def of_worker(self, subset: str, **placed: Any) -> InputSpec:
        """The input of one worker, with the fields of `InputSpec` that its place decides."""
        spec = self.training if subset == "train" else self.validation
        return dataclasses.replace(spec, **placed)
