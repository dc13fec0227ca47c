"""Creates the step of a run with its input: one for all towers, or one for each worker.

Asynchronous workers have a step each, and a coordinator runs one step on any idle worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cnnbench.data.dataset import InputSource
from cnnbench.data.prefetch import WORKER_HOST, CoordinatedInput, JoinedWorkerInput
from cnnbench.plan.run_plan import RunPlan
from cnnbench.run.driver.inputs import make_inputs, make_worker_input
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.step.train_step import CoordinatedStep, TrainStep
from cnnbench.run.step.update import Optimizer, UpdateCounter
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.strategies import ParameterServerStrategyVariableMgr

# Number of updates in flight per worker: one runs and one waits, so that no worker is idle.
_UPDATES_PER_WORKER = 2


class Steps(NamedTuple):
    """The step of a run, with its input.

    Attributes:
      workers: see `LoopWork`.
      evaluated: variable manager whose variables an evaluation reads.
    """

    step: TrainStep
    inputs: InputSource
    workers: Mapping[str, TrainStep]
    evaluated: VariableMgr


def make_steps(
    plan: RunPlan, devices: runtime.Devices, manager: VariableMgr, optimizer: Optimizer | None
) -> Steps:
    """Creates the step of a run. Without an optimizer, it only computes outputs."""
    if plan.place.coordinated:
        return _make_coordinated_step(plan, devices, manager, optimizer)
    if plan.place.asynchronous:
        return _make_async_steps(plan, devices, manager, optimizer)
    inputs = make_inputs(plan, devices, "train", manager)
    if plan.numerics.frozen:
        # Tracing turns variables into constants, so all copies get their initial values now.
        manager.after_initialization()
    first = devices.job.own_towers.start
    step = TrainStep(
        plan, manager, optimizer, inputs, host=devices.job.cpu_device, first_tower=first
    )
    return Steps(step, inputs, {}, manager)


def _make_coordinated_step(
    plan: RunPlan, devices: runtime.Devices, manager: VariableMgr, optimizer: Optimizer | None
) -> Steps:
    """Creates the step of a coordinator, which idle workers run."""
    job = plan.place.job
    assert isinstance(manager, ParameterServerStrategyVariableMgr)
    inputs = CoordinatedInput(
        [
            make_worker_input(
                *(plan, devices, "train", worker, job.num_workers),
                towers=None if plan.params.data_dir is None else [worker.device("cpu")],
            )
            for worker in job.workers
        ]
    )
    counter = UpdateCounter(job.ps_devices[0])
    step = CoordinatedStep(plan, manager, optimizer, inputs, host=WORKER_HOST, counter=counter)
    slots = dict.fromkeys((f"slot {n}" for n in range(_UPDATES_PER_WORKER * job.num_workers)), step)
    evaluated = manager.make_worker_manager(devices.job.devices_of(job.workers[0]))
    return Steps(step, inputs, slots, evaluated)


def _make_async_steps(
    plan: RunPlan, devices: runtime.Devices, manager: VariableMgr, optimizer: Optimizer | None
) -> Steps:
    """Creates a step and an input for each asynchronous worker.

    All steps use the variables of one variable manager.
    """
    job = plan.place.job
    # Asynchronous updates are refused in modes with another variable manager.
    assert isinstance(manager, ParameterServerVariableMgr)
    counter = UpdateCounter(job.ps_devices[0])
    steps, sources = {}, []
    for worker in job.workers:
        source = make_worker_input(plan, devices, "train", worker, job.num_workers)
        first = worker.index * job.towers_per_worker
        own = manager.make_worker_manager(devices.job.devices_of(worker))
        # Steps are traced one after another, because tracing is not thread-safe.
        steps[str(worker)] = TrainStep(
            *(plan, own, optimizer, source),
            host=devices.job.cpu_device,
            first_tower=first,
            counter=counter,
        )
        sources.append(source)
    evaluated = manager.make_worker_manager(devices.job.devices_of(job.workers[0]))
    return Steps(next(iter(steps.values())), JoinedWorkerInput(sources), steps, evaluated)
