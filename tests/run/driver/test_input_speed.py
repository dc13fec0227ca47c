"""The speed of the input alone, with a scripted clock and batches that cost nothing."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from cnnbench.data.pipeline import PipelineStage
from cnnbench.records.input import InputStage
from cnnbench.run.driver import input_speed
from cnnbench.run.driver.input_speed import (
    combine_speeds,
    time_input,
    time_stages,
    time_up_to_stage,
    time_whole,
)


def stages(*figures):
    return [InputStage(name="batch", examples=n, seconds=s) for n, s in figures]


@pytest.mark.parametrize(
    ("figures", "in_step", "examples", "seconds"),
    [
        ([(400, 2.0)], True, 400, 2.0),
        ([(400, 2.0)], False, 400, 2.0),
        # The slowest reads 40 a second, and so do the two others in a step.
        ([(400, 2.0), (200, 5.0), (90, 1.0)], True, 600, 5.0),
        ([(400, 2.0), (200, 5.0), (90, 1.0)], False, 690, 690 / (200 + 40 + 90)),
    ],
)
def test_the_speed_of_a_job_follows_from_those_of_its_workers(figures, in_step, examples, seconds):
    found = combine_speeds(stages(*figures), in_step=in_step)
    assert (found.name, found.examples) == ("batch", examples)
    assert found.seconds == pytest.approx(seconds)


class Batches:
    """An input of which every batch takes half a second; it is a data set of itself, too.

    Attributes:
      asked: number of batches so far.
      chunk: number of elements that the data set delivers at a time.
    """

    devices = ("CPU:0",)

    def __init__(self, clock, **fields):
        self.clock, self.asked, self.chunk = clock, 0, None
        given = {"datasets_prefetch_buffer_size": 3, "multi_device_iterator_max_buffer_size": 2}
        given |= {"process_batch_size": 16, "batch_per_device": 8, "host": "CPU:0"}
        self.spec = SimpleNamespace(**{**given, **fields})

    def next(self):
        self.asked += 1
        self.clock[0] += 0.5

    def sources_to_time(self):
        return [self]

    def stages(self):
        return [PipelineStage(name, self, 2) for name in ("read", "batch")]

    def map(self, function):
        return self

    def batch(self, chunk):
        self.chunk = chunk
        return self

    def __iter__(self):
        return self

    def __next__(self):
        self.next()


@pytest.fixture
def clock(monkeypatch):
    """The seconds of `time.perf_counter`, in a list."""
    now = [100.0]
    monkeypatch.setattr(input_speed.time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(("cores", "decoding"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 3)])
def test_buffers_are_emptied_before_the_whole_is_timed(clock, cpus, cores, decoding):
    """Those of three and of two steps, and what the cores decode; four batches take two seconds."""
    cpus(range(cores))
    inputs = Batches(clock)
    found = time_whole(inputs)
    assert inputs.asked == 3 + 2 + decoding + 2 + 4
    assert found == InputStage(name="device", examples=4 * 16, seconds=2.0)
    for in_step in (True, False):
        assert time_input(Batches(clock), in_step=in_step) == found


@pytest.mark.parametrize(
    ("per_device", "examples", "most", "chunk", "asked", "expected"),
    [
        # One batch drains what was read ahead in half a second.
        (8, 2, 10**6, 4, 1 + 4, (32, 2.0)),
        (8, 2, 16, 4, 1 + 2, (16, 1.0)),
        (8, 2, 17, 4, 1 + 3, (24, 1.5)),
        (8, 8, 1, 1, 1 + 1, (8, 0.5)),
        (2, 8, 1, 1, 1 + 1, (8, 0.5)),
    ],
)
def test_a_stage_is_timed_for_two_seconds_or_so_many_examples(
    clock, per_device, examples, most, chunk, asked, expected
):
    batches = Batches(clock, batch_per_device=per_device)
    found = time_up_to_stage(PipelineStage("read", batches, examples), batches.spec, most)
    assert (batches.chunk, batches.asked) == (chunk, asked)
    assert (found.name, found.examples, found.seconds) == ("read", *expected)


def test_a_drain_lasts_half_a_second(clock, limits):
    limits(input_speed, _STAGE_SECONDS=0.25)
    batches = Batches(clock)
    step = batches.next

    def quick():
        step()
        clock[0] -= 0.375  # what remains is an eighth of a second

    batches.next = quick
    found = time_up_to_stage(PipelineStage("read", batches, 2), batches.spec, 10**6)
    assert batches.asked == 4 + 2
    assert (found.examples, found.seconds) == (2 * 8, 0.25)


def test_workers_share_the_examples_of_a_stage(clock, limits):
    """Three workers read 4 of 10 each; they are timed one after another here."""
    limits(input_speed, _run_together=lambda timings: [timing() for timing in timings])
    workers = [Batches(clock, batch_per_device=2) for _ in range(3)]
    inputs = SimpleNamespace(sources_to_time=lambda: workers)
    found = time_stages(inputs, 10)
    assert [dataclasses.astuple(one) for one in found] == [
        ("read", 3 * 4, 1.0),
        ("batch", 3 * 4, 1.0),
    ]
    assert [worker.asked for worker in workers] == [2 * (1 + 2)] * 3
