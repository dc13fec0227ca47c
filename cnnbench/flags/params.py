"""`Params`: the values of all flags of a run."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from cnnbench.base import plugins
from cnnbench.base.job import PS
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.declare import FlagSpec, specs_of
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
from cnnbench.flags.obsolete import OBSOLETE, RENAMED, accept_obsolete
from cnnbench.optimizers.clipping import CLIPPINGS
from cnnbench.optimizers.spec import Constant
from cnnbench.records.endings import ENDINGS

P = ParamSpec("P")
R = TypeVar("R")


def unset_notices(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns a notice for every flag whose value means that it is not given, because the value may
    come from a shell variable that is not set.
    """
    return tuple(
        f"--{name}={SPECS[name].unset} is the same as no --{name}, as in tf_cnn_benchmarks"
        for name, value in values.items()
        if value is None and name in SPECS and SPECS[name].unset is not None
    )


def _typed_like(
    source: Callable[P, object],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """Decorator for a method: tells type checkers that it has the arguments of `source`."""
    del source
    return lambda method: method


# A hidden constant instead of frozen=True: if mypy knew that `Params` is frozen, it would take the
# types that may be given (see `given`) for the types that are read. Assignments to flags are still
# refused, because mypy knows that the groups are frozen.
_FROZEN: Mapping[str, bool] = {"frozen": True}
# Making these methods takes 10 ms. The groups need none, because those of `Params` replace them.
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
      constants: values of constants and bounds that are not arguments, such as constants of the
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
        # Job files of tf_cnn_benchmarks pass --num_gpus=0 to parameter servers, which the limits of
        # the flag would refuse.
        if self.job_name == PS and self.num_gpus == 0:
            object.__setattr__(self, "num_gpus", 1)

    # Hidden from type checkers; otherwise, they would accept misspelled names.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Returns the value of a constant without a field. Its plug-in may have been loaded
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

    @_typed_like(_Fields)
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

        Constants without a field are included if the optimizer or the schedule in use has them,
        and all thresholds of gradient clipping and limits of the loop.
        """
        used = [table.get(getattr(self, owner)) for owner, table in REGISTRIES.items()]
        names = {*ENDINGS, *CLIPPINGS, *(flag for spec in used if spec for flag in spec.flags)}
        added = added_flags().keys() & names
        own = ((spec.name, getattr(self, spec.name)) for spec in FLAGS)
        return {
            # Values that a parser created, such as durations, are stored as the text that was
            # parsed.
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
"""Functions that return the flags of a group that are not declared as fields of its dataclass."""

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
    """Returns, by name, the flags that are not declared as fields of `Params`: flags that end the
    timed loop, thresholds of gradient clipping, and constants of optimizers and schedules.
    """
    return {name: spec for flags in ADDED.values() for name, spec in flags().items()}


_CONSTANTS = "constants"
_NAME = re.compile("[a-z][a-z0-9_]*")


def load_plugin_flags(values: Mapping[str, Any]) -> Mapping[str, FlagSpec]:
    """Loads the plug-ins that the flag values name, and returns `added_flags`."""
    plugins.load_plugins_of_flags(values)
    for owner, table in REGISTRIES.items():
        if isinstance(values.get(owner), str):
            # `find` also loads installed plug-ins, one of which may register this optimizer or
            # schedule.
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


def _check_flag(owner: str, name: str, constant: Constant) -> None:
    """Raises UsageError if a plug-in adds a flag with an invalid or existing name, an invalid help
    text, or an invalid default.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(constant.help, str):
        wanted = "a name of lower-case letters, digits and _, and a text as its help"
        raise UsageError(f"a flag that a plug-in adds needs {wanted}; its name is {name!r}")
    if name in {*ACCEPTED, *RENAMED, _CONSTANTS} or hasattr(Params, name):
        raise UsageError(f"the flag --{name} exists already; choose another name")
    constant_flag(name, constant, owner, "").check(constant.default)


for _owner, _table in REGISTRIES.items():
    _table.check_flag = functools.partial(_check_flag, _owner)
