"""Creates the input of a run: one pipeline for each worker whose step this process runs."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from cnnbench.base.job import Task
from cnnbench.data import make_input
from cnnbench.data.dataset import InputSource
from cnnbench.data.pipeline import ReadCallbacks
from cnnbench.data.prefetch import InputDistribution, JoinedWorkerInput
from cnnbench.plan.run_plan import RunPlan
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.step.train_step import StepResult
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.strategies import StrategyVariableMgr


def make_inputs(
    plan: RunPlan, devices: runtime.Devices, subset: str, manager: VariableMgr | None = None
) -> InputSource:
    """Creates the input of a run, with one pipeline per worker.

    Args:
      subset: "train" or "validation".
      manager: variable manager whose tf.distribute strategy may distribute the batches; None if no
        strategy distributes them.
    """
    workers, shards = devices.job.own_workers, devices.job.num_workers
    if plan.place.asynchronous and subset != "train":
        # Only one worker evaluates, because other workers may be lost before the evaluation.
        workers, shards = workers[:1], 1
    distribution = None
    if manager is not None and plan.input.distribution is not None:
        assert isinstance(manager, StrategyVariableMgr)
        distribution = InputDistribution(manager.strategy, plan.input.distribution)
        if not distribution.by_pipeline:
            shards = 1  # One pipeline reads all data, and TensorFlow distributes its batches.
    sources = [
        make_worker_input(plan, devices, subset, worker, shards, distribution) for worker in workers
    ]
    return sources[0] if len(sources) == 1 else JoinedWorkerInput(sources)


def make_worker_input(
    plan: RunPlan,
    devices: runtime.Devices,
    subset: str,
    worker: Task,
    shards: int,
    distribution: InputDistribution | None = None,
    towers: Sequence[str] | None = None,
) -> InputSource:
    """Creates the input of one worker, which reads one of `shards` shards of the data on its CPU.

    `towers` are the devices of the batches, by default the devices of the worker's towers.
    """
    spec = plan.input.input_spec_of_worker(
        subset,
        num_shards=shards,
        shard_index=worker.index if shards > 1 else 0,
        host=worker.device("cpu"),
        datasets_num_private_threads=runtime.choose_input_threads(plan.params, devices.kind),
    )
    return make_input(spec, towers or devices.job.devices_of(worker), distribution)


class InputOnlyStep:
    """A step that fetches a batch for each tower, and waits until the batches are on devices."""

    def __init__(self, inputs: InputSource) -> None:
        self._inputs = inputs
        self._on_gpu = any("GPU" in device for device in inputs.devices)
        self._loss = tf.zeros([])

    def __call__(self, *learning_rates: float) -> StepResult:
        """Fetches one batch per tower, without training."""
        self._inputs.next()
        # On CPUs, copies of the batch are complete when `next` returns.
        if self._on_gpu:
            tf.test.experimental.sync_devices()
        return StepResult(self._loss, {})

    def copy_result_to_host(self, result: StepResult, events: ReadCallbacks) -> StepResult:
        """Returns `result` itself, because it is already on the host."""
        return result
