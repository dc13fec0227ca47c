"""Times input pipelines, without training.

Batches that are already in buffers would falsify the throughput of a pipeline, so the buffers are
emptied before the pipeline is timed.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import tensorflow as tf

from cnnbench.data.dataset import InputSource, InputSpec
from cnnbench.data.pipeline import PipelineStage
from cnnbench.data.prefetch import delete_in_background, use_separate_tf_executor
from cnnbench.records.input import InputStage
from cnnbench.run.driver.inputs import InputOnlyStep

DEVICE_STAGE = "device"
"""Name of the whole pipeline as a stage, including copies of the batches to their devices."""

_STAGE_SECONDS = _WHOLE_SECONDS = 2.0
_DRAIN_SECONDS = 0.5


def time_input(inputs: InputSource, *, in_step: bool) -> InputStage:
    """Times the whole input pipeline of a run, or of all workers whose steps this process runs.

    `inputs` must not be used afterwards, except to close it.

    Args:
      in_step: see `combine_speeds`.
    """
    if in_step:
        return time_whole(inputs)
    timings = [partial(time_whole, source) for source in inputs.sources_to_time()]
    return combine_speeds(_run_together(timings), in_step=False)


def time_stages(inputs: InputSource, max_examples: int) -> list[InputStage]:
    """Times the input pipeline of all workers up to each stage. `inputs` must be closed.

    Each stage is timed until `max_examples` are fetched, but for at most two seconds.
    """
    sources = inputs.sources_to_time()
    share = -(-max_examples // len(sources))
    timed = []
    for stages in zip(*(source.stages() for source in sources), strict=True):
        timings = [
            partial(time_up_to_stage, stage, source.spec, share)
            for stage, source in zip(stages, sources, strict=True)
        ]
        timed.append(combine_speeds(_run_together(timings), in_step=True))
    return timed


def combine_speeds(stages: Sequence[InputStage], *, in_step: bool) -> InputStage:
    """Computes the speed of the input of a job from the speeds of the workers' pipelines.

    Args:
      stages: the same stage of each worker's pipeline, measured at the same time.
      in_step: whether each step needs a batch from every worker. If so, the slowest worker limits
        the job. Otherwise the speeds of the workers add up.
    """
    first, *others = stages
    if not others:
        return first
    if in_step:
        slowest = min(stages, key=lambda stage: stage.examples_per_sec)
        return dataclasses.replace(slowest, examples=slowest.examples * len(stages))
    examples = sum(stage.examples for stage in stages)
    seconds = examples / sum(stage.examples_per_sec for stage in stages)
    return InputStage(name=first.name, examples=examples, seconds=seconds)


def _run_together(timings: Sequence[Callable[[], InputStage]]) -> list[InputStage]:
    if len(timings) == 1:
        return [timings[0]()]
    all_started = threading.Barrier(len(timings))

    def run(timing: Callable[[], InputStage]) -> InputStage:
        # A thread that gets its executor waits for pending operations and keeps Python's lock (the
        # GIL). An operation that calls Python code would then wait for the lock forever.
        use_separate_tf_executor()
        all_started.wait()
        return timing()

    with ThreadPoolExecutor(len(timings)) as threads:
        return [*threads.map(run, timings)]


def time_whole(inputs: InputSource) -> InputStage:
    """Times a whole input pipeline, including copies to devices, after emptying its buffers.

    Fetches at least one batch for each tower.
    """
    step = InputOnlyStep(inputs)
    spec = inputs.spec
    buffered = spec.datasets_prefetch_buffer_size + spec.multi_device_iterator_max_buffer_size
    # Batches that were decoded before the timing must not count. Besides the buffers, tf.data holds
    # the examples that it is decoding, about as many as the machine has cores.
    decoding = -(-2 * (os.cpu_count() or 1) // spec.process_batch_size)
    for _ in range(buffered + decoding + 2):
        step()
    return _time_fetches(DEVICE_STAGE, step, spec.process_batch_size, None, _WHOLE_SECONDS)


def time_up_to_stage(stage: PipelineStage, spec: InputSpec, max_examples: int) -> InputStage:
    """Times a pipeline up to and including one stage. The pipeline must not be in use.

    The stage is timed until `max_examples` are fetched, but for at most two seconds.
    """
    chunk = max(1, spec.batch_per_device // stage.examples)
    # tf.data drops the elements itself, so that the time excludes their conversion to Python
    # objects.
    with tf.device(spec.host):
        drop = tf.autograph.experimental.do_not_convert(lambda *_: tf.zeros([], tf.int8))
        dropped = stage.dataset.map(drop)
        iterators = [iter(dropped.batch(chunk))]
    try:
        start = time.perf_counter()
        next(iterators[0])
        while time.perf_counter() - start < _DRAIN_SECONDS:
            next(iterators[0])
        fetched = chunk * stage.examples
        return _time_fetches(
            stage.name, lambda: next(iterators[0]), fetched, max_examples, _STAGE_SECONDS
        )
    finally:
        delete_in_background(iterators)


def _time_fetches(
    name: str,
    fetch: Callable[[], object],
    per_fetch: int,
    max_examples: int | None,
    seconds: float,
) -> InputStage:
    """Calls `fetch` for `seconds`, or until `max_examples` are fetched. Returns the count."""
    done = 0
    start = time.perf_counter()
    while True:
        fetch()
        done += per_fetch
        elapsed = time.perf_counter() - start
        if elapsed >= seconds or (max_examples is not None and done >= max_examples):
            return InputStage(name=name, examples=done, seconds=elapsed)
