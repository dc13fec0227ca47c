"""The modes of `--variable_update`, and the specifications of variable managers.

Flags, checks, notices, the header, memory estimates, docs/modes.md and `cnnbench strategies` use
the properties in `Mode`.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from cnnbench.arrays import Array
from cnnbench.base import plugins
from cnnbench.base.job import Chooser, Job, cpu_of_device, least_bytes_chooser, round_robin_chooser
from cnnbench.base.registry import SpecRegistry
from cnnbench.base.rules import FlagRule, HasFlags, always, refuse, refuse_any_value
from cnnbench.base.text import unknown_name_reason
from cnnbench.errors import FlagError, UsageError
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, is_gpu, single

# The modes of --variable_update, without importing TensorFlow.
_NAME = re.compile("[a-z][a-z0-9_]*")
_RESERVED = ("horovod", "one_tower", "checkpoints", "logs")
"""Names that no mode may have: an old mode, and rows and folders of `cnnbench strategies`."""


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
      apart: the reason why `cnnbench strategies` does not compare the mode's weights with the
        weights of other modes, although towers are in sync. "" if it compares them.
      strategy: name of the strategy's class in tf.distribute; "" for other modes.
      staged: whether --staged_vars works.
      asynchronous: whether --nocross_replica_sync works.
      algorithm: the name in records for the reduction of gradients. With `ALL_REDUCE`, it is the
        default of --all_reduce_spec, and "" means "copy". With `CROSS_DEVICE`, it is unused.
      by_size: whether --all_reduce_spec may name several algorithms for different tensor sizes.
      bucket_bytes: with `ALL_REDUCE`, the default of --gradient_bucket_bytes; None for no buckets.
      traffic: name of the all-reduce algorithm that causes the same traffic between workers, for
        predictions. By default, workers send gradients to ps tasks and get new values back.
      one_tower: the reason why a process can use only one device. It completes the sentence
        "--variable_update=NAME has ...". "" if a process can use several devices.
      needs: required flags, each with the value that `cnnbench strategies` gives it.
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
    apart: str = ""
    strategy: str = ""
    staged: bool = False
    asynchronous: bool = False
    algorithm: str = ""
    by_size: bool = False
    bucket_bytes: int | None = None
    traffic: str = "pscpu"
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
        # isinstance would need the class `VariableMgr`, whose module imports TensorFlow.
        manages = hasattr(self.manager, "preprocess_device_grads")
        if not is_name and not (manages and isinstance(self.manager, type)):
            raise UsageError(
                f"mode {self.name} needs a manager: a subclass of VariableMgr, or "
                f"'module:Class' that names one, not {self.manager!r}"
            )
        plugins.check_plugin_attributes(self, Mode, f"mode {self.name}")

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
        traffic="collective",
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
        traffic="collective",
        strategy="MultiWorkerMirroredStrategy",
    ),
    Mode(
        name="central_storage_strategy",
        manager=".strategies:CentralStorageStrategyVariableMgr",
        copies=Copies.ONE,
        strategy="experimental.CentralStorageStrategy",
        algorithm="reduction_to_one_device",
        # TensorFlow 2.21 misspells an option for splitting the input, and raises AttributeError.
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


# Registry of modes by name: built-in modes, plug-in files and entry points.

MODES = SpecRegistry(
    Mode,
    "manager",
    kind="mode",
    call="cnnbench.variable_mgr.register_mode(Mode(...))",
    flag="variable_update",
    group="cnnbench.variable_mgr",
)
"""All modes by name."""
MODES.update({mode.name: mode for mode in BUILT_IN})

register_mode = MODES.register
find_mode = MODES.find


def names() -> tuple[str, ...]:
    """Returns the names of all modes of --variable_update: built-in modes, then plug-ins'."""
    MODES.load_packages()
    return tuple(MODES)


def load_plugin(path: str) -> tuple[str, ...]:
    """Runs a plug-in file; returns the names of the modes that it registers."""
    return tuple(map(str, plugins.load_plugin_file(path)["mode"]))


class _ModeNames(Sequence[str]):
    """Names of all modes, as the choices of a flag, including modes that plug-ins add later.

    If an entry point fails, its modes are missing in this sequence. `find_mode` raises the error
    for an unknown name.
    """

    def __contains__(self, name: object) -> bool:
        return name in MODES or name in names()

    def __len__(self) -> int:
        return len(self._all_names())

    def __getitem__(self, index: Any) -> Any:
        return self._all_names()[index]

    def __bool__(self) -> bool:
        return True

    def _all_names(self) -> tuple[str, ...]:
        try:
            return names()
        except UsageError:
            return tuple(MODES)


NAMES = _ModeNames()


# Specifications from which a `VariableMgr` is created, without importing TensorFlow.

MOST_PACKS = 500
"""Largest number of packs. A reduction runs for each, and thousands take minutes to start."""

_Packing = TypeVar("_Packing", bound="Packing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Settings of the stages that transform gradients before and after their reduction.

    Fields have the names of the flags, and are keys in records of reductions. If you add a field,
    declare it with ``field(default=..., metadata={"optional": True})``, because earlier records
    lack it.

    Attributes:
      gradient_repacking: number of flat packs into which all gradients are joined, at most 500;
        0 for no packing.
      agg_small_grads_max_bytes: largest gradient, in bytes, that is joined with others; 0 for none.
      agg_small_grads_max_group: largest number of small gradients that are joined into one.
      gradient_bucket_bytes: largest size of a bucket of joined gradients, in bytes; 0 for none.
      compact_dtype: "float16" or "bfloat16" to send 16-bit gradients; None sends float32.
      allreduce_merge_scope: number of consecutive tensors that share a name scope.
      variable_consistency: "strong", or "relaxed" to apply gradients one step late.
    """

    gradient_repacking: int = 0
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = 10
    compact_dtype: str | None = None
    allreduce_merge_scope: int = 1
    variable_consistency: str = "strong"
    gradient_bucket_bytes: int = dataclasses.field(default=0, metadata={"optional": True})

    @classmethod
    def from_flags(cls: type[_Packing], flags: Mapping[str, Any], **changes: Any) -> _Packing:
        """Creates a packing from values of flags, by name.

        Flags that are no settings of a packing are ignored. Missing flags get their defaults.
        """
        values = {**flags, **changes}
        names = (field.name for field in dataclasses.fields(cls))
        return cls(**{name: values[name] for name in names if name in values})

    @property
    def applies_gradients_late(self) -> bool:
        """Whether each step applies the gradients of the previous step."""
        return self.variable_consistency == "relaxed"

    @property
    def joins_gradients(self) -> bool:
        """Whether any setting joins several gradients into larger tensors."""
        return bool(
            self.gradient_repacking or self.agg_small_grads_max_bytes or self.gradient_bucket_bytes
        )

    def __str__(self) -> str:
        parts = []
        if self.agg_small_grads_max_bytes:
            parts.append(f"small{self.agg_small_grads_max_bytes}x{self.agg_small_grads_max_group}")
        if self.gradient_bucket_bytes:
            parts.append(f"buckets{self.gradient_bucket_bytes}")
        if self.gradient_repacking:
            parts.append(f"packs{self.gradient_repacking}")
        if self.compact_dtype:
            parts.append(self.compact_dtype)
        if self.allreduce_merge_scope > 1:
            parts.append(f"scope{self.allreduce_merge_scope}")
        if self.applies_gradients_late:
            parts.append("relaxed")
        return "+".join(parts) or "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationSpec(Packing):
    """How gradients are aggregated: the all-reduce, and the packing before and after it.

    Attributes:
      network_topology: "dgx1" or "gcp_v100", the machine whose links hierarchical copies use.
      sparse_to_dense: whether sparse gradients are made dense before they are sent.
      group_size: devices in a group of two-level algorithms; 0 for all devices of a process.
      shared_cards: whether several devices are parts of one GPU.
    """

    all_reduce: AllReduceSpec = single("copy")
    network_topology: str = "dgx1"
    sparse_to_dense: bool = False
    group_size: int = 0
    share_memory: bool = True
    communication_hint: str = "auto"
    shared_cards: bool = False


# Reductions of the strategies of tf.distribute.
CROSS_DEVICE_OPS = ("auto", "reduction_to_one_device", "hierarchical_copy", "nccl", "ring")
COLLECTIVE = ("auto", "ring")
"""Values of `CROSS_DEVICE_OPS` that are TensorFlow's collectives, which pack tensors by bytes."""
BETWEEN_WORKERS = ("auto", "ring", "nccl")
"""Values of `CROSS_DEVICE_OPS` that work between processes, where they pack tensors by bytes."""
IN_PACKS = ("hierarchical_copy", "nccl")
"""Values of `CROSS_DEVICE_OPS` that join tensors into a number of packs, within a process."""
_ON_GPUS = ("nccl",)


@dataclass(frozen=True, kw_only=True)
class CrossDeviceSpec:
    """How a strategy of tf.distribute reduces gradients between its devices.

    Attributes:
      ops: one of `CROSS_DEVICE_OPS`; "auto" is a collective operation: a ring on CPUs, NCCL on
        GPUs.
      pack_bytes: bytes of the tensors that a collective operation joins; 0 joins all.
      packs: number of packs of hierarchical copies and NCCL; 0 for no packing.
      shared_cards: whether several devices are parts of one GPU; "auto" is then a ring.
    """

    ops: str = "auto"
    pack_bytes: int = 0
    packs: int = 1
    shared_cards: bool = False

    def check_devices(self, devices: Sequence[str]) -> None:
        """Raises FlagError if the reduction fails on `devices` or computes wrong sums."""
        on_gpu = all(map(is_gpu, devices))
        refuse_devices(self.ops, len(devices), on_gpu=on_gpu, shared_cards=self.shared_cards)

    def resolved_ops(self, on_gpu: bool) -> str:
        """Returns the operation that runs, such as "nccl" or "ring" if `ops` is "auto"."""
        auto = "nccl" if on_gpu and not self.shared_cards else "ring"
        return auto if self.ops == "auto" else self.ops


def alternatives_to_auto(*, on_gpu: bool) -> tuple[str, ...]:
    """Values of `CROSS_DEVICE_OPS` with other operations than "auto", for GPUs or for CPUs."""
    same = ("auto", CrossDeviceSpec().resolved_ops(on_gpu))
    usable = (ops for ops in CROSS_DEVICE_OPS if on_gpu or ops not in _ON_GPUS)
    return tuple(ops for ops in usable if ops not in same)


def refuse_cpu_towers(job: Job) -> None:
    """Raises FlagError for several towers on a CPU: MultiWorkerMirroredStrategy uses only one."""
    if job.device == "cpu" and job.towers_per_worker > 1:
        raise FlagError(
            "num_gpus",
            job.towers_per_worker,
            "must be 1 on CPUs, because MultiWorkerMirroredStrategy uses one CPU per process; "
            "start more workers",
        )


def refuse_devices(
    ops: str, count: int, *, on_gpu: bool, shared_cards: bool = False
) -> None:
    """Raises FlagError if the value `ops` of --cross_device_ops does not support the devices.

    `shared_cards` is whether several devices are parts of one GPU.
    """
    if ops in _ON_GPUS and not on_gpu:
        raise FlagError("cross_device_ops", ops, "needs GPUs; use ring on CPUs")
    if ops == "nccl" and shared_cards:
        reason = "NCCL refuses two devices on one card (--gpus_per_card); use ring"
        raise FlagError("cross_device_ops", ops, reason)
    if ops == "hierarchical_copy" and count > 1 and count % 2:
        # In TensorFlow 2.21, hierarchical copy adds 1, 10 and 100 on three devices to 11.
        raise FlagError(
            "cross_device_ops",
            ops,
            f"leaves out the last of {count} devices; use an even number of devices",
        )


# Configuration of a variable manager.

REDUCTIONS = ("mean", "sum")
PARAMETER_DEVICES = ("cpu", "towers")
PS_STRATEGIES = ("greedy_bytes", "round_robin")
CACHING_POLICIES = ("none", "consumer", "cpu")


class InitializerLike(Protocol):
    """Interface of initializers. `cnnbench.models.spec.Initializer` implements it.

    If `kind` is "constant", every element is `value`. If `draw` is not None, ``draw(name, seed,
    tower)`` returns the value. Otherwise values are drawn from a truncated normal distribution.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def value(self) -> float: ...  # noqa: D102

    @property
    def draw(self) -> Callable[[str, int, int], Array] | None: ...  # noqa: D102

    def draw_stddev(self, shape: Sequence[int]) -> float:
        """Returns the standard deviation of a truncated normal for a variable of this shape.

        Values are truncated at two of these standard deviations.
        """


class VariableLike(Protocol):
    """Interface of declared variables, such as `models.spec.VariableSpec`.

    `bytes` is the size as float32.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def initializer(self) -> InitializerLike: ...  # noqa: D102
    @property
    def trainable(self) -> bool: ...  # noqa: D102
    @property
    def fits_16_bits(self) -> bool: ...  # noqa: D102
    @property
    def bytes(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class VariableMgrSpec:
    """Configuration of a variable manager: mode, devices, and reduction of gradients.

    Attributes:
      devices: full device string of each tower, such as
        "/job:localhost/replica:0/task:0/device:GPU:0"; towers may share a device.
      cpu_device: full device string of the CPU for parameter_device "cpu".
      parameter_device: "cpu" puts shared variables and reductions on `cpu_device`;
        "towers" spreads shared variables greedily by bytes over the tower devices
        and reduces tensor i on tower device i mod N.
      ps_devices: full device strings of the CPUs of the ps tasks. If there are any, shared
        variables are stored only there.
      ps_strategy: "greedy_bytes", a variable goes to the ps task with the fewest bytes so far, or
        "round_robin".
      variable_caching: how often a step copies a ps variable. "consumer": once for each device that
        computes with it. "cpu": once for each worker, to its CPU. "none": at every read.
      variable_dtype: dtype of stored variables. Variables that need more than 16 bits are float32.
      reduction: "mean" or "sum" of the gradients over towers.
      staged: whether a step uses the variable values that the previous step read.
      job: all tasks of the run; `devices` may contain only some of its towers. None for a run in
        one process.
    """

    mode: Mode
    devices: tuple[str, ...]
    cpu_device: str
    parameter_device: str = "cpu"
    ps_devices: tuple[str, ...] = ()
    ps_strategy: str = "greedy_bytes"
    variable_caching: str = "none"
    variable_dtype: str = "float32"
    reduction: str = "mean"
    staged: bool = False
    aggregation: AggregationSpec = field(default_factory=AggregationSpec)
    cross_device: CrossDeviceSpec = field(default_factory=CrossDeviceSpec)
    seed: int = 0
    job: Job | None = None

    def __post_init__(self) -> None:
        if not self.devices:
            raise FlagError("num_gpus", 0, "a variable manager needs at least one tower device")
        for flag, value, choices in (
            ("gradient_reduction", self.reduction, REDUCTIONS),
            ("local_parameter_device", self.parameter_device, PARAMETER_DEVICES),
            ("ps_strategy", self.ps_strategy, PS_STRATEGIES),
            ("variable_caching", self.variable_caching, CACHING_POLICIES),
        ):
            if value not in choices:
                raise FlagError(flag, value, unknown_name_reason(value, choices))

    @property
    def variable_devices(self) -> tuple[str, ...]:
        """The devices on which shared variables are stored."""
        if self.ps_devices:
            return self.ps_devices
        return (self.cpu_device,) if self.parameter_device == "cpu" else self.devices

    def variable_device_chooser(self) -> Chooser:
        """Creates a function that assigns each shared variable to a device.

        The devices are `variable_devices`. Use one function for the whole run.
        """
        rotates = self.ps_devices and self.ps_strategy == "round_robin"
        choose = round_robin_chooser if rotates else least_bytes_chooser
        return choose(self.variable_devices)

    def caching_device(self, reader: str) -> str | None:
        """Returns the device that caches a shared variable for the device `reader`.

        Returns None if the variable is not cached.
        """
        if not self.ps_devices or self.variable_caching == "none":
            return None
        return reader if self.variable_caching == "consumer" else cpu_of_device(reader)

    @property
    def reduction_scale(self) -> float | None:
        """Factor by which the sum of gradients over towers is multiplied; None if it is 1."""
        if self.reduction == "sum" or self.num_towers == 1:
            return None
        return 1.0 / self.num_towers

    @property
    def num_towers(self) -> int:
        """Number of towers of the whole job, over which gradients are reduced."""
        return len(self.devices) if self.job is None else self.job.num_towers

    @property
    def all_devices(self) -> tuple[str, ...]:
        """The devices of all towers of the job, including towers of other workers."""
        return self.devices if self.job is None else self.job.tower_devices

    @property
    def cpu_devices(self) -> tuple[str, ...]:
        """One CPU of each process that has towers; only `cpu_device` outside a cluster."""
        if self.job is None or not self.job.in_cluster:
            return (self.cpu_device,)
        return tuple(dict.fromkeys(map(cpu_of_device, self.devices)))
