"""Defines `Params` (the values of all flags of a run), the obsolete flags, and which flag values
identify a run.

Obsolete flags of tf_cnn_benchmarks are accepted and have no effect. If the value of an obsolete
flag is not its old default, a notice names the alternatives (`help`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cnnbench.base import plugins
from cnnbench.base.job import PS
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.declare import ComparedBy, FlagSpec, RunPart, flag, specs_of
from cnnbench.flags.groups.cluster import ClusterParams
from cnnbench.flags.groups.data import DataParams
from cnnbench.flags.groups.model import ModelParams
from cnnbench.flags.groups.optimizer import (
    REGISTRIES,
    OptimizerParams,
    added_constants,
    constant_flag,
)
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.groups.run import RunParams, added_endings
from cnnbench.flags.groups.runtime import RuntimeParams
from cnnbench.flags.groups.strategies import StrategyParams
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.optimizers.clipping import CLIPPINGS
from cnnbench.optimizers.spec import Constant
from cnnbench.records.codec import encode
from cnnbench.records.endings import ENDINGS

# Job files still use obsolete and renamed flags of tf_cnn_benchmarks and its forks.

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

_GPU_TRACKER = "TensorFlow 2 schedules GPU kernels itself; leave the flag out."
_TENSORRT = "TensorFlow is built without TensorRT; use --freeze_when_forward_only and --precision."
_SHARED_GPU = "To share a GPU between processes, use --allow_growth."
_OPENMP = "TensorFlow's CPU kernels run on TensorFlow's own threads; use --num_intra_threads."


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ObsoleteParams:
    """Flags of tf_cnn_benchmarks that are accepted without effect, and no part of ``Params``."""

    batch_group_size: int = flag(1, "Use --datasets_prefetch_buffer_size.")
    use_datasets: bool = flag(True, "To measure without input by tf.data, leave out --data_dir.")
    single_l2_loss_op: bool = flag(False, "To measure without the L2 loss, use --weight_decay=0.")
    use_tf_layers: bool = flag(
        True, "Networks are always built in the same way; leave the flag out."
    )
    use_resource_vars: bool = flag(
        False, "Variables are always resource variables; leave the flag out."
    )
    use_python32_barrier: bool = flag(False, "cnnbench has no producer thread; leave the flag out.")
    compute_lr_on_cpu: bool = flag(
        False, "The host always computes the learning rate; leave the flag out."
    )
    sync_on_finish: bool = flag(
        False, "cnnbench always waits for every timed step; leave the flag out."
    )
    use_numa_affinity: bool = flag(False, "Start cnnbench under numactl --cpunodebind instead.")
    force_gpu_compatible: bool = flag(False, "Use --datasets_use_prefetch, which is on by default.")
    gpu_memory_frac_for_testing: float = flag(0.0, _SHARED_GPU, minimum=0)
    gpu_mem_fraction: float = flag(0.0, _SHARED_GPU, minimum=0)
    timestamped_allocator: bool = flag(False, "Set TF_GPU_ALLOCATOR=cuda_malloc_async instead.")
    gpu_kt_max_interval: int = flag(0, _GPU_TRACKER)
    gpu_kt_max_bytes: int = flag(0, _GPU_TRACKER)
    gpu_kt_max_pending: int = flag(0, _GPU_TRACKER)
    mkl: bool = flag(False, "Set TF_ENABLE_ONEDNN_OPTS=0 or 1: oneDNN is built in.")
    kmp_blocktime: int = flag(0, _OPENMP)
    kmp_affinity: str = flag("granularity=fine,verbose,compact,1,0", _OPENMP)
    kmp_settings: int = flag(1, _OPENMP)
    rewriter_config: str | None = flag(
        None, "To switch the graph optimizer off, use --noenable_optimizations.", unset=""
    )
    trt_mode: str = flag("", _TENSORRT, choices=("", "FP32", "FP16", "INT8"))
    trt_max_workspace_size_bytes: int = flag(4 << 30, _TENSORRT, maximum=2**63 - 1)
    horovod_device: str = flag(
        "", "To choose where gradients are reduced, use --local_parameter_device."
    )
    flush_stdout: bool = flag(False, "Every line is flushed at once; leave the flag out.")
    use_nccl: bool = flag(True, "Use --all_reduce_spec=nccl.")
    use_multi_device_iterator: bool = flag(
        True, "Each device always gets its own batches; leave the flag out."
    )
    use_data_sets: bool = flag(False, "Input always comes from tf.data; leave the flag out.")
    datasets_prefetch_threadpool_size: int = flag(1, "Use --datasets_num_private_threads.")
    enable_layout_optimizer: bool = flag(
        False, "To switch the graph optimizer off, use --noenable_optimizations."
    )
    memory_optimization: str = flag(
        "", "TensorFlow's graph optimizer decides this; leave the flag out."
    )
    gpu_pending_cap: int = flag(0, _GPU_TRACKER)
    num_omp_threads: int = flag(0, _OPENMP)
    result_storage: str | None = flag(None, "Use --result_json or --benchmark_log_dir.")
    pretrain_dir: str | None = flag(None, "Use --train_dir or --backbone_model_path.")
    debugger: str | None = flag(
        None, "TensorFlow 2 has no tfdbg. If the loss is not finite, the run reports it at once."
    )


_STDERR = (
    "Every line that is not a result goes to standard error; to write these lines to a file, add "
    "2>FILE."
)
_PDB = "Start python -m pdb -m cnnbench with the same flags."
_PROFILING = "Start python -m cProfile -o FILE -m cnnbench with the same flags."
_LEVELS = (
    "The lines of cnnbench have no levels. To set the level of TensorFlow's lines, set "
    "TF_CPP_MIN_LOG_LEVEL to 0, 1, 2 or 3."
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AbslParams:
    """Flags that absl.app adds to every program. They are not part of ``Params``.

    A default is what cnnbench always does, so setting a flag to its default causes no notice.
    """

    only_check_args: bool = flag(
        False, "Check the flags of cnnbench run, print the resolved plan and end with exit code 0."
    )
    verbosity: int = flag(0, _LEVELS, short="v")
    logger_levels: str = flag("", _LEVELS)
    stderrthreshold: str = flag("info", _LEVELS)
    logtostderr: bool = flag(True, _STDERR)
    alsologtostderr: bool = flag(True, _STDERR)
    log_dir: str = flag("", _STDERR)
    showprefixforinfo: bool = flag(False, 'The only prefix of lines is "cnnbench: ".')
    run_with_pdb: bool = flag(False, _PDB)
    pdb_post_mortem: bool = flag(False, _PDB)
    pdb: bool = flag(False, _PDB)
    run_with_profiling: bool = flag(False, _PROFILING)
    profile_file: str | None = flag(None, _PROFILING)
    use_cprofile_for_profiling: bool = flag(True, _PROFILING)


ONLY_CHECK = "only_check_args"

ABSL: tuple[FlagSpec, ...] = specs_of(AbslParams)
"""Flags of absl.app. Only --only_check_args has an effect."""

OBSOLETE: tuple[FlagSpec, ...] = (*specs_of(ObsoleteParams), *ABSL)
"""Accepted flags that are not fields of ``Params``. Flags of absl.app come last."""

RENAMED: Mapping[str, str] = {
    "only_check_flags": ONLY_CHECK,
    "learning_rate": "init_learning_rate",
    "checkpoint_directory": "train_dir",
    "cache_data": "datasets_repeat_cached_sample",
}
"""New names by old names, which early versions and forks of tf_cnn_benchmarks use."""

REMOVED: Mapping[str, str] = {
    **dict.fromkeys(("model_plugin", "dataset_plugin", "variable_mgr_plugin"), "use --plugin"),
    "points": "--predict takes published or measured figures of a link: --link=PRESET or "
    "--link=alpha=SECONDS,bandwidth=BYTES_PER_SECOND (cnnbench docs cost_model)",
}
"""Flags of earlier versions that are refused, with their replacements."""


def obsolete_notices(values_given: Mapping[str, Any], *, of_run: bool = False) -> tuple[str, ...]:
    """Returns a notice for every given flag without effect, unless its value is the default.

    FlagError for an invalid value. If `of_run` is False, also FlagError for --only_check_args.
    """
    notices = []
    for spec in (spec for spec in OBSOLETE if spec.name in values_given):
        value = spec.normalise_or_parse(values_given[spec.name])
        spec.check(value)
        if spec.name == ONLY_CHECK and value and not of_run:
            raise FlagError(ONLY_CHECK, value, "works only in cnnbench run")
        if spec.name != ONLY_CHECK and value != spec.default:
            missing = "effect" if spec in ABSL else "meaning in TensorFlow 2"
            notices.append(f"--{spec.name}={spec.text(value)} has no {missing}. {spec.help}")
    return tuple(notices)


def renamed_notices(names: Container[str]) -> tuple[str, ...]:
    """Returns a notice for every flag that was given by its old name."""
    return tuple(f"--{old} was renamed to --{new}" for old, new in RENAMED.items() if old in names)


def unset_notices(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a notice for every flag whose value means that it is not given, because the value may
    come from a shell variable that is not set.
    """
    return tuple(
        f"--{name}={SPECS[name].unset} is the same as no --{name}, as in tf_cnn_benchmarks"
        for name, value in values.items()
        if value is None and name in SPECS and SPECS[name].unset is not None
    )


def accept_obsolete(params: type[T]) -> type[T]:
    """Class decorator for parameters: obsolete flags and old names of flags are accepted as
    arguments, with a warning.
    """
    init = params.__init__

    @functools.wraps(init)
    def init_with_obsolete(self: T, **values: Any) -> None:
        for old, new in RENAMED.items():
            if old in values and new in values:
                raise FlagError(old, values[old], f"was renamed to --{new}; give one of the two")
        for notice in obsolete_notices(values) + renamed_notices(values):
            warnings.warn(notice, stacklevel=2)
        obsolete = {spec.name for spec in OBSOLETE}
        init(self, **{RENAMED.get(n, n): values[n] for n in values if n not in obsolete})

    params.__init__ = init_with_obsolete  # type: ignore[method-assign,assignment]
    return params


def _arguments_of(
    source: Callable[P, object],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Decorator for a method: tells type checkers that it has the arguments of `source`."""
    del source
    return lambda method: method


# All flags of a run as one immutable value

# Hidden from type checkers: if mypy knew that a subclass of the groups is frozen, it would read
# flags with the types with which they are given (see `given`). The groups are frozen for mypy, so
# it still refuses assignments to flags.
_FROZEN: Mapping[str, bool] = {"frozen": True}
# The groups, too, have no methods: those of `Params` replace them, and making them takes 10 ms.
_WITHOUT_METHODS: Mapping[str, bool] = {**_FROZEN, "init": False, "repr": False, "eq": False}


@dataclass(kw_only=True, **_WITHOUT_METHODS)
class _Fields(  # type: ignore[misc]
    RunParams,
    ModelParams,
    DataParams,
    OptimizerParams,
    VariableUpdateParams,
    StrategyParams,
    ClusterParams,
    RuntimeParams,
    OutputParams,
):
    """The arguments of `Params`, in a class of their own so that `Params.replace` can name them."""

    constants: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)


@accept_obsolete
@dataclass(kw_only=True, **_FROZEN)
class Params(_Fields):  # type: ignore[misc]
    """All parameters of a run. Each field is the flag of the same name.

    Values are normalised (device names in lower case, numbers as floats, ``use_fp16`` equal to
    ``precision == "fp16"``), and text for other types is parsed as on the command line.
    `cnnbench.plan.make_plan` checks the values. Renamed and obsolete flags are accepted with a
    warning. FlagError for text that cannot be parsed, an invalid value of an obsolete flag, or a
    flag that is given by both its old and its new name.

    Attributes:
      constants: values of constants and bounds that are no arguments, such as constants of the
        optimizers and schedules of plug-ins, by the name of their flag: ``{"my_momentum": 0.5}``.
        Values that equal the default are left out. At run time, each constant can also be read as
        an attribute with the name of its flag.
    """

    def __post_init__(self) -> None:
        for spec in FLAGS:
            object.__setattr__(self, spec.name, spec.normalise_or_parse(getattr(self, spec.name)))
        object.__setattr__(self, _CONSTANTS, _changed_constants(self))
        if self.precision == "fp16" and self.use_fp16 is False:
            object.__setattr__(self, "use_fp16", True)
        elif self.use_fp16 is True and self.precision == "fp32":
            object.__setattr__(self, "precision", "fp16")
        # Job files of tf_cnn_benchmarks pass --num_gpus=0 to parameter servers.
        if self.job_name == PS and self.num_gpus == 0:
            object.__setattr__(self, "num_gpus", 1)

    # Type checkers do not see this method, so that they report misspelled names.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Returns the value of a constant that is no field. Its plug-in may have been loaded
            after this object was created.
            """
            if not name.startswith("_") and (spec := added_flags().get(name)):
                return self.constants.get(name, spec.default)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Params:
        """Creates parameters from the values of flags by name, as `as_dict` returns them: constants
        are flags, too. FlagError if a text cannot be parsed.
        """
        if values.keys() - ACCEPTED.keys() - RENAMED.keys():
            load_plugin_flags(values)
        constants = {name: values[name] for name in added_flags() if name in values}
        flags = {name: value for name, value in values.items() if name not in constants}
        return cls(**flags, constants=constants)

    @_arguments_of(_Fields)
    def replace(self, **changes: Any) -> Params:
        """Returns a copy with changed values. ``precision`` and ``use_fp16`` remain consistent."""
        if "precision" in changes:
            changes.setdefault("use_fp16", changes["precision"] == "fp16")
        elif self.precision == "fp16" and changes.get("use_fp16") is False:
            changes["precision"] = "fp32"
        return dataclasses.replace(self, **changes)

    def changed(self, flag: str) -> bool:
        """Whether the value of a flag differs from its default."""
        return bool(getattr(self, flag) != SPECS[flag].default)

    def text(self, flag: str) -> str:
        """Returns the value of a flag as it is written on the command line."""
        return SPECS[flag].text(getattr(self, flag))

    def as_dict(self) -> dict[str, Any]:
        """Returns the values of all flags by name, as records store them, in the order of
        declaration.

        Constants that are no fields are included if the optimizer or the schedule in use has them,
        and all bounds of clippings and of the loop.
        """
        used = [table.get(getattr(self, owner)) for owner, table in REGISTRIES.items()]
        names = {*ENDINGS, *CLIPPINGS, *(flag for spec in used if spec for flag in spec.flags)}
        added = added_flags().keys() & names
        own = ((spec.name, getattr(self, spec.name)) for spec in FLAGS)
        return {
            # Objects that a parser created are stored as the parsed text (attribute `source`).
            **{name: getattr(value, "source", value) for name, value in own},
            **{name: getattr(self, name) for name in sorted(added)},
        }


GROUPS: tuple[tuple[str, type], ...] = (
    ("What to run", RunParams),
    ("Model and precision", ModelParams),
    ("Data", DataParams),
    ("Optimizer and learning rate", OptimizerParams),
    ("Variables and gradients", VariableUpdateParams),
    ("Strategies of tf.distribute", StrategyParams),
    ("Cluster", ClusterParams),
    ("Devices, threads, compiler", RuntimeParams),
    ("Output", OutputParams),
)
"""Title and dataclass of every group of flags, in the order of the help."""

ADDED: Mapping[type, Callable[[], Mapping[str, FlagSpec]]] = {
    RunParams: added_endings,
    OptimizerParams: added_constants,
}
"""Functions that return the flags of a group that are no fields of its dataclass."""

FLAGS: tuple[FlagSpec, ...] = tuple(spec for _, group in GROUPS for spec in specs_of(group))
"""All flags that are fields of ``Params``, in the order of the help."""


class _FlagsAndConstants(Mapping[str, FlagSpec]):
    """Mapping from names to flags: first the given flags, then `added_flags`."""

    def __init__(self, own: Iterable[FlagSpec]) -> None:
        self._own = {spec.name: spec for spec in own}

    def __getitem__(self, name: str) -> FlagSpec:
        return self._own[name] if name in self._own else added_flags()[name]

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self._own, added_flags())

    def __len__(self) -> int:
        return len(self._own) + len(added_flags())


SPECS: Mapping[str, FlagSpec] = _FlagsAndConstants(FLAGS)
"""The flags in `FLAGS` and `added_flags`, by name."""

ACCEPTED: Mapping[str, FlagSpec] = _FlagsAndConstants((*FLAGS, *OBSOLETE))
"""All flags that a run accepts, by name. Obsolete flags have no effect."""


def added_flags() -> dict[str, FlagSpec]:
    """Returns the flags that are no fields of `Params`, by name: flags that end the timed loop,
    bounds of clippings, and constants of optimizers and schedules.
    """
    return {name: spec for flags in ADDED.values() for name, spec in flags().items()}


_CONSTANTS = "constants"
_NAME = re.compile("[a-z][a-z0-9_]*")


def load_plugin_flags(values: Mapping[str, Any]) -> Mapping[str, FlagSpec]:
    """Loads the plug-ins that the flag values name, and returns `added_flags`."""
    plugins.load_plugins_of_flags(values)
    for owner, table in REGISTRIES.items():
        if isinstance(values.get(owner), str):
            # `find` loads installed plug-ins, which may register this optimizer or schedule.
            table.find(values[owner])
    return added_flags()


def _changed_constants(params: Params) -> dict[str, float]:
    """Reads the values of `added_flags`, and leaves out those that are defaults.
    FlagError for an unknown constant.
    """
    if params.constants.keys() - added_flags().keys():
        load_plugin_flags(vars(params))
    specs = added_flags()
    changed: dict[str, float] = {}
    for name, given in params.constants.items():
        if name not in specs:
            raise FlagError(name, given, "no optimizer or schedule of a plug-in has this constant")
        value = specs[name].normalise_or_parse(given)
        if value != specs[name].default:
            changed[name] = value
    return changed


def _check_plugin_flag(owner: str, name: str, constant: Constant) -> None:
    """Raises UsageError if a plug-in adds a flag with an invalid or existing name, an invalid help
    text, or an invalid default.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(constant.help, str):
        wanted = "a name of lower-case letters, digits and _, and a text as its help"
        raise UsageError(f"a flag that a plug-in adds needs {wanted}; its name is {name!r}")
    if name in {*ACCEPTED, *RENAMED, *REMOVED, _CONSTANTS} or hasattr(Params, name):
        raise UsageError(f"the flag --{name} exists already; choose another name")
    constant_flag(name, constant, owner, "").check(constant.default)


for _owner, _table in REGISTRIES.items():
    _table.check_flag = functools.partial(_check_plugin_flag, _owner)


_OF_RUNS = {**ACCEPTED}


@functools.cache
def _compared_flags() -> Mapping[str, FlagSpec]:
    """The flags of runs and of ``cnnbench allreduce``, which most commands do not need, by name."""
    from cnnbench.flags.groups.all_reduce import ALL_REDUCE_FLAGS

    return {**{spec.name: spec for spec in ALL_REDUCE_FLAGS}, **_OF_RUNS}


def flags_compared_by(*ways: ComparedBy) -> tuple[str, ...]:
    """Returns the names of the flags that are compared in one of the given ways. For example,
    `ComparedBy.VALUE` selects the flags whose value must be equal in all repetitions of a run.
    """
    return tuple(name for name, spec in _compared_flags().items() if spec.compared_by in ways)


def is_place(spec: FlagSpec) -> bool:
    """Whether a flag names data, code, machines or devices, which differ between machines."""
    of_place = spec.compared_by in (ComparedBy.PRESENCE, ComparedBy.NUMBER)
    return of_place and not spec.part & RunPart.PROFILE


def identity_flags(values: Mapping[str, Any], *, of_places: bool = False) -> dict[str, Any]:
    """Selects the flag values that identify a run: two runs for which the result is equal are
    repetitions of each other. `values` are flag values by name, as records store them.

    If `of_places` is True, the result includes data, code, machines and devices, so that a run with
    a different data set is a different run. If it is False, runs on several machines can have the
    same identity. Unknown flags of older records are included.
    """
    known = _compared_flags()
    by_name = {}
    for name, value in values.items():
        spec = known.get(name)
        way = ComparedBy.VALUE if spec is None else spec.compared_by
        if way is ComparedBy.VALUE or (of_places and spec is not None and is_place(spec)):
            by_name[name] = value
        elif way is ComparedBy.PRESENCE:
            by_name[name] = bool(value)
        elif way is ComparedBy.NUMBER:
            by_name[name] = len(str(value).split(",")) if value else 0
    return by_name


@functools.cache
def recorded_defaults() -> Mapping[str, Any]:
    """Returns the default values of all flags, as records store them. Records of earlier versions
    lack flags that were added later; these flags have the values of this mapping.
    """
    # Records of earlier versions also contain flags that no longer exist.
    return {
        spec.name: encode(spec.default if spec.before is None else spec.before)
        for spec in (*FLAGS, *OBSOLETE)
    }


def changed_flags(
    config: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the flags of a record that differ from `defaults` (None: `recorded_defaults`). Types
    are compared, too: 0, 0.0 and False are equal in Python, but not in JSON. A flag that no longer
    exists differs unless its value is None.
    """
    usual = recorded_defaults() if defaults is None else defaults
    return {
        name: value
        for name, value in config.items()
        if (default := usual.get(name)) is not value
        and (default != value or type(default) is not type(value))
    }


def changed_identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags of a record that identify the run and differ from their defaults. Together
    with the defaults, they determine the configuration of the run.
    """
    counted = identity_flags(config)
    return {name: value for name, value in changed_flags(config).items() if name in counted}
