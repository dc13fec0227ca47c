"""Predicts the time of the gradient exchange of jobs with different numbers of workers."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.lab.predict.predict import Interconnect, NotPredictedError, gradient_tensors
from cnnbench.plan import RunPlan
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, Link, parse_all_reduce_spec
from cnnbench.variable_mgr.modes import Processes, Reduction

_ITEMSIZE = 4
_FREE = Link("memory", 0.0, 0.0, 0.0)


def predict_exchange_seconds(
    setup: RunPlan, link: Link, ps: int, counts: Sequence[int]
) -> tuple[dict[int, float], str]:
    """Predicts how many seconds the gradient exchange of a step takes, by number of workers.

    Also returns why some predictions are missing, or "".
    """
    params = setup.params
    shapes = [variable.shape for variable in setup.network.spec.variables if variable.trainable]
    tensors = gradient_tensors(shapes, _ITEMSIZE)
    towers, packing = params.num_gpus, setup.exchange.aggregation
    model = Interconnect(link)
    if towers > 1:  # Devices of one process communicate through shared memory.
        model = Interconnect(_FREE, link, towers)
    seconds: dict[int, float] = {}
    reason = ""
    for workers in counts:
        try:
            devices = workers * towers
            spec = _all_reduce_spec_with_same_traffic(setup, min(ps, devices))
            seconds[workers] = model.predict_seconds(spec, tensors, devices, packing)
        except NotPredictedError as error:
            reason = str(error)
    return seconds, reason


def _all_reduce_spec_with_same_traffic(setup: RunPlan, ps: int) -> AllReduceSpec:
    """The all-reduce algorithm that causes the same traffic as the run's --variable_update."""
    mode, spec = setup.place.mode, setup.params.all_reduce_spec
    by_flag = mode.reduction is Reduction.ALL_REDUCE and mode.processes is Processes.CONTROLLER
    if by_flag and spec is not None:
        return spec
    return parse_all_reduce_spec(f"{mode.traffic}#{ps}" if ps > 1 else mode.traffic)
