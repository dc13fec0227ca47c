"""The input pipeline alone: as the step of a run without a network, and by stages.

Batches in buffers are no throughput: a pipeline is timed only after its buffers have been drained
by fetching without pause.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import tensorflow as tf

from cnnbench.data.copies import ReadEvents
from cnnbench.data.pipeline import PipelineStage
from cnnbench.data.prefetch import drop
from cnnbench.data.source import InputSource
from cnnbench.data.spec import InputSpec
from cnnbench.records.parts import InputStage
from cnnbench.run.step.train_step import StepResult

DEVICE_STAGE = "device"
"""Name of the whole pipeline, batches on their devices included."""

_STAGE_SECONDS = _WHOLE_SECONDS = 2.0
_DRAIN_SECONDS = 0.5


class InputStep:
    """A step that fetches a batch per tower and waits until it is on its device."""

    def __init__(self, inputs: InputSource) -> None:
        self._inputs = inputs
        self._on_gpu = any("GPU" in device for device in inputs.devices)
        self._loss = tf.zeros([])

    def __call__(self, learning_rate: float = 0.0) -> StepResult:
        """Fetches one batch per tower; there is nothing to learn."""
        del learning_rate
        self._inputs.next()
        if self._on_gpu:  # on CPUs copies are complete when they return
            tf.test.experimental.sync_devices()
        return StepResult(self._loss, {})

    def on_host(self, result: StepResult, events: ReadEvents) -> StepResult:
        """The result itself, which is on the host already."""
        return result


def time_whole(inputs: InputSource) -> InputStage:
    """Times the pipeline up to the devices, at least one step, with its buffers emptied first."""
    step = InputStep(inputs)
    spec = inputs.spec
    ahead = spec.datasets_prefetch_buffer_size + spec.multi_device_iterator_max_buffer_size
    # tf.data decodes several examples at a time, about as many as there are cores.
    in_hand = -(-2 * (os.cpu_count() or 1) // spec.global_batch)
    for _ in range(ahead + in_hand + 2):
        step()
    return _time(DEVICE_STAGE, step, spec.global_batch, None, _WHOLE_SECONDS)


def time_stage(stage: PipelineStage, spec: InputSpec, examples: int) -> InputStage:
    """Times a stage of an unused pipeline together with all earlier stages.

    It is timed for `examples` examples, but for at most two seconds.
    """
    chunk = max(1, spec.batch_per_device // stage.examples)
    # Elements are dropped inside tf.data: the stage's work does not include handing them to Python.
    dropped = stage.dataset.map(
        tf.autograph.experimental.do_not_convert(lambda *_: tf.zeros([], tf.int8))
    )
    with tf.device(spec.host):
        iterators = [iter(dropped.batch(chunk))]
    try:
        began = time.perf_counter()
        next(iterators[0])
        while time.perf_counter() - began < _DRAIN_SECONDS:
            next(iterators[0])
        fetched = chunk * stage.examples
        return _time(stage.name, lambda: next(iterators[0]), fetched, examples, _STAGE_SECONDS)
    finally:
        drop(iterators)


def _time(
    name: str,
    fetch: Callable[[], object],
    per_fetch: int,
    examples: int | None,
    seconds: float,
) -> InputStage:
    done = 0
    start = time.perf_counter()
    while True:
        fetch()
        done += per_fetch
        elapsed = time.perf_counter() - start
        if elapsed >= seconds or (examples is not None and done >= examples):
            return InputStage(name=name, examples=done, seconds=elapsed)
