"""Creates the inputs of a run, with one pipeline for each worker whose step this process runs."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cnnbench.data import make_input
from cnnbench.data.copies import ReadCallbacks
from cnnbench.data.dataset import InputSource
from cnnbench.data.joined_input import CoordinatedInput, JoinedWorkerInput
from cnnbench.data.prefetch import PipelineInput
from cnnbench.data.strategy_input import InputDistribution
from cnnbench.plan import RunPlan
from cnnbench.run.runtime.devices import Devices
from cnnbench.run.step.train_step import StepResult
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.strategies import StrategyVariableMgr


def make_inputs(
    plan: RunPlan, devices: Devices, manager: VariableMgr | None = None
) -> dict[str, InputSource]:
    """Creates the input of each subset that the run reads, by "train" and "validation".

    Each pipeline reads one shard of the data, on the CPU of its worker.

    Args:
      manager: variable manager whose tf.distribute strategy may distribute the training batches;
        None without a network.
    """
    return {subset: _make_input(plan, devices, subset, manager) for subset in plan.work.subsets}


def _make_input(
    plan: RunPlan, devices: Devices, subset: str, manager: VariableMgr | None
) -> InputSource:
    """Creates the input of one subset, which joins the pipelines of its workers."""
    job, training = devices.job, subset == "train"
    workers, shards = job.own_workers, job.num_workers
    if plan.place.asynchronous and not training:
        # Only one worker evaluates, because the other workers may be lost by then.
        workers, shards = workers[:1], 1
    distribution: InputDistribution | None = None
    if training and plan.distributes_by_strategy:
        assert isinstance(manager, StrategyVariableMgr)
        distribution = InputDistribution(manager.strategy, plan.params)
        if not distribution.by_pipeline:
            shards = 1  # One pipeline reads all data, and TensorFlow distributes its batches.
    coordinated = training and plan.place.coordinated
    read_apart = coordinated or (training and plan.place.asynchronous)
    spec = plan.input.training if training else plan.input.validation
    sources = []
    for worker in workers:
        host = worker.device("cpu")
        own = dataclasses.replace(
            spec,
            num_shards=shards,
            shard_index=worker.index if shards > 1 else 0,
            host=host,
            datasets_num_private_threads=devices.input_threads,
        )
        # With a coordinator, batches stay on the worker's CPU, and the step itself copies them to
        # its devices.
        queued = coordinated and plan.params.data_dir is not None
        source = make_input(own, [host] if queued else job.devices_of(worker), distribution)
        if read_apart and isinstance(source, PipelineInput):
            source.refuse_python_code(plan.place.mode.name, coordinated=coordinated)
        sources.append(source)
    if coordinated:
        return CoordinatedInput(sources)
    return sources[0] if len(sources) == 1 else JoinedWorkerInput(sources)


class InputOnlyStep:
    """A step that fetches a batch for each tower, and waits until the batches are on devices."""

    def __init__(self, inputs: InputSource) -> None:
        self._inputs = inputs
        self._on_gpu = any("GPU" in device for device in inputs.devices)
        self._loss = tf.zeros([])

    def __call__(self, *learning_rates: float) -> StepResult:
        """Fetches one batch per tower, without training."""
        self._inputs.next()
        # On CPUs, the copies of the batch are complete when `next` returns; on GPUs, this call
        # waits for them.
        if self._on_gpu:
            tf.test.experimental.sync_devices()
        return StepResult(self._loss, {})

    def copy_result_to_host(self, result: StepResult, events: ReadCallbacks) -> StepResult:
        """Returns `result` itself, because it is already on the host."""
        return result
