"""Placement of variables, and exchange of gradients, of a run."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.base.jobs.job import Job
from cnnbench.errors import FlagError
from cnnbench.flags.declare import named
from cnnbench.flags.groups.variable_update import BUCKET_BYTES
from cnnbench.flags.params import FLAGS, Params
from cnnbench.flags.roles import RunPart
from cnnbench.plan.numerics import Numerics
from cnnbench.plan.part import PlanPart
from cnnbench.plan.place import Place
from cnnbench.plan.update_plan import UpdatePlan, plan_update
from cnnbench.plan.work import Work
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.all_reduce.context import ReduceContext, adding_cpus, groups_of
from cnnbench.variable_mgr.all_reduce.limits import check_spec
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, single
from cnnbench.variable_mgr.modes import Mode, Reduction
from cnnbench.variable_mgr.strategies.spec import CrossDeviceSpec

_CLIPPING = named(FLAGS, RunPart.CLIPPING)


@dataclass(frozen=True, kw_only=True)
class Exchange(PlanPart):
    """Placement of variables and exchange of gradients; other fields are flags of their names.

    Attributes:
      reduces: whether gradients go through an all-reduce.
      exchanges: whether several towers exchange gradients.
      all_reduce: the requested all-reduce, or the default of the mode.
      running: the all-reduce without levels that have nothing to reduce; None where nothing is
        reduced.
      aggregation: how gradients are packed and reduced, in modes with a copy per tower.
    """

    mode: Mode
    reduces: bool
    exchanges: bool
    all_reduce: AllReduceSpec
    running: AllReduceSpec | None
    aggregation: AggregationSpec
    update: UpdatePlan
    cross_device: CrossDeviceSpec
    all_reduce_spec: AllReduceSpec | None
    communication_hint: str
    local_parameter_device: str
    ps_strategy: str
    variable_caching: str
    staged_vars: bool

    @classmethod
    def resolved(cls, flags: Params, work: Work, place: Place, numerics: Numerics) -> Exchange:
        """The exchange that the flags ask for; names of algorithms are not checked yet."""
        mode, job = place.mode, place.job
        exchanges = work.trains and job.num_towers > 1
        reduces = exchanges and mode.reduction is Reduction.ALL_REDUCE
        all_reduce = _all_reduce_of(flags, mode)
        groups = groups_of(job.tower_devices, flags.all_reduce_group_size) if reduces else ()
        aggregation = _aggregation(flags, mode, work, all_reduce, numerics)
        return cls.of(
            flags,
            mode=mode,
            reduces=reduces,
            exchanges=exchanges,
            all_reduce=all_reduce,
            running=all_reduce.running(groups) if reduces else None,
            aggregation=aggregation,
            update=plan_update(
                mode,
                aggregation,
                place.towers_per_step,
                reduction=flags.gradient_reduction,
                weight_decay=flags.weight_decay,
                clip={n: bound for n in _CLIPPING if (bound := getattr(flags, n)) is not None},
                optimizer=numerics.optimizer,
                asynchronous=place.asynchronous,
                staged=flags.staged_vars,
                narrow=flags.fp16_vars,
            ),
            cross_device=CrossDeviceSpec(
                ops=flags.cross_device_ops,
                shared_cards=flags.gpus_per_card > 1,
                bytes_per_pack=flags.bytes_per_pack,
                num_packs=flags.num_packs,
            ),
        )

    def by_strategy(self, *, on_gpu: bool) -> str | None:
        """The cross-device operation, or a manager's own reduction, where no all-reduce is used."""
        if not self.exchanges:
            return None
        if self.mode.reduction is Reduction.CROSS_DEVICE:
            return self.cross_device.running(on_gpu)
        return (self.mode.algorithm or None) if self.mode.reduction is Reduction.OWN else None


def _all_reduce_of(flags: Params, mode: Mode) -> AllReduceSpec:
    if flags.all_reduce_spec is not None:
        return flags.all_reduce_spec
    default = "hierarchical_copy" if flags.hierarchical_copy else "copy"
    return single(mode.all_reduce or default)


def _aggregation(
    flags: Params, mode: Mode, work: Work, all_reduce: AllReduceSpec, numerics: Numerics
) -> AggregationSpec:
    if work.only_forward:
        # Without gradients there is no reduction, so an unusable algorithm such as nccl is ignored.
        return AggregationSpec(all_reduce=single(mode.all_reduce or "copy"))
    buckets = flags.gradient_bucket_bytes
    if buckets is None:
        joined = flags.gradient_repacking or flags.agg_small_grads_max_bytes
        buckets = BUCKET_BYTES if mode.all_reduce == "collective" and not joined else 0
    compact = flags.compact_gradient_transfer and numerics.precision != "fp32"
    return AggregationSpec.of(
        vars(flags),
        all_reduce=all_reduce,
        gradient_bucket_bytes=buckets,
        compact_dtype=numerics.dtype if compact else None,
        sparse_to_dense=flags.sparse_to_dense_grads,
        group_size=flags.all_reduce_group_size,
        share_memory=flags.all_reduce_share_memory,
        shared_cards=flags.gpus_per_card > 1,
    )


def check_all_reduce(
    spec: AllReduceSpec,
    job: Job,
    device: str,
    *,
    network_topology: str,
    group_size: int,
    communication_hint: str = "auto",
    shared_cards: bool = False,
) -> None:
    """Refuses an all-reduce that cannot work on the devices of a job; see `check_spec`.

    With "auto", refuses what works neither on "cpu" nor on "gpu". `group_size`: devices per group
    of two-level algorithms; 0: those of one process.
    """
    refusals = []
    for kind in ("cpu", "gpu") if device == "auto" else (device,):
        on_kind = job.on(kind)
        context = ReduceContext(
            devices=on_kind.tower_devices,
            cpu_devices=adding_cpus(on_kind.tower_devices, job.cpu_devices, job.cpu_device),
            network_topology=network_topology,
            own=on_kind.own_tower_devices if job.client_per_worker else None,
            communication_hint=communication_hint,
            shared_cards=shared_cards,
        )
        try:
            check_spec(spec, context, groups_of(context.devices, group_size))
        except FlagError as error:
            refusals.append(error)
        else:
            return
    raise refusals[0]
