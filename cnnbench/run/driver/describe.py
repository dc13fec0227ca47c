"""Describes a run: in the header of its output, in the benchmark log, and for machine checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cnnbench.base.text import count_text
from cnnbench.machine.checks import ConditionCheckFlags
from cnnbench.plan import RunPlan, card_numbers
from cnnbench.run.runtime.convolutions import resolve_data_format
from cnnbench.run.runtime.devices import Devices
from cnnbench.variable_mgr.modes import Processes, Reduction


def machine_check_flags(
    plan: RunPlan, devices: Devices, batch_size: int = 0
) -> ConditionCheckFlags:
    """Returns the properties of a run that `cnnbench.machine.checks` needs to check the machine."""
    return ConditionCheckFlags(
        on_gpu=devices.kind == "gpu",
        cards=card_numbers(plan.params),
        intra_threads=devices.intra_threads,
        intra_threads_given=bool(plan.params.num_intra_threads),
        batch_size=batch_size,
        gpu_indices_given=bool(plan.params.gpu_indices),
    )


def header_lines(
    plan: RunPlan,
    devices: Devices,
    tensorflow_version: str,
    device: str,
    config: Mapping[str, Any],
) -> list[str]:
    """The lines of the header that a run prints. `device` and `config` are the kind of device and
    the flags in the record.

    If the lines of tf_cnn_benchmarks do not show all flags that determine the speed, one more line
    contains all flags that differ from their defaults, as a JSON object.
    """
    lines = [
        f"TensorFlow:  {'.'.join(tensorflow_version.split('.')[:2])}",
        *network_lines(plan),
        f"Devices:     {_device_names(devices, device)}",
        "NUMA bind:   False",
        f"Data format: {resolve_data_format(plan.params.data_format, devices.kind)}",
        *update_lines(plan),
    ]
    all_reduce = _all_reduce_text(plan, devices)
    if all_reduce is not None:
        lines.append(f"AllReduce:   {all_reduce}")
    if plan.place.job.in_cluster:
        lines.append(f"Sync:        {not plan.place.asynchronous}")
    if plan.params.staged_vars:
        lines.append("Staged vars: True")
    flags = plan.header_flags(config)
    if flags:
        lines.append(f"Flags:       {json.dumps(flags, sort_keys=True)}")
    return [*lines, "=========="]


def network_lines(plan: RunPlan) -> list[str]:
    """Lines of the header about the network, the data, and the length of the run."""
    number = plan.params.gradient_accumulation_steps
    passes = f" and pass, {number} passes" if number > 1 else ""
    return [
        f"Model:       {plan.network.model.name}",
        f"Dataset:     {_dataset_text(plan)}",
        f"Mode:        {plan.work.value}",
        f"SingleSess:  {_is_single_session(plan)}",
        f"Batch size:  {plan.length.global_batch} global",
        f"             {plan.length.batch_per_device} per device{passes}",
        f"Num batches: {plan.length.batches}",
        f"Num epochs:  {plan.length.epochs:.2f}",
    ]


def update_lines(plan: RunPlan) -> list[str]:
    """Lines of the header about the optimizer and the placement of variables."""
    return [
        f"Optimizer:   {plan.numerics.optimizer_spec.name}",
        f"Variables:   {plan.place.mode.name}",
    ]


def benchmark_log_parameters(plan: RunPlan, devices: Devices) -> dict[str, Any]:
    """Returns the parameters of the benchmark log that are not values of flags of that name."""
    return {
        "model": plan.network.model.name,
        "dataset": _dataset_text(plan),
        "mode": plan.work.value,
        "single_sess": _is_single_session(plan),
        "devices": _device_names(devices, devices.kind),
        "batch_size": plan.length.global_batch,
        "batch_size_per_device": plan.length.batch_per_device,
        "num_batches": plan.length.batches,
        "num_epochs": plan.length.epochs,
        "rewrite_config": None,
        "session_config": f"intra_op_parallelism_threads: {devices.intra_threads}\n"
        f"inter_op_parallelism_threads: {devices.inter_threads}\n",
    }


def _dataset_text(plan: RunPlan) -> str:
    return plan.network.dataset.name + (" (synthetic)" if plan.params.data_dir is None else "")


def _is_single_session(plan: RunPlan) -> bool:
    # tf_cnn_benchmarks counted each parameter server as a session, so a run with parameter servers
    # has several.
    mode = plan.place.mode
    is_single = mode.processes is Processes.CONTROLLER and not mode.uses_ps
    return is_single and plan.place.job.in_cluster


def _all_reduce_text(plan: RunPlan, devices: Devices) -> str | None:
    """The value of "AllReduce:" in the header; None if the mode has no all-reduce.

    In modes for which tf_cnn_benchmarks prints --all_reduce_spec, and whose devices are all listed
    in the header, this is --all_reduce_spec. In other modes, it is the algorithm, the flag that
    selects it, and the number of devices.
    """
    mode = plan.place.mode
    if mode.reduction not in (Reduction.ALL_REDUCE, Reduction.CROSS_DEVICE):
        return None
    if mode.reduction is Reduction.ALL_REDUCE and mode.processes is not Processes.CLIENT_PER_WORKER:
        spec = plan.params.all_reduce_spec
        return "None" if spec is None else spec.source
    running = plan.exchange.running
    text = ":".join(plan.reduction_names(on_gpu=devices.kind == "gpu")) or "None"
    if mode.reduction is Reduction.CROSS_DEVICE and text != "None":
        text += f" (--cross_device_ops={plan.exchange.cross_device.ops})"
    elif running is not None and running.reads("communication_hint"):
        text += f" (--communication_hint={plan.params.communication_hint})"
    job = devices.job
    towers = count_text(job.num_towers, "device", "devices")
    return f"{text}, {towers} in {count_text(job.num_workers, 'process', 'processes')}"


def _device_names(devices: Devices, device: str) -> list[str]:
    """Names of the towers' devices, as tf_cnn_benchmarks prints them.

    If one process runs the steps of all workers, these are the devices of the whole job.
    """
    job = devices.job
    numbers: Sequence[int] = devices.numbers
    if len(numbers) != job.towers_per_worker:  # A controller has only one device, a CPU.
        numbers = range(job.towers_per_worker)
    own = [f"{device}:{number}" for number in numbers]
    if len(job.own_workers) < 2:
        return [f"/{label}" for label in own]
    tasks = [f"job:worker/replica:0/task{worker.index}" for worker in job.own_workers]
    return [f"{task}/{label}" for task in tasks for label in own]
