"""The host side of real input: a tf.data pipeline that can explain its errors."""

from __future__ import annotations

import abc

import tensorflow as tf

from cnnbench.data.spec import InputSpec
from cnnbench.errors import DataError


class Pipeline(abc.ABC):
    """Reads one subset of a data set on the host.

    Attributes:
      spec: what was asked for.
      num_examples: examples of the subset, over all shards.
    """

    def __init__(self, spec: InputSpec, num_examples: int) -> None:
        self.spec = spec
        self.num_examples = num_examples

    @abc.abstractmethod
    def tower_batches(self) -> tf.data.Dataset:
        """Batches of ``batch_per_device`` examples (images, labels), in order of the towers.

        Training batches are always full and never end. Otherwise one pass: the data set ends
        after the shard's last example, and its last batch may be smaller.
        """

    def explain(self, error: tf.errors.OpError) -> DataError:
        """The error of a reading step as one line, naming file and record where known."""
        first_line = str(error.message).splitlines()[0] if error.message else type(error).__name__
        return DataError(f"{self.spec.data_dir}: {first_line}")


def with_threads(dataset: tf.data.Dataset, private_threads: int | None) -> tf.data.Dataset:
    """``dataset`` on ``private_threads`` threads of its own; None or 0: the shared pool."""
    options = tf.data.Options()
    if private_threads:
        options.threading.private_threadpool_size = private_threads
    return dataset.with_options(options)
