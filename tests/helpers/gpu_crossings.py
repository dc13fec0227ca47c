"""What each mode sends from device to device within a step: the table of scripts/check_gpu_graphs.

A row allows a kind of tensor or signal between two kinds of operation. What no row allows is a
finding. Devices are those of towers ("tower"), those of the variables that towers share or of
sums ("home": the towers again, or CPUs) and the CPU of a process ("host").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from cnnbench.flags import Params

_SHARED = ("parameter_server", "central_storage_strategy", "one_device_strategy")
_SHADOWS = "distributed_replicated"
_COPIES = ("replicated", "distributed_all_reduce", "collective_all_reduce", "independent")
_MIRRORED = ("mirrored_strategy", "multi_worker_mirrored_strategy")


REPLICATED = (*_COPIES, *_MIRRORED)
"""The modes that update a copy of every variable on every tower."""
PER_TOWER = (*REPLICATED, _SHADOWS)
"""The modes that have such copies."""


def home(params: Params) -> str:
    """Where shared variables are: "GPU" or "CPU"."""
    mode = params.variable_update
    if params.ps_hosts or (mode == "central_storage_strategy" and params.num_gpus > 1):
        return "CPU"
    on_host = params.local_parameter_device == "cpu"
    return "CPU" if on_host and mode in ("parameter_server", "distributed_replicated") else "GPU"


_CLIENTS = ("collective_all_reduce", "multi_worker_mirrored_strategy")


def _routes(text: str, params: Params) -> set[str]:
    kinds = {"tower": "GPU", "home": home(params), "host": "CPU"}
    routes = set()
    for route in text.split(", "):
        source, _, target = route.partition(" > ")
        routes.add(f"{kinds[source]}>{kinds[target]}")
    return routes


def _mode(*modes: str) -> Callable[[Params], bool]:
    return lambda params: params.variable_update in modes


def _always(params: Params) -> bool:
    del params
    return True


def _scaled(params: Params) -> bool:
    return params.precision == "fp16" and params.fp16_enable_auto_loss_scale


def _algorithms(params: Params) -> set[str]:
    """The all-reduce algorithms of a run, of both levels."""
    if params.variable_update not in ("replicated", "distributed_all_reduce"):
        return set()
    if params.all_reduce_spec is None:
        on_host = params.local_parameter_device == "cpu" and not params.hierarchical_copy
        return {"copy on the host" if on_host else "copy"}
    return set(re.findall(r"[a-z_]+", str(params.all_reduce_spec)))


def _reduces_by(*algorithms: str) -> Callable[[Params], bool]:
    return lambda params: bool(_algorithms(params) & set(algorithms))


@dataclass(frozen=True)
class Crossing:
    """Something that may go from device to device.

    Attributes:
      what: in words.
      source, target: regular expressions of `gpu_graphs.Node.label`.
      routes: between which devices, as in "tower > home, home > tower".
      when: whether a run has it.
      steps: that have it.
      signal: whether it is an order without a tensor.
      many: whether a target may get several such signals from one device.
    """

    what: str
    source: str
    target: str
    routes: str
    when: Callable[[Params], bool] = _always
    steps: tuple[str, ...] = ("training", "evaluation", "forward")
    signal: bool = False
    many: bool = False

    def allows(self, source: str, target: str, route: str, params: Params) -> bool:
        """Whether something from source to target is of this kind, in a run that may have it."""
        return (
            route in _routes(self.routes, params)
            and re.search(self.source, source) is not None
            and re.search(self.target, target) is not None
        )


_TOWER = r"(^|/)(tower|evaluation)_\d+/"
_WEIGHT = r"^variable (v|shadow|caching)"
_ROOT = r"^(AddN|concat|truediv|Identity|mul|Cast|split|Slice)(_\d+)?:"
"""What managers make beside the towers, before it is reduced or added up."""
_SUMS = r"(^|/)(allreduce|instance)_\d+"
_REDUCED = f"{_TOWER}|{_ROOT}|{_SUMS}|^variable deferred/"
_TRAINING = ("training",)

EXPECTED = (
    # In every mode.
    Crossing("loss and metrics, to tower 0", _TOWER, r"^sums/", "tower > tower"),
    Crossing(
        "the end of all towers' work, a signal from each device",
        *("^", r"^result/", "home > tower, tower > tower, host > tower"),
        signal=True,
    ),
    Crossing(
        "the number of steps done, for draws",
        *(r"^variable steps_done$", _TOWER, "tower > tower"),
    ),
    Crossing(
        "sums of an evaluation, to tower 0",
        *(_TOWER, r"^AddN:", "tower > tower"),
        steps=("evaluation",),
    ),
    Crossing(
        "what `Model.host_rows` takes, to the host",
        *(f"{_TOWER}|^variable synthetic_", _TOWER, "tower > host"),
        steps=("evaluation",),
    ),
    Crossing(
        "L2 losses of the variables, to tower 0",
        *(r":L2Loss$", r"^result/", "home > tower, tower > tower"),
        lambda params: params.loss_type_to_report == "total_loss",
        _TRAINING,
    ),
    Crossing(
        "the automatic loss scale, from the host",
        *(r"^variable loss_scale/", f"{_TOWER}|^apply_|{_ROOT}", "host > tower, host > home"),
        _scaled,
        _TRAINING,
    ),
    Crossing(
        "whether gradients are finite, to the host",
        *(r":All$", r"^stack(_\d+)?:Pack$", "tower > host, home > host"),
        _scaled,
        _TRAINING,
    ),
    Crossing(
        "whether to update, from the host",
        *(r"^loss_scale/", r":(If|Switch)$", "host > tower, host > home"),
        _scaled,
        _TRAINING,
    ),
    Crossing(
        "updates that the branch of an automatic loss scale has, to its end",
        *(r"/cond/|^variable ", r"(^|/)cond(_\d+)?:If$"),
        "home > home, home > tower, tower > home",
        lambda params: _scaled(params) and params.variable_update in (*_SHARED, _SHADOWS),
        _TRAINING,
        signal=True,
        many=True,
    ),
    Crossing(
        "the first tower's weights, of which an evaluation is",
        *(r"^variable v0/", r"^evaluation_", "tower > tower"),
        _mode("independent"),
        ("evaluation",),
    ),
    Crossing(
        "the learning rate, an argument of the step, from the host",
        *(r"^Identity(_\d+)?:Identity$", r"(^|/)apply_|^Identity(_\d+)?:Identity$"),
        "host > tower, host > home, host > host",
        steps=_TRAINING,
    ),
    # Batch norm over several towers.
    Crossing(
        "moments and their gradients, between towers, by --bn_stats=sync",
        *(_TOWER, _TOWER, "tower > tower"),
        lambda params: params.bn_stats == "sync",
        _TRAINING,
    ),
    Crossing(
        "statistics of all towers, by --bn_stats=mean",
        *(_TOWER, _ROOT, "tower > tower, tower > home"),
        lambda params: params.bn_stats == "mean",
        _TRAINING,
    ),
    Crossing(
        "mean statistics, to the moving averages, by --bn_stats=mean",
        *(_ROOT, r"(^|/)sub(_\d+)?:Sub$", "tower > tower, tower > home"),
        lambda params: params.bn_stats == "mean",
        _TRAINING,
    ),
    # Shared variables.
    Crossing("values of variables", _WEIGHT, _TOWER, "home > tower", _mode(*_SHARED)),
    Crossing(
        "shapes of embeddings, which TensorFlow has beside them, for their gradients",
        *(r"^gradient_tape/.*/Shape:Const$", r"/strided_slice:StridedSlice$", "home > tower"),
        _mode(*_SHARED),
        _TRAINING,
    ),
    Crossing(
        "gradients, to their variables",
        *(f"{_TOWER}|{_ROOT}", _ROOT, "tower > home"),
        _mode(*_SHARED, _SHADOWS),
        _TRAINING,
    ),
    Crossing(
        "statistics of batch norm of tower 0, to the moving averages",
        *(_TOWER, r"(^|/)sub(_\d+)?:Sub$", "tower > home"),
        _mode(*_SHARED),
        _TRAINING,
    ),
    Crossing(
        "the factor of the loss, where a loss scale is taken off",
        *(r"^apply_\d+(_\d+)?/truediv", r"^apply_", "home > home"),
        lambda params: params.precision == "fp16",
        _TRAINING,
    ),
    Crossing(
        "the powers of Adam",
        *(r"^variable optimizer/", r"^apply_", "home > home"),
        _mode(*_SHARED, _SHADOWS),
        _TRAINING,
    ),
    Crossing(
        "updated values, to the copies",
        *(_WEIGHT, r":AssignVariableOp$", "home > tower"),
        _mode(_SHADOWS),
        _TRAINING,
    ),
    # Copies of the variables.
    Crossing(
        "gradients and their sums, between towers",
        *(_REDUCED, f"{_SUMS}|^apply_|{_ROOT}", "tower > tower"),
        _reduces_by("copy", "psgpu", "xring", "rechd", "tree", "hierarchical_copy"),
        _TRAINING,
    ),
    Crossing(
        "sums of algorithms of two levels, within a group",
        *(_SUMS, f"{_SUMS}|^apply_|{_ROOT}", "tower > tower"),
        lambda params: len(_algorithms(params)) > 1,
        _TRAINING,
    ),
    Crossing(
        "gradients to the host, and their sums back",
        *(_REDUCED, f"{_SUMS}|^apply_|{_ROOT}"),
        "tower > host, host > tower",
        _reduces_by("pscpu", "copy on the host"),
        _TRAINING,
    ),
    Crossing(
        "gradients and their sums, between towers, by tf.distribute",
        *(f"{_TOWER}|{_ROOT}", f"{_ROOT}|^apply_", "tower > tower"),
        lambda params: (
            params.variable_update in _MIRRORED
            and params.cross_device_ops in ("hierarchical_copy", "reduction_to_one_device")
        ),
        _TRAINING,
    ),
    Crossing(
        "results of NCCL that only one device of a group uses",
        *(r":NcclAllReduce$", _SUMS, "tower > tower"),
        _reduces_by("nccl"),
        _TRAINING,
        signal=True,
    ),
    Crossing(
        "slices of sparse gradients, to every device",
        *(_TOWER, r"^concat(_\d+)?:", "tower > tower"),
        lambda params: params.model == "ncf" and params.variable_update in _COPIES,
        _TRAINING,
    ),
    # Jobs of several processes.
    Crossing(
        "what workers with steps of their own add up, by way of their hosts",
        *(r"^sums/|^variable stop$|^Reshape|/Reshape|/truediv|/stack|/instance_\d+/", r"."),
        "tower > host, host > tower",
        lambda params: params.variable_update in _CLIENTS and bool(params.worker_hosts),
        _TRAINING,
    ),
    Crossing(
        "values of ps variables, to the CPU that has a copy for its worker",
        *(_WEIGHT, r"/cached(_\d+)?:Identity$", "home > host"),
        lambda params: params.variable_caching == "cpu",
    ),
    Crossing(
        "values of ps variables, from that CPU",
        *(r"/cached(_\d+)?:Identity$", _TOWER, "host > tower"),
        lambda params: params.variable_caching == "cpu",
    ),
    Crossing(
        "the count of updates by others, before variables are read and after updates",
        *(
            r".",
            r"^variable (v/|updates_done)|^ResourceCountUpTo|^group_deps",
            "home > home, tower > home",
        ),
        lambda params: params.cross_replica_sync is False,
        _TRAINING,
        signal=True,
    ),
    # What TensorFlow adds; docs/gpus.md says why.
    Crossing(
        "operations with a state in tf.nn.ctc_loss, one tower after the other",
        *(r"/ctc_loss_dense/", r"/ctc_loss_dense/", "tower > tower"),
        lambda params: params.model == "deepspeech2",
        ("training", "evaluation"),
        signal=True,
    ),
)
