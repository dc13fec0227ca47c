"""Data sets that fit into host memory: batches are made by gathering rows of arrays."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from cnnbench.data.pipeline import Pipeline, prepared_batch, shuffled_indices, with_threads
from cnnbench.data.position import positions_of
from cnnbench.data.spec import InputSpec


class ArrayPipeline(Pipeline):
    """Shuffles the whole subset every epoch and gathers whole batches.

    Row i of each array, one per element in the order of declaration, is example i.
    """

    resumable = True

    def __init__(self, spec: InputSpec, *arrays: Any) -> None:
        super().__init__(spec, len(arrays[0]))
        with tf.device(spec.host):
            # Eager tensors captured by the pipeline are its arguments, not part of its graph.
            self._arrays = tuple(tf.constant(array) for array in arrays)

    def prepare(self, positions: tf.Tensor, *rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Converts rows [batch, ...] to the elements of a batch; by default they are these already.

        Randomness may depend only on the positions, int64 [batch] (see `cnnbench.data.position`).
        """
        del positions
        return rows

    def tower_batches(self) -> tf.data.Dataset:
        """See `Pipeline.tower_batches`."""
        spec = self.spec
        indices = self._indices().enumerate(self.start)
        batches = indices.batch(spec.batch_per_device, drop_remainder=spec.training).map(
            tf.autograph.experimental.do_not_convert(self._load),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        ahead = spec.num_devices * max(1, spec.multi_device_iterator_max_buffer_size)
        return with_threads(batches.prefetch(ahead), spec.datasets_num_private_threads)

    def _indices(self) -> tf.data.Dataset:
        spec = self.spec
        if spec.datasets_repeat_cached_sample:
            one = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64))
            return one.repeat(None if spec.training else self.num_examples)
        if spec.training:
            return shuffled_indices(self.num_examples, spec, self.start)
        return tf.data.Dataset.range(self.num_examples).shard(spec.num_shards, spec.shard_index)

    def rows(self, positions: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Rows of the arrays, for positions (see `prepare`) and indices, both int64 [batch]."""
        del positions
        return tuple(tf.gather(array, indices) for array in self._arrays)

    def _load(self, turns: tf.Tensor, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        positions = positions_of(turns, self.spec)
        rows = self.prepare(positions, *self.rows(positions, indices))
        names = [element.name for element in self.spec.examples]
        return prepared_batch(dict(zip(names, rows, strict=True)), positions, self.spec)
