"""Plans the measurements of `cnnbench allreduce` from its flags, without TensorFlow."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cnnbench.base import plugins
from cnnbench.base.job import Job
from cnnbench.base.rules import FlagRule, always, no_effect
from cnnbench.base.text import unknown_name_reason
from cnnbench.base.values import parse_bytes
from cnnbench.errors import FlagError
from cnnbench.flags import (
    ACCEPTED,
    SPECS,
    FlagSpec,
    Params,
    RunPart,
    specs_of,
    split_comma_separated,
)
from cnnbench.flags.groups.all_reduce import (
    ALL_REDUCE_FLAGS,
    AllReduceParams,
    packing_combinations,
    parse_all_reduce_specs,
)
from cnnbench.flags.groups.cluster import ClusterParams
from cnnbench.flags.groups.runtime import UNUSED_ON_CPUS, RuntimeParams
from cnnbench.flags.groups.variable_update import no_effect_unread, unused_all_reduce_rules
from cnnbench.lab.all_reduce.peers import NAMES
from cnnbench.plan import OF_A_PROCESS, JobFlagNames, RunPlan, check_flags, model_gradients
from cnnbench.variable_mgr.all_reduce import AllReduceSpec, single
from cnnbench.variable_mgr.all_reduce.check import check_all_reduce
from cnnbench.variable_mgr.all_reduce.context import group_devices
from cnnbench.variable_mgr.all_reduce.sizes import DTYPE_BYTES
from cnnbench.variable_mgr.modes import Processes, mode_without_ps
from cnnbench.variable_mgr.packing import Packing

WITHOUT_EFFECT: tuple[FlagSpec, ...] = tuple(
    spec
    for name, spec in ACCEPTED.items()
    if name not in vars(AllReduceParams()) and not spec.part & RunPart.DISCOVERY
)
"""Flags of `cnnbench run` that are accepted, as in all_reduce_benchmark.py, but have no effect.

Flags that describe a job of several processes are not included.
"""


def translate_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translates two flags of all_reduce_benchmark.py to flags of `cnnbench allreduce`.

    --hierarchical_copy selects the algorithm of this name. --use_fp16 sends float32 tensors in
    float16, unless --compact_gradient_transfer is false. If the flag that it sets is also given,
    the translated flag has no effect.

    Args:
      values: values by flag name, as `parse_flags` returns them.
    """
    flags = dict(values)
    if flags.get("hierarchical_copy") and "all_reduce_spec" not in flags:
        del flags["hierarchical_copy"]
        flags["all_reduce_spec"] = "hierarchical_copy"
    if flags.get("use_fp16") and not {"wire_dtype", "dtype"} & flags.keys():
        del flags["use_fp16"]
        compact = flags.pop("compact_gradient_transfer", True)
        flags["wire_dtype"] = "float16" if compact else "same"
    return flags


# The tensors that are reduced.

_DEFAULT_SIZES = "1K:64M:x4"
_MOST_SIZES = 1000


class Workload(NamedTuple):
    """The tensors that each device reduces. `name` is their size ("65536"), size and number
    ("4096*1000"), or the model whose gradients they are.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def elements(self) -> int:
        """Number of elements in all tensors of one device."""
        return sum(math.prod(shape) for shape in self.shapes)


def parse_sizes(text: str, dtype: str) -> tuple[Workload, ...]:
    """Parses the value of --sizes to workloads, in order, without duplicates.

    The grammar:

        sizes = item ("," item)*
        item  = (size | range) ["*" count]
        range = size ":" size ":" ("x" factor | "+" size)
        size  = integer ["K" | "M" | "G" | "T"]             powers of 1024, in bytes

    `1K:256M:x4` is 1K, 4K, 16K ... up to 256M, `64K:256K:+64K` is four sizes, and `4K*1000` is a
    thousand tensors of 4 KiB each.
    """
    workloads: dict[Workload, None] = {}
    item_bytes = DTYPE_BYTES[dtype]
    try:
        for item in map(str.strip, text.split(",")):
            head, star, tail = item.partition("*")
            if star and (not re.fullmatch("[0-9]{1,6}", tail.strip()) or int(tail) < 1):
                reason = "* must be followed by a number of tensors, 1 to 999999"
                raise ValueError(f"{item!r}: {reason}")
            count = int(tail) if star else 1
            for size in _expand_range(head):
                if size % item_bytes:
                    reason = f"are not a multiple of the {item_bytes} bytes of a {dtype}"
                    raise ValueError(f"{item!r}: {size} bytes {reason}")
                name = str(size) if count == 1 else f"{size}*{count}"
                workloads[Workload(name, ((size // item_bytes,),) * count)] = None
            if len(workloads) > _MOST_SIZES:
                raise ValueError(f"has more than {_MOST_SIZES} sizes")
    except ValueError as error:
        raise FlagError("sizes", text, str(error)) from error
    return tuple(workloads)


def _expand_range(item: str) -> Iterable[int]:
    pieces = item.split(":")
    first = _parse_size(pieces[0])
    if len(pieces) == 1:
        return [first]
    if len(pieces) != 3:
        raise ValueError(f"{item!r}: a range needs three parts, as in 1K:256M:x4")
    last, step = _parse_size(pieces[1]), pieces[2].strip()
    if last < first:
        raise ValueError(f"{item!r}: a range must not end below its beginning")
    if step[:1] == "+":
        by = _parse_size(step[1:])
        if (last - first) // by >= _MOST_SIZES:
            raise ValueError(f"{item!r} has more than {_MOST_SIZES} sizes")
        return range(first, last + 1, by)
    match = re.fullmatch(r"[xX]([0-9]{1,9})", step)
    factor = int(match[1]) if match else 0
    if factor < 2:
        raise ValueError(f"{item!r}: must end in a factor of 2 or more (x4) or a step (+64K)")
    sizes = (first * factor**power for power in itertools.count())
    return itertools.takewhile(lambda size: size <= last, sizes)


def _parse_size(piece: str) -> int:
    size = parse_bytes(piece.strip())
    if not size:
        raise ValueError(
            f"{piece.strip()!r}: must be bytes, 1 or more, as in 4096, 64K or 1M; --sizes takes "
            "sizes such as 4K, 4K*1000, 1K:256M:x4 or 64K:1M:+64K"
        )
    return size


# What is measured.


class ReductionCase(NamedTuple):
    """A reduction to measure: an all-reduce algorithm (spec) with a packing of the tensors, or a
    reduction of tf.distribute for comparison (peer).
    """

    spec: AllReduceSpec | None = None
    peer: str | None = None
    packing: Packing = Packing()

    def __str__(self) -> str:
        return self.peer or str(self.spec)


@dataclass(frozen=True, kw_only=True)
class AllReducePlan:
    """Plan of a run of `cnnbench allreduce`: everything that the run measures.

    Attributes:
      params: the flags, with resolved numbers of calls and of reductions per call.
      specs: the algorithms; None for all algorithms that work on the devices.
      run: setup for a run on the largest number of devices.
    """

    params: AllReduceParams
    workloads: tuple[Workload, ...]
    counts: tuple[int, ...]
    specs: tuple[AllReduceSpec, ...] | None
    packings: tuple[Packing, ...]
    peers: tuple[str, ...]
    run: RunPlan

    @property
    def job(self) -> Job:
        """The job that runs the benchmark, with its processes and devices."""
        return self.run.place.job

    def cases(self, specs: Sequence[AllReduceSpec]) -> tuple[ReductionCase, ...]:
        """All reductions to measure: every all-reduce algorithm in `specs` with every packing,
        followed by the reductions of tf.distribute.
        """
        pairs = itertools.product(specs, self.packings)
        ours = (ReductionCase(spec=spec, packing=packing) for spec, packing in pairs)
        return (*ours, *(ReductionCase(peer=peer) for peer in self.peers))


def make_plan(
    params: AllReduceParams, explicit: Sequence[str] = (), names: JobFlagNames = OF_A_PROCESS
) -> AllReducePlan:
    """Makes the plan of a run from its flags. Raises FlagError for flags that are invalid whatever
    the devices are.

    `explicit` contains the names of the given flags. For `names`, see `check_flags`.
    """
    plugins.load_plugins_of_flags(vars(params))
    counts = tuple(dict.fromkeys(params.num_gpus))
    if not counts:
        raise FlagError("num_gpus", "", "must name at least one number of devices")
    named = split_comma_separated(params.peers)
    for peer in named:
        if peer not in NAMES:
            reason = f"there is no {peer!r}; {unknown_name_reason(peer, NAMES)}"
            raise FlagError("peers", params.peers, reason)
    specs = parse_all_reduce_specs(params.all_reduce_spec)
    run = plan_training_run(params, max(counts), specs, names)
    job = run.place.job
    _check_counts(job, counts, specs)
    for spec, count in itertools.product(specs or (), counts):
        check_all_reduce(
            spec,
            replace(job, towers_per_worker=count),
            params.device,
            network_topology=params.network_topology,
            group_size=params.all_reduce_group_size,
            shared_cards=params.gpus_per_card > 1,
        )
    return AllReducePlan(
        params=_resolve_repetitions(params, explicit),
        workloads=_workloads(params),
        counts=counts,
        specs=specs,
        packings=packing_combinations(params),
        peers=named,
        run=run,
    )


def _workloads(params: AllReduceParams) -> tuple[Workload, ...]:
    if params.model is None:
        return parse_sizes(params.sizes or _DEFAULT_SIZES, params.dtype)
    named = () if params.sizes is None else parse_sizes(params.sizes, params.dtype)
    shapes = model_gradients(params.model, params.data_name)
    return (*named, Workload(params.model, shapes))


def _resolve_repetitions(params: AllReduceParams, explicit: Sequence[str]) -> AllReduceParams:
    rounds = params.num_batches
    if params.iterations is not None:
        if "num_batches" in explicit and rounds != params.iterations:
            raise FlagError("iterations", params.iterations, f"contradicts --num_batches={rounds}")
        rounds = params.iterations
    one_by_one = params.build_only and "iters_per_step" not in explicit
    chain = 1 if one_by_one else params.iters_per_step
    return replace(params, num_batches=rounds, iters_per_step=chain)


def plan_training_run(
    params: AllReduceParams,
    devices: int,
    specs: Sequence[AllReduceSpec] | None,
    names: JobFlagNames = OF_A_PROCESS,
) -> RunPlan:
    """Plans a training run on `devices` devices, with the flags in `params` for job, threads and
    kind of devices.
    """
    of_devices = {spec.name for spec in (*specs_of(RuntimeParams), *specs_of(ClusterParams))}
    flags = (spec.name for spec in ALL_REDUCE_FLAGS if spec.name in of_devices)
    shared = {name: getattr(params, name) for name in flags}
    if params.job_name:
        in_each = bool(specs) and all(spec.names_across_steps for spec in specs or ())
        how = Processes.CLIENT_PER_WORKER if in_each else Processes.CONTROLLER
        shared |= {
            "variable_update": mode_without_ps(how).name,
            "all_reduce_spec": specs[0] if in_each and specs else single("copy"),
        }
    return check_flags(Params(**{**shared, "num_gpus": devices}), {}, names)


def _check_counts(job: Job, counts: Sequence[int], specs: Sequence[AllReduceSpec] | None) -> None:
    if min(counts) * job.num_workers < 2:
        raise FlagError("num_gpus", counts, "must be at least 2: one device has nothing to reduce")
    for spec in specs or ():
        if job.in_cluster and not job.client_per_worker and spec.names_across_steps:
            reason = (
                f"in a job, every worker runs {spec.names_across_steps[0]} itself; measure the "
                "other algorithms in a separate command"
            )
            raise FlagError("all_reduce_spec", specs, reason)


def _used_algorithms(plan: AllReducePlan) -> frozenset[str] | None:
    """Names of the all-reduce algorithms that the plan uses with at least one number of devices.
    None means all algorithms.
    """
    if plan.specs is None:
        return None
    return frozenset(
        name
        for spec in plan.specs
        for count in plan.counts
        for name in spec.without_needless_levels(_device_groups(plan, count)).algorithm_names
    )


def _device_groups(plan: AllReducePlan, count: int) -> tuple[tuple[str, ...], ...]:
    devices = replace(plan.job, towers_per_worker=count).tower_devices
    return group_devices(devices, plan.params.all_reduce_group_size)


UNUSED: tuple[FlagRule[AllReducePlan], ...] = (
    no_effect(
        tuple(spec.name for spec in WITHOUT_EFFECT if spec.name in SPECS),
        always,
        "in cnnbench allreduce, which runs no network",
    ),
    no_effect("data_name", lambda plan: not plan.params.model, "without --model"),
    UNUSED_ON_CPUS,
    no_effect(
        "agg_small_grads_max_group",
        lambda plan: plan.params.agg_small_grads_max_bytes in ("", "0"),
        "without --agg_small_grads_max_bytes",
    ),
    no_effect(
        ("num_batches", "iterations", "num_warmup_batches", "verbose"),
        lambda plan: plan.params.build_only,
        "with --build_only: only building is timed",
    ),
    no_effect_unread("local_parameter_device", _used_algorithms),
    *unused_all_reduce_rules(
        _used_algorithms,
        lambda plan: any(spec.has_two_levels for spec in plan.specs or ()),
        lambda plan: [len(_device_groups(plan, count)) for count in plan.counts],
        lambda plan: plan.params.all_reduce_group_size == 1,
    ),
    no_effect(
        "allreduce_merge_scope",
        lambda plan: plan.params.allreduce_merge_scope > 1,
        "as profiles show them: --gradient_repacking joins tensors",
        says="changes only the names of operations",
    ),
    no_effect(
        "agg_small_grads_max_bytes",
        lambda plan: (
            plan.params.agg_small_grads_max_group == 1
            and any(p.agg_small_grads_max_bytes for p in plan.packings)
        ),
        "with --agg_small_grads_max_group=1: each is joined with no other",
    ),
)
"""Flags without effect, and the reasons."""
