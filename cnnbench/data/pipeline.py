"""Base classes of tf.data pipelines that can resume at a position in the data.

A position is the index of an example in the stream of the whole run. The stream consists of the
global batches of all steps, in order. The rows of a global batch are in the order of the towers of
all shards. Random choices, such as crop and colours, depend on the position. They are therefore the
same for any number of threads, towers and processes. No position occurs twice, neither in two
processes nor after resuming.
"""

from __future__ import annotations

import abc
import functools
import itertools
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from cnnbench.arrays import Array
from cnnbench.base import interfaces, plugins
from cnnbench.data.dataset import Dataset, InputSpec
from cnnbench.errors import DataError, UsageError, informative_line, text_of
from cnnbench.records.input import SkippedRecords


def positions_of(numbers_in_shard: Any, spec: InputSpec) -> Any:
    """Converts the numbers of examples within a shard to their positions in the stream of the whole
    run.

    `numbers_in_shard` contains the numbers of the examples: an int, or int64 of any shape. In
    training, a shard delivers consecutive rows of every global batch. In an exact pass, shard s of
    n delivers the examples s, s + n, s + 2n, ...
    """
    if spec.num_shards == 1:
        return numbers_in_shard
    if not spec.training:
        return numbers_in_shard * spec.num_shards + spec.shard_index
    share = spec.process_batch_size
    return numbers_in_shard + share * (
        numbers_in_shard // share * (spec.num_shards - 1) + spec.shard_index
    )


def count_examples_before(position: tf.Tensor, spec: InputSpec) -> tf.Tensor:
    """Counts the training examples of this shard before ``position`` (an int64 scalar) in the
    stream of the whole run.
    """
    share = spec.process_batch_size
    together = share * spec.num_shards
    row = position % together - spec.shard_index * share
    return position // together * share + tf.clip_by_value(row, 0, share)


def draw_uniform_int(positions: tf.Tensor, seed: int, purpose: str, below: Any) -> tf.Tensor:
    """Draws random integers in [0, below), one for each position (int64 of any shape).

    Different purposes result in independent numbers. The finaliser of SplitMix64 (Steele, Lea and
    Flood 2014) is applied to the position. The modulo operation has a bias of below / 2**64.
    """
    constant = functools.partial(tf.constant, dtype=tf.uint64)
    start = (seed * 0x9E3779B97F4A7C15 + zlib.crc32(purpose.encode())) % 2**64
    x = tf.cast(positions, tf.uint64) * constant(0x9E3779B97F4A7C15) + constant(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, constant(shift))) * constant(factor)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, constant(31)))
    return tf.cast(x % tf.cast(below, tf.uint64), tf.int64)


def stateless_seed(position: tf.Tensor, seed: int, purpose: str) -> tf.Tensor:
    """Creates a seed, int64 [2], for TensorFlow's stateless random operations, from a position and
    the seed of the run.

    Different purposes result in independent numbers.
    """
    mixed = (seed << 32) ^ zlib.crc32(purpose.encode())
    mixed = (mixed + 2**63) % 2**64 - 2**63
    return tf.stack([tf.constant(mixed, tf.int64), position])


# If a plug-in's pipeline has failed, the search for the defective record ends after this time.
_CHECK_SECONDS = 20.0
_DENSE = (tf.Tensor, tf.TensorSpec)


class PipelineStage(NamedTuple):
    """A pipeline that ends after one of its stages, so that the speed up to this stage can be
    measured.

    In training, `dataset` is endless. `examples` is the number of examples in one element of
    `dataset`.
    """

    name: str
    dataset: tf.data.Dataset
    examples: int


class Pipeline(abc.ABC):
    """Base class of pipelines, which read one subset of a data set on the host.

    `num_examples` includes all shards. `start` is the number of training examples of this shard
    that an earlier run read, including skipped records; only pipelines with `resumable` use it.
    `delivered` is the same number without skipped records.
    """

    resumable = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        interfaces.guard_plugin_methods(
            cls, next(filter(plugins.is_defined_by_cnnbench, cls.__mro__))
        )

    def __init__(self, spec: InputSpec, num_examples: int) -> None:
        self.spec = spec
        self.num_examples = num_examples
        self.start = 0
        self.delivered = 0

    @abc.abstractmethod
    def tower_batches(self) -> tf.data.Dataset:
        """Returns a data set of batches with ``batch_per_device`` examples each, in the order of
        the towers.

        A batch is a mapping from names of elements in the spec to tensors with their dtypes; see
        `preprocess_example`. In training, batches are always full, the data set is endless, and it
        starts with example ``start`` of the shard. Otherwise, the data set is one pass: it ends
        after the last example of the shard, and the last batch may be smaller.
        """

    def stages(self) -> list[PipelineStage]:
        """Returns the pipeline up to each of its stages, so that their speed can be measured. The
        last stage is the whole pipeline.
        """
        return [PipelineStage("batch", self.tower_batches(), self.spec.batch_per_device)]

    def explain(self, error: Exception) -> DataError:
        """Converts the error of a failed read to a DataError with one line of text, which names the
        file and the record if they are known.

        For a data set of a plug-in, the line names the first defect that its `check` finds or, if
        there is none, the code that was reading.
        """
        dataset, message = self.spec.dataset, informative_line(error)
        place = plugins.plugin_location_in_text(text_of(error))
        if not plugins.is_defined_by_cnnbench(dataset.open):
            defect = dataset.find_first_defect(self.spec, _CHECK_SECONDS)
            if defect:
                return DataError(f"{defect} ({message})")
            place = place or _definition_of(self, dataset)
        return DataError(": ".join(filter(None, (place, str(self.spec.data_dir), message))))

    def skipped(self) -> SkippedRecords:
        """Returns the records that were skipped so far because of --on_bad_record=skip."""
        return SkippedRecords()

    def count_skipped_records(self, examples: int) -> int:
        """Returns how many bad records were skipped while this run read its first `examples`
        training examples. Reading began at position ``start`` of the data.
        """
        del examples
        return 0

    def make_end_of_data_error(self) -> DataError:
        """Returns the error that is raised if training data ends although it should be endless."""
        return DataError(f"{self.spec.data_dir}: the {self.spec.subset} data has ended")


def check_pipeline(pipeline: object, spec: InputSpec) -> None:
    """Checks a plug-in's pipeline before anything is read. UsageError if it does not deliver the
    elements of its data set.

    The error names the class of the pipeline, what the pipeline must deliver, and what it delivers.
    """
    name = type(pipeline).__name__
    if not isinstance(pipeline, Pipeline):
        place = plugins.definition_location(spec.dataset.open)
        wanted = "a subclass of cnnbench.data.pipeline.Pipeline"
        raise UsageError(f"{place} must return {wanted}, not a {name}")
    place = _definition_of(pipeline, spec.dataset)
    if not hasattr(pipeline, "start"):
        raise UsageError(f"{place}: {name}.__init__ must call super().__init__(spec, num_examples)")
    required = interfaces.describe_mismatch(pipeline.num_examples, int)
    if required:
        raise UsageError(f"{place}: the attribute {name}.num_examples must be {required}")
    with plugins.containing_plugin_code(place), tf.device(spec.host):
        batches = pipeline.tower_batches()
    if not isinstance(batches, tf.data.Dataset):
        shown = interfaces.value_text(batches)
        raise UsageError(f"{place}: tower_batches must return a tf.data.Dataset, not {shown}")
    check_batch(pipeline, batches.element_spec)


_PYTHON_OPERATIONS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_GENERATORS = frozenset({"GeneratorDataset"})


def refuse_python_code(pipeline: Pipeline, mode: str, *, coordinated: bool) -> None:
    """Raises UsageError if a pipeline calls Python code of a plug-in that asynchronous workers
    cannot read. This code may belong to the data set, or to the preprocessing of the model.

    TensorFlow calls this code in the process that built the pipeline. If another process reads the
    pipeline, each of its reads calls back this process, and TensorFlow 2.21 then sometimes hangs.

    Args:
      mode: name of the mode of --variable_update.
      coordinated: whether a coordinator schedules the steps, which then cannot read any Python
        code. Other asynchronous workers only cannot read `tf.data.Dataset.from_generator`.
    """
    spec, preprocess = pipeline.spec, pipeline.spec.preprocess
    if not plugins.is_defined_by_cnnbench(spec.dataset.open):
        place = _definition_of(pipeline, spec.dataset)
    elif preprocess is not None and not plugins.is_defined_by_cnnbench(preprocess):
        place = plugins.definition_location(preprocess)
    else:
        return
    with tf.device(spec.host):
        used = _operation_types(pipeline.tower_batches())
    calls = f"{place}: the pipeline of data set {spec.dataset.name} calls"
    if coordinated and used & _PYTHON_OPERATIONS:
        raise UsageError(
            f"{calls} Python code (tf.numpy_function, tf.py_function or Dataset.from_generator), "
            f"which --variable_update={mode} cannot do; use operations of TensorFlow, or another "
            "mode"
        )
    if used & _GENERATORS:
        raise UsageError(
            f"{calls} Dataset.from_generator, which asynchronous workers of "
            f"--variable_update={mode} cannot do; use tf.numpy_function or operations of "
            "TensorFlow, or leave out --nocross_replica_sync"
        )


def _operation_types(dataset: tf.data.Dataset) -> set[str]:
    """Returns the types of operations in a data set and its inputs, such as "PyFunc"."""
    types: set[str] = set()
    datasets = [dataset]
    while datasets:
        dataset = datasets.pop()
        datasets += dataset._inputs()
        for function in dataset._functions():
            graph = function.function.graph.as_graph_def()
            bodies = (node for body in graph.library.function for node in body.node_def)
            types.update(node.op for node in itertools.chain(graph.node, bodies))
    return types


def check_batch(pipeline: Pipeline, batch: Any) -> None:
    """Raises UsageError if a batch of a pipeline lacks an element of the data set, or if an element
    has a wrong dtype or shape.

    Args:
      batch: tensors, or their specs, by name of the element.
    """
    spec = pipeline.spec
    all_specs = spec.batch_tensor_specs(spec.batch_per_device if spec.training else None)
    # Mixing, which adds further labels to a batch, follows later, so this batch does not contain
    # them yet.
    specs = {one.name: all_specs[one.name] for one in spec.elements}
    wanted, found = f"a mapping with {', '.join(specs)}", interfaces.value_text(batch)
    if isinstance(batch, Mapping):
        found = f"one with {', '.join(map(str, batch))}"
        other = next(
            (name for name, one in specs.items() if not _matches_spec(batch.get(name), one)), ""
        )
        if not other:
            return
        if other in batch:
            value = batch[other]
            wanted = f"{other} as {interfaces.value_text(specs[other])}"
            found = (
                interfaces.value_text(value)
                if isinstance(value, _DENSE)
                else f"a {type(value).__name__}"
            )
    who = f"{_definition_of(pipeline, spec.dataset)}: {type(pipeline).__name__}"
    raise UsageError(f"{who} must deliver {wanted} for data set {spec.dataset.name}, not {found}")


def _matches_spec(value: Any, spec: tf.TensorSpec) -> bool:
    """Whether a tensor or spec has the dtype and shape of `spec`. Unknown sizes match all."""
    same = isinstance(value, _DENSE) and value.dtype == spec.dtype
    return same and bool(spec.shape.is_compatible_with(value.shape))


def _definition_of(pipeline: Pipeline, dataset: Dataset) -> str:
    """Returns the file and line where a plug-in defines the class of its pipeline or, if the class
    belongs to cnnbench, the function that opens the data set.
    """
    kind = type(pipeline)
    places = (kind.tower_batches, kind, dataset.open)
    return plugins.definition_location(
        next(one for one in places if not plugins.is_defined_by_cnnbench(one))
    )


def preprocess_example(
    example: Mapping[str, tf.Tensor], position: tf.Tensor, spec: InputSpec
) -> dict[str, tf.Tensor]:
    """Applies the model's preprocessing to one example (without batch dimension). Returns the
    elements for the model, by name.
    """
    values = example
    if spec.preprocess is not None:
        values = spec.preprocess(example, stateless_seed(position, spec.seed, "preprocess"))
    made = {}
    for one in spec.elements:
        value = tf.cast(values[one.name], spec.dtype_of(one))
        if not value.shape.is_compatible_with(one.sizes):
            wanted = f"the shape {list(one.sizes)}, not {interfaces.tensor_sizes(value)}"
            raise UsageError(f"data set {spec.dataset.name}: {one.name} must have {wanted}")
        made[one.name] = tf.ensure_shape(value, one.sizes)
    return made


def preprocess_batch(
    examples: Mapping[str, tf.Tensor], positions: tf.Tensor, spec: InputSpec
) -> dict[str, tf.Tensor]:
    """Applies the model's preprocessing to a batch of examples, whose values are [batch, ...] and
    whose positions are [batch]. See `preprocess_example`.
    """
    if spec.preprocess is None:
        return {e.name: tf.cast(examples[e.name], spec.dtype_of(e)) for e in spec.elements}
    made = {e.name: tf.TensorSpec(e.sizes, spec.dtype_of(e)) for e in spec.elements}
    rows = (dict(examples), positions)
    batch = tf.map_fn(
        lambda row: preprocess_example(row[0], row[1], spec), rows, fn_output_signature=made
    )
    return dict(batch)


def with_private_threads(dataset: tf.data.Dataset, private_threads: int | None) -> tf.data.Dataset:
    """Runs ``dataset`` in its own pool of so many threads; with None or 0, in the shared pool."""
    options = tf.data.Options()
    if private_threads:
        options.threading.private_threadpool_size = private_threads
    return dataset.with_options(options)


def shuffled_index_dataset(count: int, spec: InputSpec, start: int = 0) -> tf.data.Dataset:
    """Creates an endless data set of the indices 0..count-1 (int64 scalars), in a new random order
    for each epoch.

    The order depends only on the seed and the epoch. A shard receives the indices at its positions,
    so all shards together have the same batches as a single process. The first `start` indices of
    this shard are skipped; skipping whole epochs takes no time.
    """

    def make_shuffled_epoch(epoch_number: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), tf.stack([tf.cast(spec.seed, tf.int64), epoch_number])
        )
        first = count_examples_before(epoch_number * count, spec)
        if spec.num_shards > 1:
            numbers_in_shard = tf.range(
                first, count_examples_before((epoch_number + 1) * count, spec)
            )
            order = tf.gather(order, positions_of(numbers_in_shard, spec) - epoch_number * count)
        return tf.data.Dataset.from_tensor_slices(order[tf.maximum(start - first, 0) :])

    epochs = tf.data.Dataset.counter(start=positions_of(start, spec) // count)
    return epochs.flat_map(tf.autograph.experimental.do_not_convert(make_shuffled_epoch))


class ArrayPipeline(Pipeline):
    """Pipeline of a data set that is stored as arrays in host memory. Shuffles the whole subset in
    every epoch, and gathers the examples of each batch from the arrays.

    There is one array for each element, in the order of declaration. Row i is example i.
    """

    resumable = True

    def __init__(self, spec: InputSpec, *arrays: Array) -> None:
        rows = [len(array) for array in arrays]
        if len({*rows}) != 1:
            raise UsageError(
                f"the arrays have different numbers of rows: {', '.join(map(str, rows))}"
            )
        super().__init__(spec, rows[0])
        with tf.device(spec.host):
            # The graph of a data set captures an eager tensor as an argument. NumPy arrays would be
            # copied into the graph.
            self._arrays = tuple(tf.constant(array) for array in arrays)

    def prepare(self, positions: tf.Tensor, *rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Converts gathered rows of the arrays, [batch, ...], to the elements of the examples. By
        default, the rows are the elements.

        Random choices may depend only on the positions, int64 [batch]; see the docstring of this
        module.
        """
        del positions
        return rows

    def tower_batches(self) -> tf.data.Dataset:
        """See `Pipeline.tower_batches`."""
        spec = self.spec
        indices = self._index_dataset().enumerate(self.start)
        batches = indices.batch(spec.batch_per_device, drop_remainder=spec.training).map(
            tf.autograph.experimental.do_not_convert(self._load_batch),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        ahead = spec.num_devices * max(1, spec.multi_device_iterator_max_buffer_size)
        return with_private_threads(batches.prefetch(ahead), spec.datasets_num_private_threads)

    def _index_dataset(self) -> tf.data.Dataset:
        spec = self.spec
        if spec.datasets_repeat_cached_sample:
            zero = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64))
            return zero.repeat(None if spec.training else self.num_examples)
        if spec.training:
            return shuffled_index_dataset(self.num_examples, spec, self.start)
        return tf.data.Dataset.range(self.num_examples).shard(spec.num_shards, spec.shard_index)

    def rows(self, positions: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Gathers the rows of the arrays with the given indices, int64 [batch]. Random choices may
        depend only on `positions`, int64 [batch].
        """
        del positions
        return tuple(tf.gather(array, indices) for array in self._arrays)

    def _load_batch(self, numbers_in_shard: tf.Tensor, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        positions = positions_of(numbers_in_shard, self.spec)
        rows = self.prepare(positions, *self.rows(positions, indices))
        names = [element.name for element in self.spec.examples]
        if len(rows) != len(names):
            wanted = f"an array for each of {', '.join(names)}, not {len(rows)}"
            raise UsageError(f"{type(self).__name__} needs {wanted}")
        return preprocess_batch(dict(zip(names, rows, strict=True)), positions, self.spec)
