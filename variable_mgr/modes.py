"""The modes of `--variable_update`, without importing TensorFlow.

Flags, checks, notices, the header, memory estimates, docs/modes.md and `cnnbench tune` use the
properties in `Mode`.
"""

from __future__ import annotations

import enum
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from cnnbench.base import interfaces
from cnnbench.base.rules import FlagRule, HasFlags, always, refuse, refuse_any_value
from cnnbench.errors import UsageError

_NAME = re.compile("[a-z][a-z0-9_]*")
_RESERVED = ("horovod",)
"""Names that no mode may have: an old mode."""


class Copies(enum.Enum):
    """How many copies of every variable a mode stores."""

    ONE = "one"
    PER_TOWER = "one per device"
    PER_TOWER_AND_ONE = "one per device, and another one of each trained variable"


class Reduction(enum.Enum):
    """How a mode reduces the gradients of several towers."""

    NONE = "not exchanged"
    AT_VARIABLE = "added on the device of the variable, which applies the sum once"
    ALL_REDUCE = "all-reduced (`--all_reduce_spec`) and applied on every device"
    CROSS_DEVICE = "reduced by the strategy (`--cross_device_ops`) and applied on every device"
    OWN = "reduced by the manager of the mode or by its strategy"


class Processes(enum.Enum):
    """How a mode distributes the work of a step among several processes."""

    ONE = "not supported"
    CONTROLLER = "one process runs the towers of all processes"
    CLIENT_PER_WORKER = "every worker runs a step with its own towers"
    COORDINATOR = "a coordinator schedules the workers' updates"


@dataclass(frozen=True, kw_only=True)
class Mode:
    """Properties of one mode of --variable_update.

    Attributes:
      name: value of the flag: lower-case letters, digits and underscores.
      manager: a subclass of `VariableMgr`, or "module:Class", which is imported on use.
      about: short description for --help.
      processes: how the mode runs in several processes; `Processes.ONE` if it does not.
      uses_ps: whether a job stores its variables on ps tasks.
      in_sync: whether all towers have equal trained variables after every step.
      strategy: name of the strategy's class in tf.distribute; "" for other modes.
      staged: whether --staged_vars works.
      asynchronous: whether --nocross_replica_sync works.
      algorithm: the name in records for the reduction of gradients. With `ALL_REDUCE`, it is the
        default of --all_reduce_spec, and "" means "copy". With `CROSS_DEVICE`, it is unused.
      by_size: whether --all_reduce_spec may name several algorithms for different tensor sizes.
      bucket_bytes: with `ALL_REDUCE`, the default of --gradient_bucket_bytes; None for no buckets.
      one_tower: the reason why a process can use only one device. It completes the sentence
        "--variable_update=NAME has ...". "" if a process can use several devices.
      needs: required flags, each with the value that `cnnbench tune` gives it.
      rules: rules about flags in this mode (`cnnbench.base.rules`). Their tests get the plan of a
        run and may use `plan.params.FLAG`.
    """

    name: str
    manager: type[Any] | str
    about: str = ""
    copies: Copies = Copies.PER_TOWER
    reduction: Reduction = Reduction.OWN
    processes: Processes = Processes.ONE
    uses_ps: bool = False
    in_sync: bool = True
    strategy: str = ""
    staged: bool = False
    asynchronous: bool = False
    algorithm: str = ""
    by_size: bool = False
    bucket_bytes: int | None = None
    one_tower: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[FlagRule[HasFlags], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(
                "a mode needs a name of lower-case letters, digits and underscores, "
                f"not {self.name!r}"
            )
        if self.name in _RESERVED:
            raise UsageError(f"mode {self.name}: the name is reserved; choose another name")
        module, _, name = str(self.manager).partition(":")
        is_name = isinstance(self.manager, str) and module and name.isidentifier()
        # isinstance would need the class `VariableMgr`, whose module loads TensorFlow.
        manages = hasattr(self.manager, "preprocess_device_grads")
        if not is_name and not (manages and isinstance(self.manager, type)):
            raise UsageError(
                f"mode {self.name} needs a manager: a subclass of VariableMgr, or "
                f"'module:Class' that names one, not {self.manager!r}"
            )
        interfaces.check_plugin_attributes(self, Mode, f"mode {self.name}")

    def manager_class(self) -> type[Any]:
        """Returns the subclass of `VariableMgr` that implements the mode. May import TensorFlow."""
        if not isinstance(self.manager, str):
            return self.manager
        module, _, name = self.manager.partition(":")
        return cast("type[Any]", getattr(importlib.import_module(module, __package__), name))

    @property
    def default_all_reduce_spec(self) -> str:
        """Default of --all_reduce_spec in this mode; "" without a default or an all-reduce."""
        return self.algorithm if self.reduction is Reduction.ALL_REDUCE else ""

    @property
    def uses_cross_device_ops(self) -> bool:
        """Whether a tf.distribute strategy reduces in one process by --cross_device_ops."""
        return self.reduction is Reduction.CROSS_DEVICE and self.processes is Processes.ONE

    @property
    def uses_worker_strategy(self) -> bool:
        """Whether every worker runs a tf.distribute strategy that reduces over all workers."""
        return bool(self.strategy) and self.processes is Processes.CLIENT_PER_WORKER


DEFAULT = "parameter_server"
"""The default mode. It is also the mode of single-device runs to which others are compared."""

BUCKET_BYTES = 4 * 1024 * 1024
"""Measured with 102 MB of gradients and two processes on one machine: compared with a single
bucket, buckets of 1, 4 and 16 MB reduced the step time to 44 %, 37 % and 40 %. For 1 MB of
gradients, a single bucket was fastest.
"""

_WITH_COORDINATOR = "cannot be used with --variable_update=parameter_server_strategy"

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
        about="one copy per device; gradients are reduced",
        reduction=Reduction.ALL_REDUCE,
    ),
    Mode(
        name="independent",
        manager=".per_tower:IndependentVariableMgr",
        about="one copy per device; gradients are not reduced",
        reduction=Reduction.NONE,
        in_sync=False,
        rules=(
            refuse(
                "bn_stats",
                lambda p: p.params.bn_stats == "sync",
                "cannot be used with --variable_update=independent, whose towers exchange nothing",
            ),
        ),
    ),
    Mode(
        name="distributed_replicated",
        manager=".per_tower:DistributedReplicatedVariableMgr",
        about="one copy per device, and one that is updated and then copied to the devices",
        copies=Copies.PER_TOWER_AND_ONE,
        reduction=Reduction.AT_VARIABLE,
        processes=Processes.CONTROLLER,
        uses_ps=True,
    ),
    Mode(
        name="distributed_all_reduce",
        manager=".per_tower:ReplicatedVariableMgr",
        about="one copy per device; the reduction algorithm depends on the gradient's size",
        reduction=Reduction.ALL_REDUCE,
        processes=Processes.CONTROLLER,
        by_size=True,
        needs={"all_reduce_spec": "pscpu:32K:xring"},
    ),
    Mode(
        name="collective_all_reduce",
        manager=".per_tower:ReplicatedVariableMgr",
        about="one copy per device; gradients are reduced by TensorFlow's collectives",
        reduction=Reduction.ALL_REDUCE,
        processes=Processes.CLIENT_PER_WORKER,
        algorithm="collective",
        by_size=True,
        bucket_bytes=BUCKET_BYTES,
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
        # Splitting the input raises AttributeError, because TensorFlow 2.21 misspells the name of
        # an option.
        rules=(
            refuse_any_value(
                "input_sharding",
                lambda p: (
                    p.params.input_distribution == "strategy" and p.params.input_sharding == "auto"
                ),
                "cannot be used with --variable_update=central_storage_strategy, whose input "
                "TensorFlow cannot split; use --input_sharding=manual",
            ),
        ),
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
        rules=(
            *(
                refuse(
                    flag,
                    always,
                    f"{_WITH_COORDINATOR}, which only trains; use {DEFAULT} in its place",
                )
                for flag in ("eval", "forward_only", "input_only")
            ),
            refuse(
                "save_summaries_steps",
                lambda p: p.params.summary_verbosity,
                f"{_WITH_COORDINATOR}, which has no step to look at",
            ),
            refuse(
                "fp16_enable_auto_loss_scale",
                lambda p: p.params.precision == "fp16",
                f"{_WITH_COORDINATOR}, where no worker knows whether the gradients of others "
                "overflow",
            ),
            refuse(
                "input_distribution",
                lambda p: p.params.input_distribution == "strategy",
                f"{_WITH_COORDINATOR}, whose workers each read their own part",
            ),
        ),
    ),
)
"""The modes of this package, in the order of --help."""


def mode_without_ps(processes: Processes) -> Mode:
    """The first built-in mode that uses several processes in this way, without ps tasks."""
    return next(mode for mode in BUILT_IN if mode.processes is processes and not mode.uses_ps)


def built_in_names(which: Callable[[Mode], bool]) -> str:
    """Comma-separated names of the built-in modes for which `which` returns true."""
    return ", ".join(mode.name for mode in BUILT_IN if which(mode))
