"""Pipelines of tf.data that can be resumed at a position, and synthetic data.

The stream is that of the whole run: the global batches of all steps, one after the other, rows in
the order of the towers of all shards. Crop and colours at a position are therefore the same for any
number of threads, towers and processes, and no position occurs twice, neither in two processes nor
after resuming.
"""

from __future__ import annotations

import abc
import functools
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from cnnbench.data.dataset import InputSource, InputSpec, Preprocess, TowerBatch
from cnnbench.errors import DataError, first_line
from cnnbench.models.spec import Element
from cnnbench.records.run import SkippedRecords

# Random numbers determined by an example's position in the stream.


def positions_of(turns: Any, spec: InputSpec) -> Any:
    """Positions of the examples that a shard delivers, by their numbers in the order of delivery.

    The turns are an int or int64 of any shape. While training a shard delivers consecutive rows of
    every global batch; in an exact pass shards take examples in turn.
    """
    if spec.num_shards == 1:
        return turns
    if not spec.training:
        return turns * spec.num_shards + spec.shard_index
    share = spec.global_batch
    return turns + share * (turns // share * (spec.num_shards - 1) + spec.shard_index)


def turns_before(position: tf.Tensor, spec: InputSpec) -> tf.Tensor:
    """Number of a shard's training examples before ``position`` (int64 scalar)."""
    share = spec.global_batch
    together = share * spec.num_shards
    row = position % together - spec.shard_index * share
    return position // together * share + tf.clip_by_value(row, 0, share)


def uniform_int(positions: tf.Tensor, seed: int, purpose: str, below: Any) -> tf.Tensor:
    """Integers in [0, below), one per position (int64 of any shape); purposes are independent.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014) on the position; the bias of the
    modulus is below / 2**64.
    """
    start = (seed * 0x9E3779B97F4A7C15 + zlib.crc32(purpose.encode())) % 2**64
    x = tf.cast(positions, tf.uint64) * _u64(0x9E3779B97F4A7C15) + _u64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u64(shift))) * _u64(factor)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u64(31)))
    return tf.cast(x % tf.cast(below, tf.uint64), tf.int64)


def seed_pair(position: tf.Tensor, seed: int, purpose: str) -> tf.Tensor:
    """A seed, int64 [2], for TensorFlow's stateless random ops; purposes are independent."""
    mixed = (seed << 32) ^ zlib.crc32(purpose.encode())
    mixed = (mixed + 2**63) % 2**64 - 2**63
    return tf.stack([tf.constant(mixed, tf.int64), position])


def _u64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)


# Host part of real input: a tf.data pipeline with error messages that name the record.


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


# Data sets that fit into host memory: batches are made by gathering rows of arrays.


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

        Randomness may depend only on the positions, int64 [batch] (see `cnnbench.data.pipeline`).
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


# Copies of tensors between the memories of devices.


def copied_to(device: str, nest: Any) -> Callable[[Any], Any]:
    """Makes a thread-safe function that copies nests like `nest` to a device in one call.

    The nests have equal structure and dtypes, any shapes, and may contain None. In TensorFlow 2.21
    a copy between host and GPU waits, in either direction, for everything that was enqueued on the
    GPU when it is issued. One call for all waits once; eager copies wait one after the other.
    """

    def copies(*tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(device):
            return [tf.identity(tensor) for tensor in tensors]

    specs = [tf.TensorSpec(None, one.dtype) for one in _present(nest)]
    concrete = tf.function(copies, autograph=False).get_concrete_function(*specs)
    return lambda tensors: _packed(tensors, concrete(*_present(tensors)))


def _present(nest: Any) -> list[Any]:
    return [one for one in tf.nest.flatten(nest) if one is not None]


def _packed(nest: Any, values: Iterable[Any]) -> Any:
    """The nest with these values in place of its own, in order; None stays None."""
    found = iter(values)
    return tf.nest.map_structure(lambda one: None if one is None else next(found), nest)


class ReadEvents(NamedTuple):
    """Functions that a read calls, each once and in any thread.

    `issued`: from now on launches do not delay the read. `arrived` takes the seconds since the
    values arrived on the host.
    """

    issued: Callable[[], None]
    arrived: Callable[[float], None]


class ScalarReader:
    """Reads scalars from a GPU, and reports when later launches can no longer delay them.

    A copy to the host waits for everything that is enqueued on the GPU when the copy is issued.
    Python cannot observe that moment, but the order of operations within TensorFlow shows it. The
    scalars (float32 or bool; parts of the nest may be None) become one int32 vector in GPU memory,
    read by an operation with int32 operands in host memory, before which TensorFlow inserts a copy
    (``EnsureMemoryTypes``) that belongs to the GPU's part of the function. The executor of a GPU
    runs operations in one thread, in the order in which they become ready: the copy is issued
    before an operation two further ones behind the vector, which is sent to the host. The function
    stamps the arrival, because it returns only after several threads have waited for each other.
    """

    def __init__(self, device: str, host: str, nest: Any) -> None:
        self._host = host
        self._issued: Callable[[], None] = lambda: None

        def issued(behind: np.ndarray) -> np.ndarray:
            self._issued()
            return behind

        def read(*scalars: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            with tf.xla.experimental.jit_scope(compile_ops=False):
                with tf.device(device):
                    packed = tf.stack([tf.cast(scalar, tf.float32) for scalar in scalars])
                    bits = tf.bitcast(packed, tf.int32)
                    copied = tf.maximum(bits, tf.int32.min)  # the same, in host memory
                    with tf.control_dependencies([bits]):
                        behind = tf.shape(packed) + 1
                with tf.device(host):
                    values = tf.bitcast(copied, tf.float32)
                    with tf.control_dependencies([values]):
                        stamp = tf.timestamp()
                    called = tf.numpy_function(issued, [behind], tf.int32, stateful=False)
                    return values, stamp, called

        # Of unknown shape: otherwise `behind` would be a constant.
        specs = [tf.TensorSpec(None, one.dtype) for one in _present(nest)]
        self._read = tf.function(read, autograph=False).get_concrete_function(*specs)

    def __call__(self, nest: Any, events: ReadEvents) -> Any:
        """The scalars as NumPy values, once everything that they depend on is done.

        The next call must not begin before `events.issued` was called.
        """
        self._issued = events.issued
        with tf.device(self._host):  # where the results of the function are put
            values, stamp, _ = self._read(*_present(nest))
        events.arrived(time.time() - float(stamp))
        return _packed(nest, values.numpy())


# Synthetic data, which stays on the devices and adds no work to a step.

# Rows up to this number are drawn eagerly: tracing takes as long as about two hundred of them.
_FEW = 128


class SyntheticInput(InputSource):
    """Examples drawn once under the seed and kept in device variables.

    Images look like normalised photographs: a truncated normal in [-1, 1] with standard deviation
    near one half. The labels are fixed, so that the loss can fall and stays finite. Row i of the
    global batch depends on the seed and on i only: tower t of all shards has its rows [t*b,
    (t+1)*b), for any number of towers.
    """

    synthetic = True

    def __init__(self, spec: InputSpec, devices: Sequence[str]) -> None:
        super().__init__(spec, devices, spec.dataset.num_examples(spec.subset))
        self._towers = [self._variables(tower) for tower in range(spec.num_devices)]

    def _variables(self, tower: int) -> tuple[tf.Variable, ...]:
        spec = self.spec
        number = spec.shard_index * spec.num_devices + tower
        first = number * spec.batch_per_device
        # On the host, so that every kind of device starts from the same bits.
        with tf.device(spec.host):
            rows = tf.range(first, first + spec.batch_per_device)
            values = synthetic_rows(rows, spec.seed, spec.examples, spec.preprocess)
            drawn = [(e.name, tf.cast(values[e.name], spec.dtype_of(e))) for e in spec.elements]
        with tf.device(self.devices[tower]):
            return tuple(
                tf.Variable(value, trainable=False, name=f"synthetic_{name}_{tower}")
                for name, value in drawn
            )

    @property
    def signature(self) -> tuple[TowerBatch, ...]:
        """See `InputSource.signature`: the step takes nothing."""
        return ()

    def of_tower(self, tower: int, batches: Sequence[TowerBatch]) -> TowerBatch:
        """See `InputSource.of_tower`: reads the tower's variables."""
        elements = self.spec.elements
        values = zip(elements, self._towers[tower], strict=True)
        return TowerBatch.of(elements, {e.name: value.read_value() for e, value in values})

    def next(self) -> tuple[TowerBatch, ...]:
        """Returns no arguments: the step reads variables."""
        self.batches += 1
        return ()


def synthetic_rows(
    rows: tf.Tensor,
    seed: int,
    elements: tuple[Element, ...],
    preprocess: Preprocess | None = None,
) -> dict[str, tf.Tensor]:
    """Rows (int32 [n]) of the synthetic global batch: a tensor [n, ...] per element, in its dtype.

    The elements have numbers as sizes; `preprocess` makes other ones (`Model.preprocess`).
    """
    count = rows.shape[0]
    if preprocess is None and count is not None and count <= _FEW and tf.executing_eagerly():
        drawn = [_example(row, seed, elements) for row in tf.unstack(rows)]
        return {name: tf.stack([one[name] for one in drawn]) for name in drawn[0]}
    return _drawing(seed, elements, preprocess)(rows)


@functools.cache
def _drawing(
    seed: int, elements: tuple[Element, ...], preprocess: Preprocess | None
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    def one(row: tf.Tensor) -> dict[str, tf.Tensor]:
        if preprocess is None:
            return _example(row, seed, elements)
        streams = len(elements) + 1
        example = _example(row, seed, elements, streams)
        own = tf.stack([seed, streams * row + len(elements)])
        return dict(preprocess(example, tf.cast(own, tf.int64)))

    @tf.function(autograph=False)
    def draw(rows: tf.Tensor) -> Any:
        made = tf.function(one, autograph=False).get_concrete_function(
            tf.TensorSpec([], rows.dtype)
        )
        signature = tf.nest.map_structure(
            lambda value: tf.TensorSpec(value.shape, value.dtype), made.structured_outputs
        )
        return tf.map_fn(one, rows, fn_output_signature=signature, parallel_iterations=16)

    return cast("Callable[[tf.Tensor], dict[str, tf.Tensor]]", draw)


def _example(
    row: tf.Tensor, seed: int, elements: tuple[Element, ...], streams: int | None = None
) -> dict[str, tf.Tensor]:
    """One row; each element has its own stream of random numbers."""
    streams = streams or len(elements)
    # The pair must be unique for row and stream.
    seeds = [tf.stack([seed, streams * row + stream]) for stream in range(len(elements))]
    example = {e.name: _draw(e, pair) for e, pair in zip(elements, seeds, strict=True)}
    for element in elements:
        if element.rows is not None:
            example[element.name] = _cut(example[element.name], example[element.rows])
    return example


def _draw(element: Element, seed: tf.Tensor) -> tf.Tensor:
    draw, shape, dtype = element.draw, element.sizes, tf.as_dtype(element.dtype)
    if draw is None:
        raise ValueError(f"nothing says how a synthetic {element.name} is drawn")
    low, high = int(draw.low), int(draw.high)
    if draw.kind == "normal":
        value = tf.random.stateless_truncated_normal(shape, seed, stddev=draw.scale)
    elif draw.kind == "integers":
        value = tf.random.stateless_uniform(shape, seed, low, high, tf.int32)
    elif draw.kind == "uniform":
        value = tf.random.stateless_uniform(shape, seed, float(low), float(high))
    elif draw.kind == "boxes":
        value = _boxes(shape, seed)
    else:
        value = tf.fill(shape, draw.scale)
    return tf.cast(value, dtype)


def _boxes(shape: tuple[int, ...], seed: tf.Tensor) -> tf.Tensor:
    """Boxes inside the image, with sides of a tenth to nine tenths of the image's."""
    drawn = tf.random.stateless_uniform([*shape[:-1], 2, 2], seed)
    size = 0.1 + 0.8 * drawn[..., 0, :]
    first = drawn[..., 1, :] * (1.0 - size)
    return tf.concat([first, first + size], axis=-1)


def _cut(value: tf.Tensor, rows: Any) -> tf.Tensor:
    inside = tf.range(value.shape[0], dtype=rows.dtype) < rows
    inside = tf.reshape(inside, [-1] + [1] * (len(value.shape) - 1))
    return tf.where(inside, value, tf.zeros([], value.dtype))
