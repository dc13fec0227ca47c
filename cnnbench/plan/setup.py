"""Sections of a run's plan: number formats, devices, and gradient exchange.

From the gradients g of the towers' scaled losses to a new weight w:

    g / s             s: the loss scale
    g + d w           the gradient of the L2 loss, unless decay is a part of the update
    sum, mean         over towers, by the variable manager
    clip              as the flags of clipping say
    w = update(g, r)  by the optimizer, at learning rate r

The gradients are divided by the loss scale, and decay is added, after the reduction: this takes
fewer operations, and 16-bit gradients stay scaled during the reduction. Gradients that are applied
in the next step are an exception, because loss scale and weights may have changed by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from cnnbench.flags import (
    GradientExchangePlan,
    NumericsPlan,
    Params,
    PlaceInJob,
    VariableUpdatePlan,
    WorkKind,
)
from cnnbench.optimizers.clipping import CLIPPINGS
from cnnbench.optimizers.registry import OPTIMIZERS
from cnnbench.optimizers.spec import OptimizerSpec
from cnnbench.variable_mgr.all_reduce.context import group_devices
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, single
from cnnbench.variable_mgr.distribute import CrossDeviceSpec
from cnnbench.variable_mgr.modes import Mode, Reduction
from cnnbench.variable_mgr.packing import AggregationSpec

# The number formats and the optimizer of a run.

DEFAULT_FP16_LOSS_SCALE = 128.0

_COMPUTE_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Compute dtype by --precision."""


def resolve_numerics(flags: Params, work: WorkKind) -> NumericsPlan:
    """Resolves the number formats and the optimizer that the flags select."""
    scaled = flags.precision == "fp16"
    automatic = scaled and work.trains and flags.fp16_enable_auto_loss_scale
    return NumericsPlan(
        dtype=_COMPUTE_DTYPES[flags.precision],
        loss_scale=(flags.fp16_loss_scale or DEFAULT_FP16_LOSS_SCALE) if scaled else 1.0,
        scale_doubles_after=flags.fp16_inc_loss_scale_every_n if automatic else None,
        frozen=flags.forward_only and flags.freeze_when_forward_only,
        optimizer_spec=OPTIMIZERS.find(flags.optimizer),
    )


# The devices and threads of a process.

MachineFlags: TypeAlias = Params
"""The flags by which TensorFlow is configured in one process (see `RunPlan.process_flags`)."""


def gpu_numbers(flags: MachineFlags) -> tuple[int, ...]:
    """Numbers of a run's GPUs, in order. With --gpus_per_card, numbers count logical GPUs."""
    named = [int(number) for number in flags.gpu_indices.split(",") if number]
    return tuple(named or range(flags.num_gpus))[: flags.num_gpus]


def card_numbers(flags: MachineFlags) -> tuple[int, ...]:
    """Numbers of the visible GPU cards that contain the logical GPUs of a run."""
    return tuple(dict.fromkeys(number // flags.gpus_per_card for number in gpu_numbers(flags)))


# How an update scales, reduces and clips gradients, and applies weight decay. Determined once for a
# run.

# Reductions in which cnnbench itself sums the gradients of all towers, not tf.distribute or a
# plug-in.
_SUMMED_BY_CNNBENCH = (Reduction.AT_VARIABLE, Reduction.ALL_REDUCE)


def plan_variable_update(
    mode: Mode,
    aggregation: AggregationSpec,
    towers: int,
    *,
    reduction: str,
    weight_decay: float,
    clip: Mapping[str, float],
    optimizer: OptimizerSpec,
    asynchronous: bool,
    uses_previous_weights: bool,
    has_16_bit_variables: bool,
) -> VariableUpdatePlan:
    """Determines how the updates of a run scale, reduce and clip gradients and apply weight decay.

    Args:
      towers: number of towers of the whole job.
      reduction: "mean" or "sum" of the gradients over towers.
      asynchronous: whether workers update shared variables without waiting for each other.
      uses_previous_weights: whether towers use the weights of the previous step.
      has_16_bit_variables: whether variables have 16 bits.
    """
    deferred = aggregation.applies_gradients_late and mode.reduction is Reduction.ALL_REDUCE
    # One division of the learning rate by the number of towers replaces a division of every
    # gradient. Clipped or 16-bit gradients must be divided themselves.
    rate_has_mean = (
        optimizer.linear
        and reduction == "mean"
        and mode.reduction in _SUMMED_BY_CNNBENCH
        and not asynchronous
        and not clip
        and aggregation.compact_dtype is None
        and not has_16_bit_variables
    )
    if rate_has_mean:
        reduction = "sum"
    decoupled_decay = weight_decay if optimizer.decoupled else 0.0
    weight_decay -= decoupled_decay
    # All towers have the same L2 gradient, so a sum over N towers contains it N times.
    summed = reduction == "sum" and mode.in_sync and not deferred
    return VariableUpdatePlan(
        reduction=reduction,
        rate_factor=1.0 / towers if rate_has_mean else 1.0,
        weight_decay=weight_decay,
        decay=weight_decay * towers if summed else weight_decay,
        decoupled_decay=decoupled_decay,
        clip=clip,
        deferred=deferred,
        # Fused decay must come directly before an update, and depends on the number of updates so
        # far. A variable manager with its own reduction may run updates itself, without this decay.
        fused=optimizer.linear
        and weight_decay > 0.0
        and not clip
        and mode.reduction is not Reduction.OWN
        and not (asynchronous or deferred or has_16_bit_variables or uses_previous_weights),
    )


# The placement of variables and the exchange of gradients in a run.


def resolve_exchange(
    flags: Params, work: WorkKind, place: PlaceInJob, numerics: NumericsPlan
) -> GradientExchangePlan:
    """Resolves the gradient exchange that the flags select.

    The names of all-reduce algorithms are not checked yet: a plug-in may register them.
    """
    mode, job = place.mode, place.job
    exchanges = work.trains and job.num_towers > 1
    reduces = exchanges and mode.reduction is Reduction.ALL_REDUCE
    all_reduce = flags.all_reduce_spec
    if all_reduce is None:
        default = "hierarchical_copy" if flags.hierarchical_copy else "copy"
        all_reduce = single(mode.default_all_reduce_spec or default)
    groups = group_devices(job.tower_devices, flags.all_reduce_group_size) if reduces else ()
    aggregation = _aggregation(flags, mode, work, all_reduce, numerics)
    return GradientExchangePlan(
        reduces=reduces,
        exchanges=exchanges,
        all_reduce=all_reduce,
        running=all_reduce.without_needless_levels(groups) if reduces else None,
        aggregation=aggregation,
        update=plan_variable_update(
            mode,
            aggregation,
            place.towers_per_step,
            reduction=flags.gradient_reduction,
            weight_decay=flags.weight_decay,
            clip={n: bound for n in CLIPPINGS if (bound := getattr(flags, n)) is not None},
            optimizer=numerics.optimizer_spec,
            asynchronous=place.asynchronous,
            uses_previous_weights=flags.staged_vars,
            has_16_bit_variables=flags.fp16_vars,
        ),
        cross_device=CrossDeviceSpec(
            ops=flags.cross_device_ops,
            shared_cards=flags.gpus_per_card > 1,
            pack_bytes=flags.bytes_per_pack,
            packs=flags.num_packs,
        ),
    )


def _aggregation(
    flags: Params, mode: Mode, work: WorkKind, all_reduce: AllReduceSpec, numerics: NumericsPlan
) -> AggregationSpec:
    """Determines how gradients are packed and reduced, from flags and defaults of the mode."""
    if work.only_forward:
        # Forward passes reduce nothing, so an algorithm that cannot run here, such as nccl, is not
        # refused.
        return AggregationSpec(all_reduce=single(mode.default_all_reduce_spec or "copy"))
    buckets = flags.gradient_bucket_bytes
    if buckets is None:
        joined = flags.gradient_repacking or flags.agg_small_grads_max_bytes
        buckets = 0 if joined else mode.bucket_bytes or 0
    compact = flags.compact_gradient_transfer and numerics.dtype != "float32"
    return AggregationSpec.from_flags(
        vars(flags),
        all_reduce=all_reduce,
        gradient_bucket_bytes=buckets,
        compact_dtype=numerics.dtype if compact else None,
        sparse_to_dense=flags.sparse_to_dense_grads,
        group_size=flags.all_reduce_group_size,
        share_memory=flags.all_reduce_share_memory,
        shared_cards=flags.gpus_per_card > 1,
    )
