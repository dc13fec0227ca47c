"""Which stages a run has, their order, and the way through them and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cnnbench.variable_mgr.aggregation.deferral import Deferral
from cnnbench.variable_mgr.aggregation.half_precision import CompactTransfer
from cnnbench.variable_mgr.aggregation.repacking import Repacking
from cnnbench.variable_mgr.aggregation.scaling import Scale
from cnnbench.variable_mgr.aggregation.small_gradients import SmallGradients
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec
from cnnbench.variable_mgr.aggregation.stage import Stage, TowerTensors

# Sums over towers; returns as many tensors of the same shapes and dtypes.
Reduce: TypeAlias = "Callable[[TowerTensors], TowerTensors]"


def make_stages(
    spec: AggregationSpec, devices: tuple[str, ...], scale: float | None
) -> tuple[Stage, ...]:
    """The stages that a run asks for, in the one order there is.

    1. Small gradients: they are small, and float32, only before anything else is done.
    2. Repacking: from here on there are few tensors, so what follows costs few ops.
       Gradients of 16 and of 32 bits meet in packs of what is sent.
    3. Scaling: before compacting, so on the way back after it. The multiplication is
       done in float32, once per pack.
    4. Compacting: before deferral, which then keeps 16 bits per element.
    5. Deferral: what is kept is what is sent, so that nothing stands between the last
       step's gradients and their reduction, which begins with the step.

    Args:
      spec: what is off there is left out.
      devices: of the towers.
      scale: factor of the sum, None for 1.

    Raises:
      FlagError: an option has an impossible value.
    """
    stages: list[Stage] = []
    if spec.agg_small_grads_max_bytes > 0:
        stages.append(
            SmallGradients(spec.agg_small_grads_max_bytes, spec.agg_small_grads_max_group, devices)
        )
    if spec.gradient_repacking:
        stages.append(Repacking(spec.gradient_repacking, devices, spec.compact_dtype))
    if scale is not None:
        stages.append(Scale(scale, devices))
    if spec.compact_dtype is not None:
        stages.append(CompactTransfer(spec.compact_dtype, devices))
    if spec.relaxed:
        stages.append(Deferral(devices))
    return tuple(stages)


def run_through(stages: Sequence[Stage], tensors: TowerTensors, reduce: Reduce) -> TowerTensors:
    """Applies stages, reduces, and applies the inverses from the last stage to the first.

    Raises:
      ValueError: the tensors do not fit a stage; says why.
    """
    inverses = []
    for stage in stages:
        tensors, inverse = stage(tensors)
        inverses.append(inverse)
    tensors = reduce(tensors)
    for inverse in reversed(inverses):
        tensors = inverse(tensors)
    return tensors
