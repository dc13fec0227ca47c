"""Training input that a tf.distribute strategy shards, splits and copies to its devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.data.pipeline import Pipeline
from cnnbench.data.prefetch import Copying, PipelineInput, Steps, to_device
from cnnbench.data.source import TowerBatch
from cnnbench.data.spec import InputSpec


@dataclass(frozen=True, kw_only=True)
class InputDistribution:
    """Distribution of the batches of a pipeline by a strategy.

    Attributes:
      strategy: over the towers' devices; with `per_replica` for this input alone.
      manual: the pipeline makes the replicas' batches, of this worker's part of the data; otherwise
        it makes global ones of all data, which TensorFlow splits.
      per_replica: with `manual`: each replica has a pipeline and keeps every Nth of its batches.
      auto_shard_policy: between workers: "auto", "data", "off", or "file", where each pipeline is
        given its own files, because TensorFlow finds none behind numbered records.
      prefetch_on_device: whether batches wait on the devices or on the host.
    """

    strategy: Any
    manual: bool = False
    per_replica: bool = False
    auto_shard_policy: str = "auto"
    prefetch_on_device: bool = True

    @property
    def by_pipeline(self) -> bool:
        """Whether a pipeline reads a part of the data or all of it."""
        return self.manual or self.auto_shard_policy == "file"

    def examples_per_step(self, spec: InputSpec) -> int:
        """Examples that a step of all workers takes from one pipeline."""
        if self.by_pipeline or self.auto_shard_policy == "off":
            return spec.global_batch
        return spec.batch_per_device * int(self.strategy.num_replicas_in_sync)

    def iterator(self, pipeline: Pipeline) -> Any:
        """Iterator over the batches; its elements hold a value per replica."""
        options = self._options(pipeline.spec)
        if not self.manual:
            dataset = self._global(pipeline)
            return iter(self.strategy.experimental_distribute_dataset(dataset, options))

        def of_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            batches = _endless(pipeline.tower_batches())
            if not self.per_replica:
                return batches
            return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

        return iter(self.strategy.distribute_datasets_from_function(of_pipeline, options))

    def _global(self, pipeline: Pipeline) -> tf.data.Dataset:
        options = tf.data.Options()
        policies = tf.data.experimental.AutoShardPolicy
        policy = "OFF" if self.by_pipeline else self.auto_shard_policy.upper()
        options.experimental_distribute.auto_shard_policy = policies[policy]
        batch = pipeline.spec.batch_per_device * self.strategy.num_replicas_in_sync
        whole = pipeline.tower_batches().rebatch(batch, drop_remainder=True)
        return _endless(whole).with_options(options)

    def _options(self, spec: InputSpec) -> tf.distribute.InputOptions:
        modes = tf.distribute.InputReplicationMode
        ahead = spec.datasets_prefetch_buffer_size if spec.datasets_use_prefetch else 0
        return tf.distribute.InputOptions(
            experimental_fetch_to_device=self.prefetch_on_device,
            experimental_replication_mode=modes.PER_REPLICA
            if self.per_replica
            else modes.PER_WORKER,
            experimental_per_replica_buffer_size=ahead,
        )


def _endless(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Declares training batches as infinite, which saves a synchronisation of workers per batch."""
    endless = tf.data.experimental.INFINITE_CARDINALITY
    return batches.apply(tf.data.experimental.assert_cardinality(endless))


class DistributedInput(PipelineInput):
    """A `PipelineInput` whose strategy copies batches to the devices."""

    def __init__(
        self,
        spec: InputSpec,
        devices: Sequence[str],
        pipeline: Pipeline,
        distribution: InputDistribution,
    ) -> None:
        super().__init__(spec, devices, pipeline)
        self._distribution = distribution

    @property
    def _examples_per_step(self) -> int:
        return self._distribution.examples_per_step(self.spec)

    def _begin(self) -> Callable[[], Copying]:
        # It reads ahead by itself.
        steps = _DistributedSteps(self._pipeline, self.devices, self._distribution)
        self._steps, self._produce = steps, steps.next
        self._fresh = True
        return self._produce


class _DistributedSteps(Steps):
    def __init__(
        self, pipeline: Pipeline, devices: Sequence[str], distribution: InputDistribution
    ) -> None:
        self._distribution = distribution
        super().__init__(pipeline, devices, partial(distribution.iterator, pipeline))

    def _next(self) -> Copying:
        elements = self._pipeline.spec.elements
        of_replicas = self._distribution.strategy.experimental_local_results
        values = {name: of_replicas(value) for name, value in next(self._iterator).items()}
        return tuple(
            to_device(TowerBatch.of(elements, {n: v[tower] for n, v in values.items()}), device)
            for tower, device in enumerate(self._devices)
        )
