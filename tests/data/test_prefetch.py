"""Inputs of pipelines that count: read ahead, copied to devices, joined of several workers.

Tests cnnbench/data/joined_input.py, cnnbench/data/copies.py and cnnbench/data/pipeline.py.
"""

import contextlib
import dataclasses
import gc
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from data_sets import input_spec, write_random_cifar10
from forked import until

from cnnbench.data import CIFAR10, prefetch
from cnnbench.data.joined_input import JoinedWorkerInput
from cnnbench.data.pipeline import Pipeline, refuse_python_code
from cnnbench.data.prefetch import BatchReader, PipelineInput
from cnnbench.errors import DataError, UsageError


class Counting(Pipeline):
    """Image number i holds i everywhere; reading number ``fails_at`` goes wrong."""

    def __init__(self, spec, count=1000, fails_at=-1):
        super().__init__(spec, count)
        self.fails_at = fails_at
        self.built = 0

    def tower_batches(self):
        self.built += 1
        spec = self.spec

        def image(i):
            with tf.control_dependencies(
                [tf.debugging.assert_none_equal(i, tf.constant(self.fails_at, tf.int64))]
            ):
                return {"image": tf.fill([32, 32, 3], tf.cast(i, tf.float32)), "label": i}

        numbers = tf.data.Dataset.range(self.num_examples).shard(spec.num_shards, spec.shard_index)
        if spec.training:
            numbers = numbers.repeat()
        return numbers.map(image).batch(spec.batch_per_device, drop_remainder=spec.training)


def source(devices, fails_at=-1, make=Counting, **fields):
    fields = {"batch_per_device": 2, "num_devices": len(devices), **fields}
    spec = input_spec(CIFAR10, 32, data_dir="/numbers", **fields)
    return PipelineInput(spec, devices, make(spec, fails_at=fails_at))


def input_threads():
    return [t for t in threading.enumerate() if t.name.startswith(("cnnbench-input", "cnnbench-c"))]


@pytest.fixture
def accelerators(monkeypatch):
    """Lets CPU devices pass for others, to which copies take time; accelerators(False) ends it."""
    there = [True]
    monkeypatch.setattr(prefetch, "is_cpu", lambda device: not there[-1])
    return there.append


@pytest.mark.parametrize("prefetch", [True, False])
def test_towers_get_consecutive_batches_on_their_devices(cpu_devices, prefetch):
    devices = cpu_devices[1:4]
    with source(devices, datasets_use_prefetch=prefetch) as numbers:
        for step in range(3):
            batches = numbers.next()
            assert [b.features.device for b in batches] == list(devices)
            assert [b.labels.device for b in batches] == list(devices)
            labels = [int(x) for b in batches for x in b.labels]
            assert labels == list(range(6 * step, 6 * step + 6))
            assert float(batches[2].features[1, 3, 3, 0]) == labels[-1]
            assert batches[0].weights is None


def test_it_is_told_who_waits_and_for_how_long(cpu_devices):
    told, start = [], time.perf_counter()

    class Told(Counting):
        def tower_batches(self):
            told.append((numbers.seconds_waiting_by_shard(), time.perf_counter() - start))
            return super().tower_batches()

    numbers = source(cpu_devices[:1], num_shards=3, shard_index=2, make=Told)
    with numbers:
        assert numbers.seconds_waiting_by_shard() == {}
        numbers.next()
        assert numbers.seconds_waiting_by_shard() == {}
    ((waits, most),) = told
    assert list(waits) == [2]
    assert 0 < waits[2] < most


class Skipping(Counting):
    """Every second record is bad."""

    def count_skipped_records(self, examples):
        return examples // 2


@pytest.mark.parametrize(("skipped", "before"), [([5, 7], 7), ([5], 0), ([], 0)])
def test_a_resumed_input_goes_on_behind_what_was_read_and_skipped(cpu_devices, skipped, before):
    made = []

    def make(spec, **of):
        made.append(Skipping(spec, **of))
        return made[0]

    shard = {"num_shards": 2, "shard_index": 1, "passes": 3}
    numbers = source(cpu_devices[:2], make=make, **shard)  # 12 examples in a step
    assert numbers.skipped_records_by_shard(4) == [24]
    # In the global batches of two shards; a part of one counts as a whole one.
    assert not numbers.resume(3 * 24 - 5, 24, skipped)
    assert (made[0].start, made[0].delivered) == (36 + before, 36)
    assert numbers.skipped_records_by_shard(4) == [24 + before]
    made[0].resumable = True
    assert numbers.resume(0, 24)
    assert (made[0].start, made[0].delivered) == (before, 0)


def test_a_single_process_goes_on_in_the_middle_of_a_batch(cpu_devices):
    made = []

    def make(spec, **of):
        made.append(Skipping(spec, **of))
        return made[0]

    numbers = source(cpu_devices[:2], make=make)
    numbers.resume(41, numbers.spec.process_batch_size)
    assert made[0].delivered == 41


def test_steps_and_the_time_that_they_wait_are_counted(cpu_devices):
    with source(cpu_devices[:1]) as numbers:
        assert (numbers.batches, numbers.wait_seconds) == (0, 0.0)
        waited = 0.0
        for step in range(1, 4):
            begin = time.perf_counter()
            numbers.next()
            waited += time.perf_counter() - begin
            assert numbers.batches == step
            assert 0.0 < numbers.wait_seconds <= waited


@pytest.mark.parametrize(("prefetch", "threads"), [(True, False), (False, False), (True, True)])
def test_an_error_arrives_in_its_step_and_stays(cpu_devices, accelerators, prefetch, threads):
    accelerators(threads)
    with source(cpu_devices[:2], fails_at=9, datasets_use_prefetch=prefetch) as numbers:
        numbers.next()
        numbers.next()
        for _ in range(2):
            with pytest.raises(DataError, match=r"^/numbers: [^\n]*assertion failed[^\n]*$"):
                numbers.next()


def test_only_a_bounded_number_of_steps_is_ready(cpu_devices, monkeypatch):
    """Beside those that are ready, one waits for room."""
    made = threading.Semaphore(0)
    make = prefetch.BatchReader.next
    monkeypatch.setattr(
        prefetch.BatchReader, "next", lambda steps: (make(steps), made.release())[0]
    )
    with source(cpu_devices[:1], datasets_prefetch_buffer_size=2) as numbers:
        numbers.next()
        assert all(made.acquire(timeout=60) for _ in range(4))
        assert not made.acquire(timeout=0.1)


def test_the_thread_ends_with_the_input(cpu_devices):
    """Copies to CPUs take no other threads."""
    numbers = source(cpu_devices[:2])
    until(lambda: not input_threads())  # reading begins when somebody asks
    for _ in range(2):
        assert [int(x) for x in numbers.next()[0].labels] == [0, 1]
        assert [thread.name for thread in input_threads()] == ["cnnbench-input"]
        numbers.close()
        until(lambda: not input_threads())
        numbers.close()
    numbers.next()
    del numbers
    gc.collect()
    until(lambda: not input_threads())


@pytest.mark.parametrize("prefetch", [True, False])
def test_a_restarted_pass_begins_at_the_first_example(cpu_devices, prefetch):
    with source(cpu_devices[:2], datasets_use_prefetch=prefetch) as numbers:
        for _ in range(2):
            numbers.restart()
            labels = [int(x) for _ in range(3) for b in numbers.next() for x in b.labels]
            assert labels == list(range(12))
    until(lambda: not input_threads())


def test_neither_a_step_nor_closing_waits_for_the_end_of_an_iterator(cpu_devices, monkeypatch):
    """As the autotuner of tf.data lets its destructor wait."""
    free = threading.Event()

    class Slow:
        def __init__(self, iterator):
            self.get_next_as_optional = iterator.get_next_as_optional

        def __del__(self):
            free.wait(60)

    class Slowly(BatchReader):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            opened, self._opened = self._opened, lambda: Slow(opened())

    monkeypatch.setattr(prefetch, "BatchReader", Slowly)
    begin = time.monotonic()
    with source(cpu_devices[:1], subset="validation", make=partial(Counting, count=3)) as numbers:
        labels = [numbers.next()[0].labels.numpy().tolist() for _ in range(6)]
        assert labels == [[0, 1], [2, 0]] * 3
        numbers.restart()
        assert numbers.next()[0].labels.numpy().tolist() == [0, 1]
    assert time.monotonic() - begin < 30
    free.set()
    until(lambda: not input_threads())


def test_an_input_that_hangs_is_closed_within_two_seconds_together_with_others(cpu_devices):
    free = threading.Event()

    class Hanging(Counting):
        def tower_batches(self):
            hang = lambda: free.wait(60)  # noqa: E731 - py_function keeps it
            numbers = tf.data.Dataset.range(9).map(
                lambda i: tf.py_function(lambda i: (hang(), i)[1], [i], tf.int64)
            )
            return numbers.map(lambda i: {"image": tf.zeros([2, 32, 32, 3]), "label": [i, i]})

    inputs = [source(cpu_devices[:1], make=Hanging) for _ in range(3)]
    readers = [threading.Thread(target=one.next, daemon=True) for one in inputs]
    for reader in readers:
        reader.start()
    until(lambda: all(one._prefetcher for one in inputs))
    begin = time.monotonic()
    JoinedWorkerInput(inputs).close()
    assert 1.5 < time.monotonic() - begin < 5.5  # one after the other, it would be six
    free.set()
    until(lambda: not input_threads())


def slow_copies(monkeypatch, before):
    """Calls ``before`` with the number of the tower in the thread that is about to copy."""
    copy = prefetch.DeviceCopier._copy_batch

    def slowed(self, tower, batch):
        before(tower)
        return copy(self, tower, batch)

    monkeypatch.setattr(prefetch.DeviceCopier, "_copy_batch", slowed)


@pytest.mark.usefixtures("accelerators")
def test_copies_of_all_towers_and_of_two_steps_overlap(cpu_devices, monkeypatch):
    # No copy ends before sixteen have begun: those of eight towers in two steps.
    together = threading.Barrier(16)
    slow_copies(monkeypatch, lambda tower: together.wait(60))
    with source(cpu_devices) as numbers:
        for step in range(4):
            batches = numbers.next()
            assert [b.features.backing_device for b in batches] == list(cpu_devices)
            labels = [int(x) for b in batches for x in b.labels]
            assert labels == list(range(16 * step, 16 * step + 16))
        together.abort()
    until(lambda: not input_threads())


@pytest.mark.usefixtures("accelerators")
def test_copies_overlap_the_step_before(cpu_devices, monkeypatch):
    in_step, copied = threading.Event(), threading.Semaphore(0)
    count = itertools.count()

    def before(tower):
        if next(count) >= 2:  # of the second step on
            assert in_step.wait(60)
            copied.release()

    slow_copies(monkeypatch, before)
    with source(cpu_devices[:2]) as numbers:
        numbers.next()
        in_step.set()  # the first step runs now, and nobody asks for the next one
        assert copied.acquire(timeout=60)
        assert copied.acquire(timeout=60)


@pytest.mark.parametrize("prefetched", [True, False])
def test_copies_by_threads_deliver_what_others_do(cpu_devices, accelerators, prefetched):
    def delivered(threads):
        accelerators(threads)
        fields = {"subset": "validation", "datasets_use_prefetch": prefetched}
        with source(cpu_devices[:2], **fields) as numbers:
            found = [tf.nest.map_structure(lambda x: x.numpy().tolist(), numbers.next())]
            numbers.restart()
            found += [tf.nest.map_structure(lambda x: x.numpy().tolist(), numbers.next())]
            numbers.close()
            found += [tf.nest.map_structure(lambda x: x.numpy().tolist(), numbers.next())]
            assert numbers._pipeline.built == 1
        until(lambda: not input_threads())
        return found

    assert delivered(threads=True) == delivered(threads=False)


@pytest.mark.usefixtures("accelerators")
def test_an_error_of_a_copy_arrives_in_its_step(cpu_devices, monkeypatch):
    copies = itertools.count()

    def before(tower):
        if tower == 1 and next(copies) == 1:
            raise tf.errors.ResourceExhaustedError(None, None, "no memory left on the device")

    slow_copies(monkeypatch, before)
    with source(cpu_devices[:2]) as numbers:
        numbers.next()
        with pytest.raises(tf.errors.ResourceExhaustedError, match="no memory left"):
            numbers.next()
    until(lambda: not input_threads())


def test_every_tower_gets_the_batches_of_its_worker(cpu_devices):
    """Of seven numbers, read by two workers of two towers each."""
    workers = [
        source(
            cpu_devices[2 * own : 2 * own + 2],
            make=partial(Counting, count=7),
            num_shards=2,
            shard_index=own,
        )
        for own in range(2)
    ]
    with JoinedWorkerInput(workers) as both:

        @tf.function(autograph=False)
        def step(*batches):
            return [both.get_tower_batch(tower, batches).labels for tower in range(4)]

        labels = step.get_concrete_function(*both.step_argument_specs)(*both.next())
        # Of 0 to 6, the even numbers are worker 0's, and begin again.
        assert np.concatenate(labels).tolist() == [0, 2, 4, 6, 1, 3, 5, 1]
        assert [b.features.device for b in both.next()] == list(cpu_devices[:4])
        assert both.wait_seconds > 0


def flipped(example, seed):
    """Preprocesses an example with TensorFlow's operations."""
    return {**example, "image": example["image"][::-1]}


def called(example, seed):
    """Preprocesses an example with NumPy."""
    image = tf.numpy_function(np.flipud, [example["image"]], example["image"].dtype)
    return {**example, "image": tf.ensure_shape(image, [32, 32, 3])}


@pytest.mark.parametrize(
    ("preprocess", "coordinated", "refused"),
    [(None, True, False), (flipped, True, False), (called, True, True), (called, False, False)],
)
def test_python_code_of_a_models_preprocessing_is_found(tmp_path, preprocess, coordinated, refused):
    write_random_cifar10(tmp_path, train=8)
    spec = input_spec(CIFAR10, 32, data_dir=str(tmp_path), preprocess=preprocess)
    with contextlib.ExitStack() as stack:
        if refused:
            place = rf"{__file__}:\d+: called\(\): the pipeline of data set cifar10 calls Python"
            stack.enter_context(pytest.raises(UsageError, match=place))
        refuse_python_code(CIFAR10.open(spec), "own_mode", coordinated=coordinated)


class Generated(Counting):
    """Reads the numbers of images from a generator."""

    def tower_batches(self):
        def read(file):
            numbers = tf.TensorSpec([], tf.int64)
            return tf.data.Dataset.from_generator(lambda: iter(range(3)), output_signature=numbers)

        numbers = tf.data.Dataset.range(2).interleave(read).repeat()
        return numbers.map(lambda i: {"image": tf.zeros([1, 32, 32, 3]), "label": [i]})


@pytest.mark.parametrize("coordinated", [True, False])
@pytest.mark.parametrize("make", [Counting, Generated])
def test_a_generator_in_the_pipeline_of_a_plug_in_is_found(make, coordinated):
    spec = input_spec(dataclasses.replace(CIFAR10, open=make), 32, data_dir="/numbers")
    with contextlib.ExitStack() as stack:
        if make is Generated:
            words = r"Dataset\.from_generator.*--variable_update=own_mode"
            place = rf"{__file__}:\d+: .*the pipeline of data set cifar10 .*{words}"
            stack.enter_context(pytest.raises(UsageError, match=place))
        refuse_python_code(make(spec), "own_mode", coordinated=coordinated)


class BuiltSlowly(Counting):
    """Fails if two threads build at the same time."""

    building = threading.Lock()

    def tower_batches(self):
        assert self.building.acquire(blocking=False), "another thread builds its data set"
        try:
            time.sleep(0.05)
            return super().tower_batches()
        finally:
            self.building.release()


def test_threads_build_their_data_sets_one_after_another(cpu_devices):
    started = threading.Barrier(2)

    def read_first(own):
        started.wait()
        with own:
            return own.next()

    sources = [source(cpu_devices[:1], make=BuiltSlowly) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        assert len([*threads.map(read_first, sources)]) == 2
