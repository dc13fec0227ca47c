"""Training input that a tf.distribute strategy shards, splits and copies to the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from cnnbench.data.augment import mixed_batches
from cnnbench.data.dataset import InputSpec, TowerBatch
from cnnbench.data.pipeline import Pipeline
from cnnbench.data.prefetch import BatchReader, PendingStep, PipelineInput, copy_to_device
from cnnbench.flags.groups.strategies import StrategyParams
from cnnbench.variable_mgr.distribute import clone_for_input


class InputDistribution:
    """Defines how a tf.distribute strategy distributes the batches of a pipeline to the devices.

    Args:
      strategy: strategy for the towers' devices.
      flags: with input_sharding "manual", the pipeline produces batches for single replicas from
        this worker's part of the data. Otherwise it produces global batches from all data, which
        TensorFlow splits. With auto_shard_policy "file", cnnbench assigns files to the pipelines
        itself, because TensorFlow cannot find the files of numbered records.

    Attributes:
      strategy: if each replica has its own pipeline, a strategy that is used only for this input.
      by_pipeline: whether a pipeline reads only its own part of the data; otherwise it reads all
        data.
    """

    def __init__(self, strategy: Any, flags: StrategyParams) -> None:
        self._manual = flags.input_sharding == "manual"
        # Then each of N replicas has its own pipeline, and uses every Nth batch of it.
        self._per_replica = flags.input_replication == "per_replica"
        self.strategy = clone_for_input(strategy) if self._per_replica else strategy
        self._policy = flags.auto_shard_policy
        self.by_pipeline = self._manual or self._policy == "file"
        on_device = flags.prefetch_on_device
        self._on_device = not self._per_replica if on_device is None else on_device

    def examples_per_step(self, spec: InputSpec) -> int:
        """Returns how many examples one step of all workers takes from one pipeline."""
        if self.by_pipeline or self._policy == "off":
            return spec.process_batch_size * spec.passes
        return spec.batch_per_device * spec.passes * int(self.strategy.num_replicas_in_sync)

    def make_iterator(self, pipeline: Pipeline) -> Any:
        """Creates the iterator over batches; an element has one batch for each replica."""
        options = self._input_options(pipeline.spec)
        if not self._manual:
            dataset = self._global_batches(pipeline)
            return iter(self.strategy.experimental_distribute_dataset(dataset, options))

        def batches_of_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
            batches = _declare_infinite(mixed_batches(pipeline))
            if not self._per_replica:
                return batches
            return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

        return iter(self.strategy.distribute_datasets_from_function(batches_of_pipeline, options))

    def _global_batches(self, pipeline: Pipeline) -> tf.data.Dataset:
        options = tf.data.Options()
        policies = tf.data.experimental.AutoShardPolicy
        policy = "OFF" if self.by_pipeline else self._policy.upper()
        options.experimental_distribute.auto_shard_policy = policies[policy]
        batch = pipeline.spec.batch_per_device * self.strategy.num_replicas_in_sync
        whole = mixed_batches(pipeline).rebatch(batch, drop_remainder=True)
        return _declare_infinite(whole).with_options(options)

    def _input_options(self, spec: InputSpec) -> tf.distribute.InputOptions:
        modes = tf.distribute.InputReplicationMode
        ahead = spec.datasets_prefetch_buffer_size if spec.datasets_use_prefetch else 0
        mode = modes.PER_REPLICA if self._per_replica else modes.PER_WORKER
        return tf.distribute.InputOptions(
            experimental_fetch_to_device=self._on_device,
            experimental_replication_mode=mode,
            experimental_per_replica_buffer_size=ahead,
        )


def _declare_infinite(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Declares that a data set of training batches is endless. Otherwise tf.distribute would
    synchronise the workers before each batch.
    """
    endless = tf.data.experimental.INFINITE_CARDINALITY
    return batches.apply(tf.data.experimental.assert_cardinality(endless))


class DistributedInput(PipelineInput):
    """An input from files whose batches a tf.distribute strategy copies to the devices."""

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

    def _start_reading(self) -> Callable[[], PendingStep]:
        # The distributed data set prefetches batches itself, so no background thread is needed.
        steps = _StrategyBatchReader(self._pipeline, self.devices, self._distribution)
        self._steps, self._produce = steps, steps.next
        self._fresh = True
        return self._produce


class _StrategyBatchReader(BatchReader):
    def __init__(
        self, pipeline: Pipeline, devices: Sequence[str], distribution: InputDistribution
    ) -> None:
        self._distribution = distribution
        super().__init__(pipeline, devices, partial(distribution.make_iterator, pipeline))

    def _next_batches(self) -> PendingStep:
        elements = self._pipeline.spec.delivered_elements
        of_replicas = self._distribution.strategy.experimental_local_results
        values = {name: of_replicas(value) for name, value in next(self._iterator).items()}
        batches = ({n: v[tower] for n, v in values.items()} for tower in range(len(self._devices)))
        return tuple(
            copy_to_device(TowerBatch.from_values(elements, self._check_first(batch)), device)
            for batch, device in zip(batches, self._devices, strict=True)
        )
