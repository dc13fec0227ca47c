"""Host part of real input: a tf.data pipeline with error messages that name the record."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from cnnbench.data.position import positions_of, seed_pair, turns_before
from cnnbench.data.spec import InputSpec
from cnnbench.errors import DataError, first_line
from cnnbench.records.parts import SkippedRecords


class PipelineStage(NamedTuple):
    """A stage of a pipeline together with all earlier stages.

    Its dataset is endless while training; `examples` is the number in one element of it.
    """

    name: str
    dataset: tf.data.Dataset
    examples: int


class Pipeline(abc.ABC):
    """Reads one subset of a data set on the host.

    `num_examples` counts all shards. `start` is the number of training examples of this shard that
    an earlier run has read, including records that it skipped; pipelines with `resumable` use it.
    """

    resumable = False

    def __init__(self, spec: InputSpec, num_examples: int) -> None:
        self.spec = spec
        self.num_examples = num_examples
        self.start = 0

    @abc.abstractmethod
    def tower_batches(self) -> tf.data.Dataset:
        """Batches of ``batch_per_device`` examples, in order of the towers.

        Each is a mapping from the names of the elements of the spec to tensors of their dtypes; see
        `prepared`. Training batches are always full and never end; the first begins with example
        ``start`` of the shard. Otherwise one pass: the data set ends after the shard's last
        example, and its last batch may be smaller.
        """

    def stages(self) -> list[PipelineStage]:
        """The pipeline cut off after each of its stages, for timing; the last is the whole."""
        return [PipelineStage("batch", self.tower_batches(), self.spec.batch_per_device)]

    def explain(self, error: Exception) -> DataError:
        """Error message of a failed read in one line, with file and record where known."""
        return DataError(f"{self.spec.data_dir}: {first_line(error)}")

    def skipped(self) -> SkippedRecords:
        """Records skipped so far by --on_bad_record=skip."""
        return SkippedRecords()

    def passed_over(self, examples: int) -> int:
        """Records skipped since ``start`` before the last of a number of training examples."""
        del examples
        return 0

    def run_dry(self) -> DataError:
        """The reason why the endless training data has ended."""
        return DataError(f"{self.spec.data_dir}: the {self.spec.subset} data has ended")


def prepared(
    example: Mapping[str, tf.Tensor], position: tf.Tensor, spec: InputSpec
) -> dict[str, tf.Tensor]:
    """Output values of an example without batch dimension, after the model's own preprocessing."""
    values = example
    if spec.preprocess is not None:
        values = spec.preprocess(example, seed_pair(position, spec.seed, "preprocess"))
    return {
        one.name: tf.ensure_shape(tf.cast(values[one.name], spec.dtype_of(one)), one.sizes)
        for one in spec.elements
    }


def prepared_batch(
    examples: Mapping[str, tf.Tensor], positions: tf.Tensor, spec: InputSpec
) -> dict[str, tf.Tensor]:
    """`prepared` for whole batches, values [batch, ...] and positions [batch]."""
    if spec.preprocess is None:
        return {e.name: tf.cast(examples[e.name], spec.dtype_of(e)) for e in spec.elements}

    def one(row: tuple[Mapping[str, tf.Tensor], tf.Tensor]) -> dict[str, tf.Tensor]:
        return prepared(*row, spec)

    made = {e.name: tf.TensorSpec(e.sizes, spec.dtype_of(e)) for e in spec.elements}
    return dict(tf.map_fn(one, (dict(examples), positions), fn_output_signature=made))


def with_threads(dataset: tf.data.Dataset, private_threads: int | None) -> tf.data.Dataset:
    """``dataset`` on its own ``private_threads`` threads; None or 0: the shared pool."""
    options = tf.data.Options()
    if private_threads:
        options.threading.private_threadpool_size = private_threads
    return dataset.with_options(options)


def shuffled_indices(count: int, spec: InputSpec, start: int = 0) -> tf.data.Dataset:
    """Indices 0..count-1, endless, in a new order every epoch; int64 scalars.

    The order follows from the seed and the epoch alone. A shard gets the indices at its positions,
    so all shards together have the batches of one process. The first `start` indices of this shard
    are skipped, whole epochs at no cost.
    """

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), tf.stack([tf.cast(spec.seed, tf.int64), number])
        )
        first = turns_before(number * count, spec)
        if spec.num_shards > 1:
            turns = tf.range(first, turns_before((number + 1) * count, spec))
            order = tf.gather(order, positions_of(turns, spec) - number * count)
        return tf.data.Dataset.from_tensor_slices(order[tf.maximum(start - first, 0) :])

    epochs = tf.data.Dataset.counter(start=positions_of(start, spec) // count)
    return epochs.flat_map(tf.autograph.experimental.do_not_convert(epoch))
