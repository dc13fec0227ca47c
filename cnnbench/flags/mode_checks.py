"""Checks of --variable_update: processes, reduction, strategies of tf.distribute."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from cnnbench.base.jobs.job import is_address
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.cluster import coordinated
from cnnbench.flags.groups.strategies import CROSS_DEVICE, DISTRIBUTION
from cnnbench.flags.params import SPECS, Params
from cnnbench.flags.reductions import all_reduce_of, check_all_reduce, reduces
from cnnbench.variable_mgr.aggregation.spec import MOST_PACKS
from cnnbench.variable_mgr.all_reduce.spec import single
from cnnbench.variable_mgr.modes import BUILT_IN, Mode, Processes, Reduction
from cnnbench.variable_mgr.strategies.spec import BETWEEN_WORKERS, refuse_devices, refuse_towers

Refusals: TypeAlias = "Iterator[tuple[str, str]]"
"""Names of flags whose values are refused, with reasons; the first one is reported."""


def _check_cluster(params: Params) -> Refusals:
    mode, job_name = params.update_mode, params.job_name
    if params.rendezvous is not None and not is_address(params.rendezvous):
        yield "rendezvous", "is no host:port"
    hosts = ("worker_hosts", "ps_hosts", "controller_host")
    given = [name for name in hosts if getattr(params, name)]
    if given and not job_name:
        yield "job_name", f"--{given[0]} needs it: is this process a worker, ps or controller?"
    if not job_name and params.task_index:
        yield "task_index", "needs --job_name and the addresses of that job"
    if not job_name:
        return
    if params.server_protocol != "grpc":
        yield "server_protocol", "must be grpc, the only protocol of TensorFlow's own servers"
    if mode.processes is Processes.ONE:
        others = _names_of(lambda other: other.processes is not Processes.ONE)
        yield "variable_update", f"works in one process only; with --job_name use one of {others}"
    if mode.uses_ps and not params.ps_hosts:
        yield "ps_hosts", f"--variable_update={mode.name} with --job_name needs tasks for variables"
    if not mode.uses_ps and params.ps_hosts:
        yield "ps_hosts", f"--variable_update={mode.name} has no use for them; leave them out"
    if mode.processes is Processes.CLIENT_PER_WORKER and params.controller_host:
        yield "controller_host", f"--variable_update={mode.name} has none: every worker runs a step"
    if mode.processes is Processes.CLIENT_PER_WORKER and params.input_only:
        yield "input_only", "measures one process; leave out --job_name"
    job = params.job  # which refuses tasks and addresses
    separate = job.client_per_worker and job.num_workers > 1
    if separate and params.bn_stats == "sync" and params.summary_verbosity > 1:
        # Worker 0 computes those gradients alone, and would wait for the moments of the others.
        yield "summary_verbosity", f"must be at most 1 with --bn_stats=sync in {mode.name}"
    spec = params.all_reduce_spec
    if spec is not None and "collective" in spec.names and not job.client_per_worker:
        fitting = _names_of(lambda other: other.all_reduce == "collective")
        yield (
            "all_reduce_spec",
            "collective does not work where one process drives the others; leave it to "
            f"--variable_update={fitting}",
        )


def _names_of(which: Callable[[Mode], bool]) -> str:
    return ", ".join(mode.name for mode in BUILT_IN if which(mode))


def _check_mode(params: Params) -> Refusals:
    mode = params.update_mode
    if mode.processes is Processes.COORDINATOR and not params.job_name:
        reason = "needs processes: cnnbench launch --ps=1 starts them, or give --job_name"
        yield "variable_update", f"{reason}, --worker_hosts, --ps_hosts and --controller_host"
    if mode.processes is Processes.COORDINATOR and not params.controller_host:
        yield "controller_host", f"--variable_update={mode.name} needs a process that coordinates"
    if mode.one_tower and params.num_gpus > 1:
        yield "num_gpus", f"--variable_update={mode.name} {mode.one_tower}"
    for settings, reason in mode.refuses.items():
        pairs = [setting.partition("=") for setting in settings.split(",")]
        for name, _, _ in pairs:
            _known(mode, name)
        if all(_holds(params, name, value) for name, _, value in pairs):
            yield pairs[-1][0], f"cannot go with --variable_update={mode.name}, {reason}"
    for name, value in mode.needs.items():
        _known(mode, name)
        if getattr(params, name) is None:
            yield "variable_update", f"needs --{name}, such as --{name}={value}"


def _known(mode: Mode, name: str) -> None:
    if name not in SPECS:
        raise UsageError(f"the row of mode {mode.name} names --{name}, which is no flag")


def _holds(params: Params, name: str, value: str) -> bool:
    found = getattr(params, name)
    return SPECS[name].text(found) == value if value else bool(found)


def _check_async(params: Params) -> Refusals:
    mode = params.update_mode
    if params.cross_replica_sync or not params.job_name or coordinated(params):
        return
    if not mode.asynchronous:
        others = _names_of(lambda other: other.asynchronous)
        reason = f"--variable_update={mode.name} waits for all workers; only {others} does not"
        yield "cross_replica_sync", f"{reason}, so leave it true"
    if params.staged_vars:
        yield "staged_vars", "cannot go with --nocross_replica_sync, where every worker is stale"
    if params.precision == "fp16" and params.fp16_enable_auto_loss_scale:
        reason = "needs the gradients of all workers, so leave out --nocross_replica_sync"
        yield "fp16_enable_auto_loss_scale", reason


def _check_variable_update(params: Params) -> Refusals:
    mode, spec = params.update_mode, params.all_reduce_spec
    if params.gradient_repacking and params.gradient_bucket_bytes:
        yield "gradient_bucket_bytes", "cannot go with --gradient_repacking; give one of the two"
    if reduces(params) and params.gradient_repacking > MOST_PACKS:
        yield "gradient_repacking", f"must be at most {MOST_PACKS} packs"
    if params.staged_vars and not mode.staged:
        fitting = _names_of(lambda other: other.staged)
        yield "staged_vars", f"needs --variable_update={fitting}, not {mode.name}"
    if params.bn_stats == "sync" and params.xla_compile:
        yield (
            "bn_stats",
            "cannot go with --xla_compile: a tower compiled by itself cannot wait for the others",
        )
    one_algorithm = mode.reduction is Reduction.ALL_REDUCE and not mode.by_size
    if spec is not None and one_algorithm and len(spec.ranges) > 1:
        fitting = _names_of(lambda other: other.by_size and "all_reduce_spec" in other.needs)
        yield (
            "all_reduce_spec",
            f"has algorithms by size, which --variable_update={fitting} takes; "
            f"{mode.name} takes one algorithm",
        )
    if not reduces(params):
        return
    running = all_reduce_of(params)
    try:
        check_all_reduce(
            running,
            params.job,
            params.device,
            network_topology=params.network_topology,
            group_size=params.all_reduce_group_size,
            communication_hint=params.communication_hint,
        )
    except FlagError as error:
        if spec:
            raise
        # No spec was given that the error could point into.
        collective = running == single("collective")
        name = "communication_hint" if collective else "network_topology"
        yield name, error.reason.partition(": ")[2]


def _check_strategies(params: Params) -> Refusals:
    mode = params.update_mode
    mirroring = _names_of(lambda other: other.mirrors)
    names = (*CROSS_DEVICE, *DISTRIBUTION)
    given = {name for name in names if getattr(params, name) != SPECS[name].default}
    for name in CROSS_DEVICE:
        if name in given and mode.reduction is not Reduction.CROSS_DEVICE:
            yield name, f"needs --variable_update={mirroring}, not {mode.name}"
    if mode.multi_worker_strategy:
        yield from _check_multi_worker(params)
    refuse_devices(params.cross_device_ops, params.num_gpus, on_gpu=params.device != "cpu")
    if params.input_distribution == "strategy":
        if not mode.strategy:
            yield "input_distribution", f"needs a strategy, not --variable_update={mode.name}"
        if params.input_only:
            yield "input_distribution", "cannot go with --input_only, which makes no strategy"
    for name in DISTRIBUTION:
        if name in given and params.input_distribution != "strategy":
            yield name, "needs --input_distribution=strategy"
    if params.auto_shard_policy == "hint":
        yield "auto_shard_policy", "needs a hint in the pipeline, which has none; use data"
    if params.auto_shard_policy != "auto" and params.input_sharding == "manual":
        yield "auto_shard_policy", "cannot go with --input_sharding=manual"
    if params.input_replication == "per_replica":
        if params.input_sharding == "auto":
            yield "input_replication", "needs --input_sharding=manual"
        if not mode.mirrors:
            yield "input_replication", f"needs --variable_update={mirroring}, not {mode.name}"
        if params.prefetch_on_device:
            yield "prefetch_on_device", "cannot go with --input_replication=per_replica"


def _check_multi_worker(params: Params) -> Refusals:
    mode = params.variable_update
    if params.device == "cpu":
        refuse_towers(params.job)
    if params.cross_device_ops not in BETWEEN_WORKERS:
        others = ", ".join(BETWEEN_WORKERS)
        yield (
            "cross_device_ops",
            f"works in one process; --variable_update={mode} has {others}",
        )
    if params.num_packs != SPECS["num_packs"].default:
        yield "num_packs", f"does not work with --variable_update={mode}; use --bytes_per_pack"
    indices = [int(index) for index in re.findall("[0-9]+", params.gpu_indices)]
    if indices != sorted(indices):
        yield "gpu_indices", f"must ascend: --variable_update={mode} takes GPUs in their order"


OF_PROCESSES: tuple[Callable[[Params], Refusals], ...] = (
    _check_cluster,
    _check_mode,
    _check_async,
)
OF_REDUCTION: tuple[Callable[[Params], Refusals], ...] = (_check_variable_update, _check_strategies)
