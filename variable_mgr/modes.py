"""The registry of the modes of `--variable_update`.

Flags, checks, notices, the header, memory estimates, docs/modes.md and `cnnbench strategies` use
the properties in `Mode`.
"""

from __future__ import annotations

import enum
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from cnnbench.base import plugins
from cnnbench.errors import FlagError, UsageError

# The modes of --variable_update, one row each, without TensorFlow.

_NAME = re.compile("[a-z][a-z0-9_]*")


class Copies(enum.Enum):
    """How many copies of every variable a mode keeps."""

    ONE = "one"
    PER_TOWER = "one per device"
    PER_TOWER_AND_ONE = "one per device, and one more of what is trained"


class Reduction(enum.Enum):
    """How a mode reduces the gradients of several towers."""

    NONE = "none exchanged"
    AT_VARIABLE = "added up where the variable is, applied once"
    ALL_REDUCE = "all-reduced (`--all_reduce_spec`), applied on every device"
    CROSS_DEVICE = "reduced by the strategy (`--cross_device_ops`), applied on every device"
    OWN = "reduced by the manager or its strategy"


class Processes(enum.Enum):
    """How a mode runs in several processes."""

    ONE = "no"
    CONTROLLER = "one process drives the towers of all"
    CLIENT_PER_WORKER = "every worker has a step of its own towers"
    COORDINATOR = "a coordinator schedules the workers' updates"


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One mode of --variable_update.

    Attributes:
      name: value of the flag: lower-case letters, digits and underscores.
      manager: a subclass of `VariableMgr`, or "module:Class", which is imported on use.
      about: short description for --help.
      processes: how the mode runs in several processes; `Processes.ONE` if it does not.
      uses_ps: whether a job stores its variables on ps tasks.
      in_sync: whether all towers have equal trained variables after every step.
      apart: the reason why `cnnbench strategies` does not compare the mode's weights with those of
        other modes, although towers are in sync. "" if it does.
      strategy: name of the strategy's class in tf.distribute; "" for other modes.
      staged: whether --staged_vars works.
      asynchronous: whether --nocross_replica_sync works.
      algorithm: the name in records for the reduction of gradients. With `ALL_REDUCE`, it is the
        default of --all_reduce_spec, and "" means "copy". With `CROSS_DEVICE`, it is unused.
      by_size: whether --all_reduce_spec may name algorithms by size.
      one_tower: the reason why a process can use only one device. It completes the sentence
        "--variable_update=NAME has ...". "" if a process can use several.
      needs: required flags, each with the value that `cnnbench strategies` gives it.
      refuses: settings that are refused, each with a reason that completes the sentence "cannot go
        with --variable_update=NAME, whose ...". A setting is "flag" (switched on), "flag=value", or
        several of these with commas. With several, all must be set, and the error message names the
        last one.
    """

    name: str
    manager: type[Any] | str
    about: str = ""
    copies: Copies = Copies.PER_TOWER
    reduction: Reduction = Reduction.OWN
    processes: Processes = Processes.ONE
    uses_ps: bool = False
    in_sync: bool = True
    apart: str = ""
    strategy: str = ""
    staged: bool = False
    asynchronous: bool = False
    algorithm: str = ""
    by_size: bool = False
    one_tower: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)
    refuses: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(
                "a mode needs a name of lower-case letters, digits and underscores, "
                f"not {self.name!r}"
            )
        module, _, name = str(self.manager).partition(":")
        named = isinstance(self.manager, str) and module and name.isidentifier()
        # A class is recognized by this method, because importing `VariableMgr` would import
        # TensorFlow.
        made = isinstance(self.manager, type) and hasattr(self.manager, "preprocess_device_grads")
        if not (named or made):
            raise UsageError(
                f"mode {self.name} needs a manager: a subclass of VariableMgr, or "
                f"'module:Class' that names one, not {self.manager!r}"
            )
        plugins.check_attributes(self, Mode, f"mode {self.name}")

    def manager_class(self) -> type[Any]:
        """The subclass of `VariableMgr`; may load TensorFlow."""
        if not isinstance(self.manager, str):
            return self.manager
        module, _, name = self.manager.partition(":")
        return cast("type[Any]", getattr(importlib.import_module(module, __package__), name))

    @property
    def all_reduce(self) -> str:
        """The all-reduce if --all_reduce_spec is not given; "" if the mode does not use one."""
        return self.algorithm if self.reduction is Reduction.ALL_REDUCE else ""

    @property
    def mirrors(self) -> bool:
        """Whether a strategy reduces with --cross_device_ops between devices of a process."""
        return self.reduction is Reduction.CROSS_DEVICE and self.processes is Processes.ONE

    @property
    def multi_worker_strategy(self) -> bool:
        """Whether every worker runs a strategy that reduces between all devices."""
        return bool(self.strategy) and self.processes is Processes.CLIENT_PER_WORKER


DEFAULT = "parameter_server"
"""The default mode. It is also the mode of single-device runs to which others are compared."""

_ONLY_TRAINS = f"which only trains; use {DEFAULT} in its place"

BUILT_IN: tuple[Mode, ...] = (
    Mode(
        name=DEFAULT,
        manager=".parameter_server:ParameterServerVariableMgr",
        about="one copy of every variable",
        copies=Copies.ONE,
        reduction=Reduction.AT_VARIABLE,
        processes=Processes.CONTROLLER,
        uses_ps=True,
        staged=True,
        asynchronous=True,
    ),
    Mode(
        name="replicated",
        manager=".per_tower:ReplicatedVariableMgr",
        about="a copy per device, reduced gradients",
        reduction=Reduction.ALL_REDUCE,
    ),
    Mode(
        name="independent",
        manager=".per_tower:IndependentVariableMgr",
        about="a copy per device, no reduction at all",
        reduction=Reduction.NONE,
        in_sync=False,
        refuses={"bn_stats=sync": "whose towers never meet"},
    ),
    Mode(
        name="distributed_replicated",
        manager=".per_tower:DistributedReplicatedVariableMgr",
        about="a copy per device and one more that is updated and copied back",
        copies=Copies.PER_TOWER_AND_ONE,
        reduction=Reduction.AT_VARIABLE,
        processes=Processes.CONTROLLER,
        uses_ps=True,
    ),
    Mode(
        name="distributed_all_reduce",
        manager=".per_tower:ReplicatedVariableMgr",
        about="a copy per device, gradients reduced by algorithms by size",
        reduction=Reduction.ALL_REDUCE,
        processes=Processes.CONTROLLER,
        by_size=True,
        needs={"all_reduce_spec": "pscpu:32K:xring"},
    ),
    Mode(
        name="collective_all_reduce",
        manager=".per_tower:ReplicatedVariableMgr",
        about="a copy per device, gradients reduced by TensorFlow's collectives, also between "
        "processes",
        reduction=Reduction.ALL_REDUCE,
        processes=Processes.CLIENT_PER_WORKER,
        algorithm="collective",
        by_size=True,
    ),
    Mode(
        name="mirrored_strategy",
        manager=".strategies:MirroredStrategyVariableMgr",
        reduction=Reduction.CROSS_DEVICE,
        strategy="MirroredStrategy",
    ),
    Mode(
        name="multi_worker_mirrored_strategy",
        manager=".strategies:MultiWorkerMirroredStrategyVariableMgr",
        reduction=Reduction.CROSS_DEVICE,
        processes=Processes.CLIENT_PER_WORKER,
        strategy="MultiWorkerMirroredStrategy",
    ),
    Mode(
        name="central_storage_strategy",
        manager=".strategies:CentralStorageStrategyVariableMgr",
        copies=Copies.ONE,
        strategy="experimental.CentralStorageStrategy",
        algorithm="reduction_to_one_device",
        # TensorFlow 2.21 misspells an option's name and raises an AttributeError.
        refuses={
            "input_distribution=strategy,input_sharding=auto": "whose input TensorFlow cannot "
            "split; use --input_sharding=manual"
        },
    ),
    Mode(
        name="one_device_strategy",
        manager=".strategies:OneDeviceStrategyVariableMgr",
        copies=Copies.ONE,
        strategy="OneDeviceStrategy",
        one_tower="keeps everything on one device; it needs --num_gpus=1",
    ),
    Mode(
        name="parameter_server_strategy",
        manager=".strategies:ParameterServerStrategyVariableMgr",
        copies=Copies.ONE,
        processes=Processes.COORDINATOR,
        uses_ps=True,
        strategy="ParameterServerStrategy",
        one_tower="has one device per worker; start more workers",
        refuses={
            **dict.fromkeys(("eval", "forward_only", "input_only"), _ONLY_TRAINS),
            "summary_verbosity,save_summaries_steps": "which has no step to look at",
            "precision=fp16,fp16_enable_auto_loss_scale": "where no worker knows whether the "
            "gradients of others overflow",
            "input_distribution=strategy": "whose workers each read their own part",
        },
    ),
)
"""The modes of this package, in the order of --help."""


# Modes of --variable_update by name: built-in ones, plug-in files, entry points; no TensorFlow.

PLUGIN_FLAG = "variable_mgr_plugin"
ENTRY_POINT_GROUP = "cnnbench.variable_mgr"

# Reserved names: the old name of another mode, and names of rows and folders in the output of
# `cnnbench strategies`.
_RESERVED = ("horovod", "one_tower", "checkpoints", "logs")

_modes: dict[str, Mode] = {mode.name: mode for mode in BUILT_IN}


def register_mode(mode: Mode) -> None:
    """Makes a mode with a new name available to ``--variable_update``."""
    if not isinstance(mode, Mode):
        raise UsageError(f"register_mode takes a cnnbench.variable_mgr.Mode, not {mode!r}")
    if mode.name in _modes or mode.name in _RESERVED:
        raise UsageError(
            f"a mode {mode.name} of --variable_update is registered already; choose another name"
        )
    _modes[mode.name] = mode


def find(name: str) -> Mode:
    """The mode with a name. Loads installed entry points only if necessary.

    Raises FlagError if there is no such mode.
    """
    if name not in _modes:
        plugins.load_entry_points(ENTRY_POINT_GROUP)
    if name not in _modes:
        raise FlagError("variable_update", name, f"must be one of {', '.join(_modes)}")
    return _modes[name]


def names() -> tuple[str, ...]:
    """Names of all modes: the built-in ones, then those of plug-ins."""
    plugins.load_entry_points(ENTRY_POINT_GROUP)
    return tuple(_modes)


def load_plugin(path: str) -> tuple[str, ...]:
    """Names that a Python file registers by `register_mode`; see `plugins.load`."""
    return tuple(map(str, plugins.load(path, PLUGIN_FLAG)))


class _Names(Sequence[str]):
    """The names of all modes, read each time they are used, for the choices of a flag.

    If an entry point fails, its names are missing here. `find` raises the error for an unknown
    name.
    """

    def __contains__(self, name: object) -> bool:
        return name in _modes or name in names()

    def __len__(self) -> int:
        return len(self._all())

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __bool__(self) -> bool:
        return True

    def _all(self) -> tuple[str, ...]:
        try:
            return names()
        except UsageError:
            return tuple(_modes)


NAMES = _Names()


plugins.add_kind(
    plugins.Kind(
        flag=PLUGIN_FLAG,
        noun="variable manager",
        call="cnnbench.variable_mgr.register_mode(Mode(...))",
        table=lambda: _modes,
        prepare=lambda: None,  # imported with the package
    )
)
