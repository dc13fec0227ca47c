"""Creates the variables of the network of a run."""

from __future__ import annotations

from cnnbench.plan.run_plan import RunPlan
from cnnbench.run.runtime import tensorflow as runtime
from cnnbench.variable_mgr import create
from cnnbench.variable_mgr.base import VariableMgr
from cnnbench.variable_mgr.modes import VariableMgrSpec


def create_variables(plan: RunPlan, devices: runtime.Devices) -> VariableMgr:
    """Creates the variable manager of the run's mode, and the variables of the network."""
    spec = VariableMgrSpec(
        mode=plan.place.mode,
        devices=devices.job.own_tower_devices,
        parameter_device="cpu" if plan.params.local_parameter_device == "cpu" else "towers",
        cpu_device=devices.job.cpu_device,
        ps_devices=devices.job.ps_devices,
        ps_strategy=plan.params.ps_strategy,
        variable_caching=plan.params.variable_caching,
        variable_dtype="float16" if plan.params.fp16_vars else "float32",
        reduction=plan.exchange.update.reduction,
        staged=plan.params.staged_vars and plan.work.trains,
        aggregation=plan.exchange.aggregation,
        cross_device=plan.exchange.cross_device,
        seed=plan.params.tf_random_seed,
        job=devices.job,
    )
    manager = create(spec, plan.network.spec.variables)
    manager.create_variables()
    return manager
