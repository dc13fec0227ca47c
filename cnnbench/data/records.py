"""Pipelines that read the examples in TFRecord files, and checks of all records in these files."""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import tensorflow as tf

from cnnbench.base.urls import local_or_url_path
from cnnbench.data import tfrecord
from cnnbench.data.dataset import InputSpec
from cnnbench.data.folder import Findings, RecordDefect
from cnnbench.data.pipeline import (
    Pipeline,
    PipelineStage,
    positions_of,
    preprocess_example,
    with_private_threads,
)
from cnnbench.data.tfrecord import cached_record_count, count_records_by_file, missing_shard_names
from cnnbench.errors import DataError, informative_line
from cnnbench.machine.cpu import available_cpu_count
from cnnbench.records.input import SkippedRecords

# Checks of all records in TFRecord files, by several threads

_CHUNK = 256

F = TypeVar("F")


def check_records(
    files: Sequence[Path], examine: Callable[[bytes], F], add_facts: Callable[[F], None]
) -> Findings:
    """Checks every record in the files. After a damaged record, the check continues if the lengths
    of the records are intact.

    Missing files are also reported as defects. `examine` is called in several threads; it returns
    properties of a serialized record or raises `RecordDefect`. `add_facts` is called with the
    properties of each valid record, in order.
    """
    missing = [files[0].parent / name for name in missing_shard_names(files)]
    findings = Findings(defects=[f"{path}: this file is missing" for path in missing])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in files:
            look = partial(_examine, path, examine)
            records = _read_records(path)
            while chunk := list(itertools.islice(records, _CHUNK)):
                for facts, defect in pool.map(look, chunk):
                    if facts is None:
                        findings.defects.append(defect)
                    else:
                        findings.records += 1
                        add_facts(facts)
    return findings


def _examine(
    path: Path, examine: Callable[[bytes], F], numbered: tuple[int, bytes | DataError]
) -> tuple[F | None, str]:
    number, data = numbered
    if isinstance(data, DataError):
        return None, str(data)
    try:
        return examine(data), ""
    except RecordDefect as defect:
        return None, f"{path}: record {number}: {defect}"


def _read_records(path: Path) -> Iterator[tuple[int, bytes | DataError]]:
    """Yields the number and the data of each record in a file. For a damaged record, yields the
    error instead of the data.

    TensorFlow's reader verifies checksums quickly. But the reader stops at the first damage,
    interprets a truncated header as the end of the file, and allocates as much memory as a damaged
    length field specifies. Therefore TensorFlow's reader is only used up to the first damage of the
    framing. After the damage, cnnbench's own reader continues.
    """
    sound = 0
    try:
        records = tf.data.TFRecordDataset(str(path)).take(tfrecord.count_before_damage(path))
        with contextlib.suppress(tf.errors.OpError):
            for data in records.as_numpy_iterator():
                yield sound, data
                sound += 1
        yield from tfrecord.read_records_from(path, sound)
    except DataError as error:
        yield -1, error


# Pipelines of TFRecord files: reading, shuffling and decoding, with errors that name the record

_CYCLE_LENGTH = 10
# Maximum number of records in a file, so that the number of a file and of a record together fit
# into one integer.
_MOST_RECORDS = 2**40
_OFFSET = re.compile(r"record at (\d+)")
# Maximum number of records that may be in decoding at the same time
_IN_FLIGHT = 1024
# Maximum number of skipped records that are checked for a defect
_EXAMINED = 1000
_NAMED = 3

# AutoGraph would find nothing to convert, and leave temporary files on disk, so it is disabled.
_UNCONVERTED = tf.autograph.experimental.do_not_convert


def _element_fault(value: Any, given: Sequence[Any]) -> str:
    missing = [one.name for one in given[0].spec.examples if one.name not in value]
    return f"values of all elements, not without {missing[0]}" if missing else ""


class RecordPipeline(Pipeline):
    """Pipeline that interleaves the records of several files, shuffles them and decodes them in
    parallel.

    The message of an error inside TensorFlow names neither the file nor the record. To find the
    record, a ledger (a hash table in the graph) contains the records that are being decoded, keyed
    by their number in the stream. Skipped records remain in the ledger.

    By default, the data set finds the files and counts their examples.
    """

    resumable = True

    def __init__(
        self, spec: InputSpec, files: Sequence[Path] = (), num_examples: int | None = None
    ) -> None:
        assert spec.data_dir is not None
        files = files or [
            local_or_url_path(path) for path in spec.dataset.find(spec.data_dir, spec.subset)
        ]
        if num_examples is None:
            num_examples = spec.dataset.count(files, spec.subset)
        super().__init__(spec, num_examples)
        self._files = list(files)
        # Only a training may read its files in any order (--datasets_sloppy_parallel_interleave).
        self._in_order = not (spec.training and spec.datasets_sloppy_parallel_interleave)
        with tf.device(self.spec.host):
            self._paths = tf.constant([str(path) for path in self._files])
            self._ledger = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
            self._skips = spec.on_bad_record == "skip"
            # For each file: the number of records before the first damaged record, as far as it has
            # been read.
            self._undamaged = tf.Variable(tf.zeros([len(self._files)], tf.int64))
            self._last_used = tf.Variable(0, dtype=tf.int64)
        # Keeps variables alive that the graphs of the tf.data data sets use; TensorFlow would
        # delete them.
        self._iterations: list[tf.Variable] = []

    @abc.abstractmethod
    def decode(
        self, record: tf.Tensor, position: tf.Tensor
    ) -> Annotated[Mapping[str, tf.Tensor], _element_fault]:
        """Decodes a record (a string scalar) to the elements of an example, by name. Runs in the
        graph of the data set.

        The operations must fail for the same records for which `examine` raises RecordDefect.
        `position`, an int64 scalar, determines all random choices (see `cnnbench.data.pipeline`).
        """

    @abc.abstractmethod
    def examine(self, record: bytes) -> object:
        """Checks what `decode` uses in a record. RecordDefect if the record cannot be used."""

    def tower_batches(self) -> tf.data.Dataset:
        """See `Pipeline.tower_batches`."""
        spec = self.spec
        batches = self._example_dataset().batch(spec.batch_per_device, drop_remainder=spec.training)
        ahead = spec.num_devices * max(1, spec.multi_device_iterator_max_buffer_size)
        return with_private_threads(batches.prefetch(ahead), spec.datasets_num_private_threads)

    def stages(self) -> list[PipelineStage]:
        """See `Pipeline.stages`. The stage "read" has no shuffle buffer, because a buffer would
        hide the speed of reading.
        """
        threads = self.spec.datasets_num_private_threads
        return [
            PipelineStage("read", with_private_threads(self._one_pass().repeat(), threads), 1),
            PipelineStage("prepare", with_private_threads(self._example_dataset(), threads), 1),
            *super().stages(),
        ]

    @_UNCONVERTED
    def _example_dataset(self) -> tf.data.Dataset:
        records = self._record_dataset().enumerate(self.start)
        if not self._skips:
            return self._parallel_map(records, lambda *record: self._decode_record(*record)[1])
        self._last_used.assign(self.start)
        # If all records of an epoch are skipped, the data set ends; otherwise it would search
        # forever.
        most = self.num_examples + _IN_FLIGHT
        records = records.take_while(lambda turn, _: turn - self._last_used <= most)
        decoded = self._parallel_map(records, self._decode_record)
        # Only errors of decoding are ignored. An error in the preprocessing is not a defect of the
        # record.
        return self._parallel_map(decoded.ignore_errors(), self._preprocess_kept)

    def _parallel_map(
        self, dataset: tf.data.Dataset, function: Callable[..., Any]
    ) -> tf.data.Dataset:
        return dataset.map(
            function,
            # With two calls per thread, no thread idles. Autotuning would choose fewer calls.
            num_parallel_calls=2
            * (self.spec.datasets_num_private_threads or available_cpu_count()),
            deterministic=self._in_order,
        )

    def _preprocess_kept(self, number_in_shard: tf.Tensor, example: Mapping[str, tf.Tensor]) -> Any:
        with tf.control_dependencies([self._last_used.assign(number_in_shard)]):
            return preprocess_example(
                example, positions_of(tf.identity(number_in_shard), self.spec), self.spec
            )

    def _record_dataset(self) -> tf.data.Dataset:
        """Creates the data set of (file number, record number, record) of this shard: endless in
        training, otherwise one pass.
        """
        spec = self.spec
        kept = spec.datasets_use_caching or spec.datasets_repeat_cached_sample
        behind = self.start // max(1, self._records_per_pass()) if self.start and not kept else 0
        records = self._one_pass(behind)
        if spec.datasets_repeat_cached_sample:
            once = records.take(1).cache()
            return once.repeat(None if spec.training else self.num_examples)
        if spec.datasets_use_caching:
            records = records.cache()
        if not spec.training:
            return records
        buffer = max(1, min(spec.shuffle_buffer, self.num_examples))
        records = records.shuffle(buffer, seed=spec.seed).repeat()
        return records.skip(self.start) if self.start else records

    def _record_ranges(self) -> list[tuple[int, int, int]]:
        """Returns the records that this shard reads in one pass, as ranges: file number, first
        record, and end of the range (exclusive).

        If the records of all files are numbered, the training records of a shard are consecutive.
        The sizes of shards differ by at most one record. Files without records of this shard are
        not opened.
        """
        spec = self.spec
        shards, shard = spec.num_shards, spec.shard_index
        files = range(len(self._files))
        if not spec.training or shards == 1:
            return [(file, 0, _MOST_RECORDS) for file in files]
        if spec.shard_files:
            return [(file, 0, _MOST_RECORDS) for file in files[shard::shards]]
        ends = list(itertools.accumulate(count_records_by_file(self._files, spec.subset)))
        low, high = (ends[-1] * end // shards for end in (shard, shard + 1))
        # If a file belongs to this shard up to its end, the range ends at `_MOST_RECORDS`.
        return [
            (file, max(low - begin, 0), _MOST_RECORDS if end <= high else high - begin)
            for file, (begin, end) in enumerate(itertools.pairwise([0, *ends]))
            if max(low, begin) < min(high, end)
        ]

    def _records_per_pass(self) -> int:
        if self.spec.num_shards == 1:
            return self.num_examples
        return sum(
            len(range(cached_record_count(self._files[file]))[first:stop])
            for file, first, stop in self._record_ranges()
        )

    @_UNCONVERTED
    def _one_pass(self, skipped_passes: int = 0) -> tf.data.Dataset:
        """Creates a data set of (file number, record number, record) for one pass over the records
        of this shard.

        The first `skipped_passes` iterations deliver blank elements and do not open files. This
        preserves the random order of later iterations: in tf.data, it depends on the numbers of
        earlier iterations and elements, but not on the content of the elements.
        """
        spec = self.spec
        parts = np.array(self._record_ranges(), np.int64).reshape(-1, 3)
        files = tf.data.Dataset.from_tensor_slices(tuple(parts.T))
        if spec.training:
            files = files.shuffle(len(self._files), seed=spec.seed)
        if not skipped_passes:
            return self._interleave(files)
        iterations = tf.Variable(0, dtype=tf.int64)
        self._iterations.append(iterations)
        per_pass = tf.constant(self._records_per_pass(), tf.int64)

        def blank_records(blank: tuple[tf.Tensor, ...]) -> tf.data.Dataset:
            count = tf.where(iterations.assign_add(1) <= skipped_passes, per_pass, 0)
            return tf.data.Dataset.from_tensors(blank).repeat(count)

        blank = (tf.constant(-1, tf.int64), tf.constant(-1, tf.int64), tf.constant(""))
        first = tf.data.Dataset.from_tensors((blank,)).flat_map(blank_records)
        # tf.data draws the order of the files once per iteration. A filter keeps this order; a
        # second data set would not.
        return first.concatenate(
            self._interleave(files.filter(lambda *_: iterations > skipped_passes))
        )

    def _interleave(self, files: tf.data.Dataset) -> tf.data.Dataset:
        spec = self.spec
        records = files.interleave(
            self._read_file,
            cycle_length=spec.datasets_parallel_interleave_cycle_length or _CYCLE_LENGTH,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=self._in_order,
        )
        return records if spec.training else records.shard(spec.num_shards, spec.shard_index)

    def _read_file(self, file: tf.Tensor, first: tf.Tensor, stop: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(tf.gather(self._paths, file))
        records = self._enumerate_records(file, records) if self._skips else records.enumerate()
        records = records.skip(first).take(stop - first)
        ahead = self.spec.datasets_parallel_interleave_prefetch
        if ahead:
            records = records.prefetch(ahead)
        return records.map(lambda record, data: (file, record, data))

    def _enumerate_records(self, file: tf.Tensor, records: tf.data.Dataset) -> tf.data.Dataset:
        """Numbers the records of a file, and continues after damaged records. The number of a
        damaged record is inverted (~number).

        TensorFlow's reader ends at the first damage. cnnbench's own reader, which is slower,
        continues after the damage.
        """

        def count_undamaged(number: tf.Tensor, data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # If several iterators read the same file, each stores its record number, and the
            # largest one remains.
            read = self._undamaged.scatter_max(tf.IndexedSlices(number + 1, file))
            with tf.control_dependencies([read]):
                return tf.identity(number), data

        signature = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string))
        behind = tf.data.Dataset.from_generator(
            self._read_after_damage, output_signature=signature, args=(file,)
        )
        return records.ignore_errors().enumerate().map(count_undamaged).concatenate(behind)

    def _read_after_damage(self, file: Any) -> Iterator[tuple[int, bytes]]:
        undamaged = int(self._undamaged[int(file)].numpy())
        for number, data in tfrecord.read_records_from(self._files[file], undamaged):
            yield (~number, b"") if isinstance(data, DataError) else (number, data)

    def _decode_record(
        self, number_in_shard: tf.Tensor, record: tuple[tf.Tensor, tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        file, number, data = record
        undamaged = number >= 0
        key = file * _MOST_RECORDS + tf.where(undamaged, number, ~number)
        with tf.control_dependencies([self._ledger.insert(number_in_shard, key)]):
            data = tf.identity(data)
        if self._skips:
            with tf.control_dependencies([assert_in_graph(undamaged, "the record is damaged")]):
                data = tf.identity(data)
        example = self._decode_and_prepare(data, number_in_shard)
        with tf.control_dependencies(list(example.values())):
            done = self._ledger.remove(tf.reshape(number_in_shard, [1]))
        with tf.control_dependencies([done]):
            return tf.identity(number_in_shard), {
                name: tf.identity(x) for name, x in example.items()
            }

    def _decode_and_prepare(
        self, data: tf.Tensor, number_in_shard: tf.Tensor
    ) -> Mapping[str, tf.Tensor]:
        """Decodes a record, and preprocesses the example unless bad records are skipped."""
        position = positions_of(number_in_shard, self.spec)
        example = self.decode(data, position)
        return example if self._skips else preprocess_example(example, position, self.spec)

    def explain(self, error: Exception) -> DataError:
        """See `Pipeline.explain`."""
        match = _OFFSET.search(str(error))
        if isinstance(error, tf.errors.DataLossError) and match is not None:
            for path in self._files:
                if defect := tfrecord.find_defect_at(path, int(match[1])):
                    return defect
        return self._find_undecodable() or super().explain(error)

    def _find_undecodable(self) -> DataError | None:
        """Finds the record that could not be decoded, and returns an error that names it. A record
        is at fault if `examine` finds a defect in it, or if decoding only this record fails.
        """
        turns = self._being_decoded()
        for key in turns:
            if defect := self._defect_of_record(key):
                return defect
        example = tf.function(self._decode_and_prepare, autograph=False)
        for key, turn in turns.items():
            file, number = divmod(key, _MOST_RECORDS)
            path = self._files[file]
            try:
                with tf.device(self.spec.host):
                    record = tf.constant(tfrecord.read_record(path, number))
                    example(record, tf.constant(turn, tf.int64))
            except tf.errors.OpError as error:
                return DataError(f"{path}: record {number}: {informative_line(error)}")
        return None

    def skipped(self) -> SkippedRecords:
        """See `Pipeline.skipped`."""
        if not self._skips:
            return SkippedRecords()
        keys = [*self._being_decoded()]
        examined = map(self._defect_of_record, keys[:_EXAMINED])
        # The ledger contains all records that were read but not delivered. A record without a
        # defect is still being decoded, so it was not skipped.
        lines = [str(defect) for defect in examined if defect]
        count = len(lines) + len(keys[_EXAMINED:])
        return SkippedRecords(count=count, first=tuple(lines[:_NAMED]))

    def count_skipped_records(self, examples: int) -> int:
        """See `Pipeline.count_skipped_records`."""
        with tf.device(self.spec.host):
            turns, _ = self._ledger.export()
        # Records after the last delivered example may still be being decoded, so they do not count
        # as skipped.
        skipped = 0
        for turn in sorted(turns.numpy().tolist()):
            if turn - self.start >= examples + skipped:
                break
            skipped += 1
        return skipped

    def make_end_of_data_error(self) -> DataError:
        """See `Pipeline.make_end_of_data_error`."""
        reason = next(iter(self.skipped().first), "all were skipped")
        return DataError(f"no {self.spec.subset} record can be used; {reason}")

    def _being_decoded(self) -> dict[int, int]:
        """Returns the records that are being decoded or could not be decoded: maps the key of each
        record to its number in the stream.
        """
        with tf.device(self.spec.host):
            turns, keys = self._ledger.export()
        return dict(sorted(zip(keys.numpy().tolist(), turns.numpy().tolist(), strict=True)))

    def _defect_of_record(self, key: int) -> DataError | None:
        file, number = divmod(key, _MOST_RECORDS)
        path = self._files[file]
        try:
            self.examine(tfrecord.read_record(path, number))
        except RecordDefect as defect:
            return DataError(f"{path}: record {number}: {defect}")
        except DataError as defect:
            return defect
        return None


def pad_rows(values: Any, length: int) -> Any:
    """Appends rows of zeros to a tensor until it has `length` rows."""
    missing = length - tf.shape(values)[0]
    filled = tf.pad(values, [[0, missing], *([0, 0] for _ in values.shape[1:])])
    return tf.ensure_shape(filled, [length, *values.shape[1:]])


def assert_in_graph(condition: Any, *shown: Any) -> tf.Operation:
    """Creates an assertion that is a single operation in the graph. `tf.debugging.Assert` would be
    slower, because it creates a branch.
    """
    return tf.raw_ops.Assert(condition=condition, data=[tf.convert_to_tensor(x) for x in shown])
