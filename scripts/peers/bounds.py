"""What is demanded in every scenario."""

from __future__ import annotations

import operator

from peers import emulated
from peers.demands import Demand, Key, Round
from peers.options import CLASSIC, Options
from peers.reductions import reduction_demands
from peers.subjects import AGAINST, IN_KERAS, MODES, REDUCTIONS, STRATEGIES


def _key(subject: str) -> Key:
    """The key of ``name`` or ``name:dtype``, as in --only."""
    name, _, dtype = subject.partition(":")
    return name, dtype or "fp32"


def _ratio(
    scenario: str,
    numerator: str,
    denominator: str,
    bound: float,
    attribute: str = "images_per_sec",
    text: str = "",
    **how: bool,
) -> Demand:
    keys = _key(numerator), _key(denominator)

    def ratio(readings: Round) -> float | None:
        above, below = (getattr(readings[key], attribute) for key in keys)
        return above / below if above and below else None

    text += f"{' '.join(keys[0])} / {' '.join(keys[1])}"
    return Demand(scenario, text, keys, ratio, bound, **how)


def _after_import(readings: Round) -> float:
    return (readings[_START].seconds or 0.0) - (readings[_IMPORT].seconds or 0.0)


def _alone(
    scenario: str, subject: str, text: str, attribute: str, bound: float, **how: bool
) -> Demand:
    """An attribute of one reading."""
    key = _key(subject)
    figure = operator.attrgetter(attribute)
    return Demand(scenario, text, (key,), lambda readings: figure(readings[key]), bound, **how)


_FLOPS, _PEAK = "achieved_flops_per_sec", "peak memory, "
_START, _IMPORT = _key("start to first step"), _key("import tensorflow")
_TIME = {"at_most": True, "is_ratio": False}
_GROWTH = "resident memory, last step / warm-up"
_GROWTH_SAVING = "the same with checkpoints and evaluations, last step / after a tenth"
_CLASSIC = {"alexnet": 1.15, "vgg16": 1.15}

_DEMANDS: tuple[Demand, ...] = (
    _ratio("resnet50", "cnnbench", "ancestor", 1.05),
    _ratio("resnet50", "cnnbench", "torch", 1.1),
    _ratio("resnet50", "cnnbench", "keras", 1.3),
    _ratio("resnet50", "cnnbench:bf16", "cnnbench", 1.6, needs_bf16=True),
    _ratio("resnet50", "cnnbench:bf16", "torch:bf16", 1.1, needs_bf16=True),
    _ratio("resnet50", "cnnbench", "matmul", 0.85, _FLOPS),
    _ratio("resnet50", "cnnbench:bf16", "matmul:bf16", 0.80, _FLOPS, needs_bf16=True),
    _ratio("resnet50", "cnnbench", "ancestor", 0.9, "peak_bytes", _PEAK, at_most=True),
    *(_ratio(name, "cnnbench", "ancestor", _CLASSIC.get(name, 1.0)) for name in CLASSIC),
    *(_ratio(name, "cnnbench", "keras", 1.15) for name in IN_KERAS),
    _ratio("alexnet", "cnnbench", "ancestor", 0.9, "peak_bytes", _PEAK, at_most=True),
    _ratio("vgg16", "cnnbench", "matmul", 0.85, _FLOPS),
    *(
        _ratio("ancestor", f"cnnbench {case.name}", f"ancestor {case.name}", case.bound)
        for case in AGAINST
    ),
    _ratio("forward", "cnnbench", "ancestor", 1.15),
    _ratio("forward", "frozen", "cnnbench", 1.0),
    _ratio("forward", "cnnbench:bf16", "cnnbench", 1.6, needs_bf16=True),
    _ratio("forward", "frozen:int8", "frozen", 1.6),
    _ratio("input", "cnnbench", "tf.data", 0.97),
    *(_ratio("towers", f"two {mode}", "one tower", 0.97) for mode in MODES),
    *(_ratio("reductions", name, "none", 0.97) for name in REDUCTIONS),
    _ratio("collective", "collective_all_reduce", "workers", 1 / 1.05),
    _ratio("collective", "multi_worker_mirrored_strategy", "workers", 0.97),
    _ratio("strategies", "replicated", "mirrored_strategy", 1.0),
    *(_ratio("strategies", mode, f"bare {mode}", 0.97) for mode in STRATEGIES),
    _ratio("controller", "distributed_all_reduce", "controller", 1 / 1.05),
    _ratio("coordinator", "parameter_server_strategy", "coordinator", 0.97),
    _ratio("observed", "observed", "cnnbench", 0.99),
    _ratio("start_cluster", "one process", "three processes", 1 / 1.8, "seconds"),
    _alone("overhead", "harness", "harness / bare loop", "share_of_bare_loop", 0.97),
    Demand(
        "startup",
        "start to first step - import tensorflow, s",
        (_START, _IMPORT),
        _after_import,
        1.0,
        **_TIME,
    ),
    _alone("startup", "--help", "cnnbench --help, s", "seconds", 0.5, **_TIME),
    _alone("startup", "refused flag", "cnnbench with a refused flag, s", "seconds", 0.5, **_TIME),
    _alone("memory", "cnnbench", _GROWTH, "memory_growth", 1.02, at_most=True),
    _alone("memory", "saving", _GROWTH_SAVING, "memory_growth", 1.03, at_most=True),
    *emulated.DEMANDS,
)


def demands_of(options: Options) -> list[Demand]:
    """The demands of the chosen scenarios."""
    every = (*_DEMANDS, *reduction_demands(options))
    return [demand for demand in every if demand.scenario in options.chosen]
