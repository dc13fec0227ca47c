"""Creates the step of a run: one for all towers, or one for each worker.

Asynchronous workers have a step each, and a coordinator runs one step on any idle worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cnnbench.data.dataset import InputSource
from cnnbench.data.prefetch import WORKER_HOST, CoordinatedInput
from cnnbench.plan.run_plan import RunPlan
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.run.step.optimizer import Optimizer
from cnnbench.run.step.staleness import UpdateCounter
from cnnbench.run.step.train_step import CoordinatedStep, TrainStep
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.parameter_server import ParameterServerVariableMgr
from cnnbench.variable_mgr.strategies import ParameterServerStrategyVariableMgr

# Number of updates in flight per worker: one runs and one waits, so that no worker is idle.
_UPDATES_PER_WORKER = 2


class Steps(NamedTuple):
    """The step of a run.

    Attributes:
      workers: see `LoopWork`.
      evaluated: variable manager whose variables an evaluation reads.
    """

    step: TrainStep
    workers: Mapping[str, TrainStep]
    evaluated: VariableMgr


def make_steps(
    plan: RunPlan,
    devices: runtime.Devices,
    manager: VariableMgr,
    optimizer: Optimizer | None,
    inputs: InputSource,
) -> Steps:
    """Creates the step of a run. Without an optimizer, it only computes outputs."""
    if isinstance(inputs, CoordinatedInput):
        return _make_coordinated_step(plan, devices, manager, optimizer, inputs)
    if plan.place.asynchronous:
        return _make_async_steps(plan, devices, manager, optimizer, inputs)
    if plan.numerics.frozen:
        # Tracing turns variables into constants, so all copies get their initial values now.
        manager.after_initialization()
    first = devices.job.own_towers.start
    step = TrainStep(
        plan, manager, optimizer, inputs, host=devices.job.cpu_device, first_tower=first
    )
    return Steps(step, {}, manager)


def _make_coordinated_step(
    plan: RunPlan,
    devices: runtime.Devices,
    manager: VariableMgr,
    optimizer: Optimizer | None,
    inputs: CoordinatedInput,
) -> Steps:
    """Creates the step of a coordinator, which idle workers run."""
    job = devices.job
    assert isinstance(manager, ParameterServerStrategyVariableMgr)
    counter = UpdateCounter(job.ps_devices[0])
    step = CoordinatedStep(plan, manager, optimizer, inputs, host=WORKER_HOST, counter=counter)
    slots = dict.fromkeys((f"slot {n}" for n in range(_UPDATES_PER_WORKER * job.num_workers)), step)
    return Steps(step, slots, manager.make_worker_manager(job.devices_of(job.workers[0])))


def _make_async_steps(
    plan: RunPlan,
    devices: runtime.Devices,
    manager: VariableMgr,
    optimizer: Optimizer | None,
    inputs: InputSource,
) -> Steps:
    """Creates a step for each asynchronous worker.

    All steps use the variables of one variable manager.
    """
    job = devices.job
    # Asynchronous updates are refused in modes with another variable manager.
    assert isinstance(manager, ParameterServerVariableMgr)
    counter = UpdateCounter(job.ps_devices[0])
    steps = {}
    for worker, source in zip(job.workers, inputs.of_workers, strict=True):
        own = manager.make_worker_manager(job.devices_of(worker))
        # Steps are traced one after another, because tracing is not thread-safe.
        steps[str(worker)] = TrainStep(
            *(plan, own, optimizer, source),
            host=job.cpu_device,
            first_tower=worker.index * job.towers_per_worker,
            counter=counter,
        )
    evaluated = manager.make_worker_manager(job.devices_of(job.workers[0]))
    return Steps(next(iter(steps.values())), steps, evaluated)
