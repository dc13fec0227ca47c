"""The plan of a run of `cnnbench allreduce`, and flags without effect; without TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cnnbench.base.jobs.job import Job
from cnnbench.errors import FlagError
from cnnbench.flags import Params, validate
from cnnbench.flags.checks import check_labels
from cnnbench.flags.declare import specs_of, words
from cnnbench.flags.groups.allreduce import (
    AllReduceParams,
    PlaceParams,
    TasksParams,
    model_gradients,
    parse_packings,
    parse_specs,
)
from cnnbench.flags.ineffective import INDIFFERENT_TO_MEMORY, Unused, notices
from cnnbench.flags.reductions import check_all_reduce
from cnnbench.lab.allreduce import peers
from cnnbench.lab.allreduce.cases import ReductionCase, Workload, parse_sizes
from cnnbench.run.runtime.tensorflow import Settings
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce import AllReduceSpec, single
from cnnbench.variable_mgr.all_reduce.context import groups_of

_DEFAULT_SIZES = "1K:64M:x4"


@dataclass(frozen=True, kw_only=True)
class Length:
    """Numbers of reductions in one call (`chain`) and of timed calls of every case (`rounds`).

    With `build_only` nothing is called after the first time.
    """

    chain: int
    warmup: int
    rounds: int
    seed: int
    build_only: bool = False


@dataclass(frozen=True, kw_only=True)
class AllReducePlan:
    """The work of one run; `specs` is None for all algorithms that work on the devices.

    `run` holds the flags of a run on the largest number of devices.
    """

    params: AllReduceParams
    workloads: tuple[Workload, ...]
    counts: tuple[int, ...]
    dtype: str
    specs: tuple[AllReduceSpec, ...] | None
    packings: tuple[Packing, ...]
    peers: tuple[str, ...]
    length: Length
    run: Params
    job: Job

    @property
    def settings(self) -> Settings:
        """The settings of TensorFlow."""
        return Settings.of(self.run)

    def cases(self, specs: Sequence[AllReduceSpec]) -> tuple[ReductionCase, ...]:
        """Every spec with every packing, then the peers."""
        return (
            *(
                ReductionCase(spec=spec, packing=packing)
                for spec in specs
                for packing in self.packings
            ),
            *(ReductionCase(peer=peer) for peer in self.peers),
        )


def make_plan(params: AllReduceParams, explicit: Sequence[str] = ()) -> AllReducePlan:
    """Resolves everything that can be refused without a device."""
    check_labels(params.result_label)
    counts = tuple(dict.fromkeys(params.num_gpus))
    if not counts:
        raise FlagError("num_gpus", "", "must name at least one number of devices")
    specs = parse_specs(params.all_reduce_spec)
    run = _run(params, max(counts), specs)
    job = run.job
    _check_places(job, counts, specs)
    for spec, count in itertools.product(specs or (), counts):
        check_all_reduce(
            spec,
            replace(job, towers_per_worker=count),
            params.device,
            network_topology=params.network_topology,
            group_size=params.all_reduce_group_size,
        )
    return AllReducePlan(
        params=params,
        workloads=_workloads(params),
        counts=counts,
        dtype=params.dtype,
        specs=specs,
        packings=parse_packings(params),
        peers=_peers(params.peers),
        length=_length(params, explicit),
        run=run,
        job=job,
    )


def _workloads(params: AllReduceParams) -> tuple[Workload, ...]:
    if params.model is None:
        for name in ("data_name", "model_plugin"):
            value = getattr(params, name)
            if value is not None:
                raise FlagError(name, value, "needs --model, whose gradients are reduced")
        return parse_sizes(params.sizes or _DEFAULT_SIZES, params.dtype)
    named = () if params.sizes is None else parse_sizes(params.sizes, params.dtype)
    _, shapes = model_gradients(params.model, params.data_name, params.model_plugin)
    return (*named, Workload(params.model, shapes))


def _peers(text: str) -> tuple[str, ...]:
    found = words(text)
    for peer in found:
        if peer not in peers.NAMES:
            raise FlagError(
                "peers", text, f"there is no {peer!r}; must be of {', '.join(peers.NAMES)}"
            )
    return found


def _length(params: AllReduceParams, explicit: Sequence[str]) -> Length:
    rounds = params.num_batches
    if params.iterations is not None:
        if "num_batches" in explicit and rounds != params.iterations:
            raise FlagError("iterations", params.iterations, f"contradicts --num_batches={rounds}")
        rounds = params.iterations
    one_by_one = params.build_only and "iters_per_step" not in explicit
    return Length(
        chain=1 if one_by_one else params.iters_per_step,
        warmup=params.num_warmup_batches,
        rounds=rounds,
        seed=params.tf_random_seed,
        build_only=params.build_only,
    )


def _run(params: AllReduceParams, devices: int, specs: Sequence[AllReduceSpec] | None) -> Params:
    groups = (*specs_of(PlaceParams), *specs_of(TasksParams))
    shared = {spec.name: getattr(params, spec.name) for spec in groups}
    if params.job_name:
        in_each = bool(specs) and all("collective" in spec.names for spec in specs or ())
        mode = "collective_all_reduce" if in_each else "distributed_all_reduce"
        shared |= {
            "variable_update": mode,
            "all_reduce_spec": specs[0] if in_each and specs else single("copy"),
        }
    run = Params(**{**shared, "num_gpus": devices})
    validate(run)
    return run


def _check_places(job: Job, counts: Sequence[int], specs: Sequence[AllReduceSpec] | None) -> None:
    if min(counts) * job.num_workers < 2:
        named = ",".join(map(str, counts))
        raise FlagError("num_gpus", named, "must be at least 2: one device has nothing to reduce")
    for spec in specs or ():
        if job.in_cluster and not job.client_per_worker and "collective" in spec.names:
            reason = "in a job, every worker runs collective by itself; measure the others apart"
            raise FlagError("all_reduce_spec", ",".join(map(str, specs or ())), reason)


def unused_notices(plan: AllReducePlan, explicit_flags: Sequence[str]) -> tuple[str, ...]:
    """One line for every reason why given flags have no effect."""
    return notices(_UNUSED, plan, explicit_flags)


def _uses(plan: AllReducePlan, algorithm: str) -> bool:
    """Whether an algorithm is measured; all are where no spec was given."""
    return plan.specs is None or algorithm in _running(plan)


def _running(plan: AllReducePlan) -> frozenset[str]:
    """Algorithms in the specs that have an effect for some number of devices."""
    return frozenset(
        name
        for spec in plan.specs or ()
        for count in plan.counts
        for name in spec.running(_groups(plan, count)).names
    )


def _has_two_levels(plan: AllReducePlan) -> bool:
    return any(spec.has_two_levels for spec in plan.specs or ())


def _are_one_group(plan: AllReducePlan, count: int) -> bool:
    return len(_groups(plan, count)) == 1


def _groups(plan: AllReducePlan, count: int) -> tuple[tuple[str, ...], ...]:
    devices = replace(plan.job, towers_per_worker=count).tower_devices
    return groups_of(devices, plan.params.all_reduce_group_size)


_UNUSED: tuple[Unused[AllReducePlan], ...] = (
    Unused(
        ("num_batches", "iterations", "num_warmup_batches", "verbose"),
        lambda plan: plan.length.build_only,
        "with --build_only: nothing is timed but building",
    ),
    Unused(
        ("agg_small_grads_max_group",),
        lambda plan: not any(p.agg_small_grads_max_bytes for p in plan.packings),
        "without --agg_small_grads_max_bytes",
    ),
    Unused(
        ("network_topology",),
        lambda plan: not _uses(plan, "hierarchical_copy"),
        "without hierarchical_copy in --all_reduce_spec",
    ),
    Unused(
        ("local_parameter_device",),
        lambda plan: not _uses(plan, "copy"),
        "without copy in --all_reduce_spec",
    ),
    Unused(
        ("communication_hint",),
        lambda plan: not _uses(plan, "collective"),
        "without collective in --all_reduce_spec",
    ),
    Unused(
        ("all_reduce_group_size",),
        lambda plan: not _has_two_levels(plan),
        "without a two-level algorithm in --all_reduce_spec",
    ),
    Unused(
        ("all_reduce_group_size",),
        lambda plan: _are_one_group(plan, max(plan.counts)),
        "with so few devices: they are one group",
    ),
    Unused(
        ("all_reduce_spec",),
        lambda plan: (
            _has_two_levels(plan) and any(_are_one_group(plan, count) for count in plan.counts)
        ),
        "where all devices are one group: a group size of less than --num_gpus makes several",
        says="has no second level",
    ),
    Unused(
        ("all_reduce_spec",),
        lambda plan: _has_two_levels(plan) and plan.params.all_reduce_group_size == 1,
        "where every device is a group of its own",
        says="has no first level",
    ),
    Unused(
        ("all_reduce_share_memory",),
        lambda plan: plan.params.device == "gpu",
        "with --device=gpu: GPUs never share memory",
    ),
    Unused(
        ("all_reduce_share_memory",),
        lambda plan: plan.specs is not None and _running(plan) <= INDIFFERENT_TO_MEMORY,
        "with copy, collective or nccl: they do the same in either case",
    ),
    Unused(
        ("allreduce_merge_scope",),
        lambda plan: plan.params.allreduce_merge_scope > 1,
        "as profiles show them: --gradient_repacking joins tensors",
        says="changes only the names of operations",
    ),
    Unused(
        ("agg_small_grads_max_bytes",),
        lambda plan: (
            plan.params.agg_small_grads_max_group == 1
            and any(p.agg_small_grads_max_bytes for p in plan.packings)
        ),
        "with --agg_small_grads_max_group=1: each is joined with no other",
    ),
    Unused(
        ("gpu_indices", "gpu_thread_mode", "per_gpu_thread_count", "allow_growth"),
        lambda plan: plan.params.device == "cpu",
        "with --device=cpu",
    ),
)
