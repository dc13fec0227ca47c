"""Inputs of several workers as one, and the queue from which a coordinator's steps read."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from data_sets import input_spec
from forked import until

from cnnbench.data import CIFAR10, joined_input
from cnnbench.data.dataset import InputSource, TowerBatch
from cnnbench.data.joined_input import CoordinatedInput, JoinedWorkerInput
from cnnbench.errors import DataError
from cnnbench.records.input import SkippedRecords


class Source(InputSource):
    """The input of one worker; its batches are numbers, or an error after `good` of them."""

    def __init__(self, number, devices, good=None):
        self.number, self.good, self.events = number, good, []
        spec = input_spec(
            CIFAR10,
            32,
            num_devices=len(devices),
            num_shards=2,
            shard_index=number,
            batch_per_device=2,
            host=devices[0],
            data_dir="somewhere",
            datasets_use_prefetch=True,
            datasets_prefetch_buffer_size=1,
        )
        super().__init__(spec, devices, 100 + number)
        self.synthetic = False

    @property
    def step_argument_specs(self):
        return tuple((self.number, tower) for tower in range(len(self.devices)))

    def get_tower_batch(self, tower, batches):
        return self.number, tower, batches

    def next(self):
        self.batches += 1
        if self.good is not None and self.batches > self.good:
            raise DataError("a record is torn")
        images = tf.fill([2, 32, 32, 3], float(self.batches))
        return (TowerBatch(images, tf.constant([self.batches, 7], tf.int64)),) * len(self.devices)

    def seconds_waiting_by_shard(self):
        return {self.number: 0.5 + self.number}

    def skipped(self):
        return SkippedRecords(count=2 + self.number, first=(f"record {self.number}",))

    def skipped_records_by_shard(self, steps):
        return [10 * self.number + steps]

    def resume(self, examples, global_batch, skipped_by_shard=()):
        self.events.append((examples, global_batch, skipped_by_shard))
        return self.number == 0

    def restart(self):
        self.events.append("restart")

    def close(self, timeout_seconds=0.0):
        self.events.append("close")


@pytest.fixture
def sources(cpu_devices):
    return Source(0, cpu_devices[:2]), Source(1, cpu_devices[2:3])


def test_the_whole_has_the_devices_and_batches_of_all(sources, cpu_devices):
    sources[0].synthetic = True
    joined = JoinedWorkerInput(sources)
    assert joined.synthetic
    assert joined.of_workers == sources
    assert tuple(joined.devices) == tuple(cpu_devices[:3])
    whole = joined.spec
    assert (whole.num_devices, whole.num_shards, whole.shard_index) == (3, 1, 0)
    assert joined.examples_per_epoch == 100
    specs = joined.step_argument_specs
    assert specs == ((0, 0), (0, 1), (1, 0))
    assert [joined.get_tower_batch(tower, specs) for tower in range(3)] == [
        *((0, tower, specs[:2]) for tower in range(2)),
        (1, 0, specs[2:]),
    ]
    assert len(joined.next()) == 3
    assert joined.batches == 1
    assert 0.0 < joined.wait_seconds < 60.0


def test_the_whole_asks_and_tells_all(sources):
    joined = JoinedWorkerInput(sources)
    assert joined.seconds_waiting_by_shard() == {0: 0.5, 1: 1.5}
    assert joined.skipped() == SkippedRecords(count=5, first=("record 0", "record 1"))
    assert joined.skipped_records_by_shard(3) == [3, 13]
    assert joined.resume(16, 4, (1, 2)) is False
    joined.restart()
    joined.close()
    assert [source.events for source in sources] == [[(16, 4, (1, 2)), "restart", "close"]] * 2
    assert JoinedWorkerInput(sources[:1]).resume(16, 4) is True


@pytest.fixture
def coordinated(cpu_devices, monkeypatch, request):
    """coordinated(GOOD): the input of one worker and its source, with a queue of the test."""
    monkeypatch.setattr(joined_input, "_QUEUE", request.node.name)
    made = []

    def make(good=None):
        source = Source(0, cpu_devices[:1], good)
        made.append(CoordinatedInput([source]))
        return made[-1], source

    yield make
    for one in made:
        one.close()


def read(one):
    batch = one.get_tower_batch(0, ())
    return int(batch.labels[0]), float(np.mean(batch.features)), int(one.worker_number())


def test_a_step_takes_the_next_batch_of_its_worker(coordinated):
    one, source = coordinated()
    assert one.step_argument_specs == ()
    assert source.batches == 0
    assert one.next() == ()
    until(lambda: source.batches == 2)
    for number in range(1, 5):
        scheduled = time.perf_counter()
        assert read(one) == (number, float(number), 0)
        assert source.batches <= number + 1
        one.note_step_end(0, scheduled)
        one.next()
        until(lambda number=number: source.batches == number + 2)
    assert one.batches == 5
    assert one.error is None
    assert 0.0 <= one.wait_seconds < 60.0
    assert one.sources_to_time() == (source,)


def test_an_error_of_a_worker_ends_the_steps_that_wait(coordinated):
    one, source = coordinated(good=1)
    one.next()
    until(lambda: one.error is not None)
    assert str(one.error) == "a record is torn"
    assert read(one)[0] == 1
    with pytest.raises(tf.errors.OpError):
        read(one)
    assert source.batches == 2
