"""Flags that contradict the mode of --variable_update and the exchange of gradients, as tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.declare import named
from cnnbench.flags.params import FLAGS, SPECS
from cnnbench.flags.roles import RunPart
from cnnbench.plan.exchange import check_all_reduce
from cnnbench.plan.place import names_of
from cnnbench.plan.rules import Rule, always, excluded, needed, on, refused
from cnnbench.plan.setup import Setup
from cnnbench.variable_mgr.aggregation.spec import MOST_PACKS
from cnnbench.variable_mgr.all_reduce.spec import single
from cnnbench.variable_mgr.modes import Mode, Reduction
from cnnbench.variable_mgr.strategies.spec import BETWEEN_WORKERS, refuse_devices, refuse_towers


def of_mode(mode: Mode) -> tuple[Rule[Setup], ...]:
    """The rules of a mode, which may be a plug-in's."""
    settings = [setting for row in mode.refuses for setting in row.split(",")]
    for name in (*(setting.partition("=")[0] for setting in settings), *mode.needs):
        if name not in SPECS:
            raise UsageError(f"the row of mode {mode.name} names --{name}, which is no flag")
    this = f"variable_update={mode.name}"
    return (
        *(excluded(row, f", {reason}", this) for row, reason in mode.refuses.items()),
        *(
            needed(
                "variable_update",
                partial(_is_none, name),
                f"needs --{name}, such as --{name}={value}",
            )
            for name, value in mode.needs.items()
        ),
    )


def _is_none(flag: str, setup: Setup) -> bool:
    return getattr(setup.params, flag) is None


def _without_mode(which: Callable[[Mode], bool]) -> Callable[[Setup], str]:
    return lambda p: f"needs --variable_update={names_of(which)}, not {p.place.mode.name}"


def _workers_go_on(p: Setup) -> bool:
    """Whether workers do not wait for each other, of which each runs updates by itself."""
    return p.place.job.in_cluster and not (p.params.cross_replica_sync or p.place.coordinated)


def _check_all_reduce(p: Setup) -> None:
    check_all_reduce(
        p.exchange.all_reduce,
        p.place.job,
        p.params.device,
        network_topology=p.params.network_topology,
        group_size=p.params.all_reduce_group_size,
        communication_hint=p.params.communication_hint,
        shared_cards=p.exchange.cross_device.shared_cards,
    )


def _fault_of_default(p: Setup) -> str:
    """The reason why the mode's own all-reduce cannot work, without the place in a spec."""
    try:
        if p.exchange.reduces:
            _check_all_reduce(p)
    except FlagError as error:
        return error.reason.partition(": ")[2]
    return ""


def _descends(p: Setup) -> bool:
    numbers = [int(index) for index in re.findall("[0-9]+", p.params.gpu_indices)]
    return numbers != sorted(numbers)


JOB: tuple[Rule[Setup], ...] = (
    refused(
        "summary_verbosity",
        # Worker 0 computes those gradients alone, and would wait for the moments of the others.
        lambda p: (
            p.place.job.client_per_worker
            and p.place.job.num_workers > 1
            and p.params.bn_stats == "sync"
            and p.params.summary_verbosity > 1
        ),
        lambda p: f"must be at most 1 with --bn_stats=sync in {p.place.mode.name}",
    ),
    refused(
        "all_reduce_spec",
        lambda p: (
            p.place.job.in_cluster
            and not p.place.job.client_per_worker
            and "collective" in p.exchange.all_reduce.names
        ),
        "collective does not work where one process drives the others; leave it to "
        f"--variable_update={names_of(lambda mode: mode.all_reduce == 'collective')}",
    ),
    refused(
        "variable_update",
        lambda p: p.place.coordinated and not p.place.job.in_cluster,
        "needs processes: cnnbench launch --ps=1 starts them, or give --job_name, --worker_hosts, "
        "--ps_hosts and --controller_host",
    ),
    needed(
        "controller_host",
        lambda p: p.place.coordinated and not p.params.controller_host,
        lambda p: f"--variable_update={p.place.mode.name} needs a process that coordinates",
    ),
    refused(
        "num_gpus",
        lambda p: p.place.mode.one_tower,
        lambda p: f"--variable_update={p.place.mode.name} {p.place.mode.one_tower}",
    ),
)

ASYNCHRONOUS: tuple[Rule[Setup], ...] = (
    refused(
        "cross_replica_sync",
        lambda p: _workers_go_on(p) and not p.place.mode.asynchronous,
        lambda p: (
            f"--variable_update={p.place.mode.name} waits for all workers; only "
            f"{names_of(lambda mode: mode.asynchronous)} does not, so leave it true"
        ),
    ),
    refused(
        "fp16_enable_auto_loss_scale",
        lambda p: _workers_go_on(p) and p.params.precision == "fp16",
        "needs the gradients of all workers, so leave out --nocross_replica_sync",
    ),
)

EXCHANGE: tuple[Rule[Setup], ...] = (
    refused(
        "gradient_repacking",
        lambda p: p.exchange.reduces and p.params.gradient_repacking > MOST_PACKS,
        f"must be at most {MOST_PACKS} packs",
    ),
    refused(
        "staged_vars", lambda p: not p.place.mode.staged, _without_mode(lambda mode: mode.staged)
    ),
    refused(
        "all_reduce_spec",
        lambda p: (
            p.place.mode.reduction is Reduction.ALL_REDUCE
            and not p.place.mode.by_size
            and len(p.exchange.all_reduce.ranges) > 1
        ),
        lambda p: (
            "has algorithms by size, which --variable_update="
            f"{names_of(lambda mode: mode.by_size and 'all_reduce_spec' in mode.needs)} takes; "
            f"{p.place.mode.name} takes one algorithm"
        ),
    ),
    refused("all_reduce_spec", lambda p: p.exchange.reduces, _check_all_reduce),
    needed(
        "communication_hint",
        lambda p: p.exchange.all_reduce == single("collective"),
        _fault_of_default,
    ),
    needed("network_topology", always, _fault_of_default),
)

STRATEGIES: tuple[Rule[Setup], ...] = (
    refused(
        named(FLAGS, RunPart.CROSS_DEVICE),
        lambda p: p.place.mode.reduction is not Reduction.CROSS_DEVICE,
        _without_mode(lambda mode: mode.mirrors),
    ),
    refused(
        "num_gpus",
        lambda p: p.place.mode.multi_worker_strategy and p.params.device == "cpu",
        lambda p: refuse_towers(p.place.job),
    ),
    refused(
        "cross_device_ops",
        lambda p: (
            p.place.mode.multi_worker_strategy and p.params.cross_device_ops not in BETWEEN_WORKERS
        ),
        lambda p: (
            f"works in one process; --variable_update={p.place.mode.name} has "
            f"{', '.join(BETWEEN_WORKERS)}"
        ),
    ),
    refused(
        "num_packs",
        lambda p: p.place.mode.multi_worker_strategy,
        lambda p: f"does not work with --variable_update={p.place.mode.name}; use --bytes_per_pack",
    ),
    refused(
        "gpu_indices",
        lambda p: p.place.mode.multi_worker_strategy and _descends(p),
        lambda p: f"must ascend: --variable_update={p.place.mode.name} takes GPUs in their order",
    ),
    refused(
        "cross_device_ops",
        always,
        lambda p: refuse_devices(
            p.params.cross_device_ops,
            p.params.num_gpus,
            on_gpu=p.params.device != "cpu",
            shared_cards=p.exchange.cross_device.shared_cards,
        ),
    ),
    refused(
        "input_distribution",
        lambda p: not p.place.mode.strategy,
        lambda p: f"needs a strategy, not --variable_update={p.place.mode.name}",
    ),
    refused(
        named(FLAGS, RunPart.DISTRIBUTION),
        lambda p: p.params.input_distribution != "strategy",
        "needs --input_distribution=strategy",
    ),
    refused(
        "auto_shard_policy", on("input_sharding=manual"), "cannot go with --input_sharding=manual"
    ),
    refused(
        "input_replication",
        lambda p: not p.place.mode.mirrors,
        _without_mode(lambda mode: mode.mirrors),
    ),
)
