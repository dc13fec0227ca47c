"""The arithmetic of an update, decided once for a run; no TensorFlow.

From the gradients g of the towers' scaled losses to a new weight w:

    g / s             s: the loss scale
    g + d w           the gradient of the L2 loss, unless decay is a part of the update
    sum, mean         over towers, by the variable manager
    clip              as the flags of clipping say
    w = update(g, r)  by the optimizer, at learning rate r

Scale and decay come after the reduction: that takes fewer operations, and 16-bit gradients keep
their scale on the way. Gradients that wait for the next step are completed before it, since scale
and weights may have changed by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cnnbench.optimizers.spec import OptimizerSpec
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.modes import Mode, Reduction

# Gradients are added up by operations of ours, for all towers of the job.
_BY_OUR_SUMS = (Reduction.AT_VARIABLE, Reduction.ALL_REDUCE)


@dataclass(frozen=True, kw_only=True)
class UpdatePlan:
    """Scaling, reduction, weight decay and clipping of gradients, with their factors.

    Attributes:
      reduction: "mean" or "sum" over towers, made by the manager.
      rate_factor: factor of the learning rate; 1 / towers turns an update by a sum into one by the
        mean.
      weight_decay: factor of the L2 loss of a tower.
      decay: d above, adjusted to the reduction.
      decoupled_decay: factor of the decay that the optimizer applies in place of an L2 loss.
      clip: bounds by the flag that asks for the clipping.
      deferred: whether updates take the gradients of the step before; each tower then removes the
        scale and adds decay before the reduction.
      fused: whether decay is a part of the updates (`cnnbench.run.step.fused_decay`) if all devices
        are CPUs.
    """

    reduction: str = "mean"
    rate_factor: float = 1.0
    weight_decay: float = 0.0
    decay: float = 0.0
    decoupled_decay: float = 0.0
    clip: Mapping[str, float] = field(default_factory=dict)
    deferred: bool = False
    fused: bool = False


def plan_update(
    mode: Mode,
    aggregation: AggregationSpec,
    towers: int,
    *,
    reduction: str,
    weight_decay: float,
    clip: Mapping[str, float],
    optimizer: OptimizerSpec,
    asynchronous: bool,
    staged: bool,
    narrow: bool,
) -> UpdatePlan:
    """Plans the arithmetic of a run's updates.

    Args:
      towers: number of towers of the whole job.
      reduction: "mean" or "sum" of the gradients over towers.
      asynchronous: whether workers update shared variables without waiting for each other.
      staged: whether towers use the weights of the step before.
      narrow: whether variables have 16 bits.
    """
    deferred = aggregation.relaxed and mode.reduction is Reduction.ALL_REDUCE
    # Saves one pass over all gradients. Impossible where a stage between reduction and update
    # depends on their size, or 16 bits have to hold the sum.
    rate_has_mean = (
        optimizer.linear
        and reduction == "mean"
        and mode.reduction in _BY_OUR_SUMS
        and not asynchronous
        and not clip
        and aggregation.compact_dtype is None
        and not narrow
    )
    if rate_has_mean:
        reduction = "sum"
    decoupled_decay = weight_decay if optimizer.decoupled else 0.0
    weight_decay -= decoupled_decay
    # The mean of the towers' L2 gradients is that of one, their sum that of all of them.
    summed = reduction == "sum" and mode.in_sync and not deferred
    return UpdatePlan(
        reduction=reduction,
        rate_factor=1.0 / towers if rate_has_mean else 1.0,
        weight_decay=weight_decay,
        decay=weight_decay * towers if summed else weight_decay,
        decoupled_decay=decoupled_decay,
        clip=clip,
        deferred=deferred,
        # Only for the decay of the weights just before their update, whose number is known. A
        # manager that reduces by itself may complete updates by itself, too.
        fused=optimizer.linear
        and weight_decay > 0.0
        and not clip
        and mode.reduction is not Reduction.OWN
        and not (asynchronous or deferred or narrow or staged),
    )
