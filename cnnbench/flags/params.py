"""All parameters of a run as one frozen value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from cnnbench.base.jobs.job import PS
from cnnbench.errors import FlagError
from cnnbench.flags.declare import FlagSpec, specs_of
from cnnbench.flags.groups.cluster import ClusterParams
from cnnbench.flags.groups.data import DataParams
from cnnbench.flags.groups.model import ModelParams
from cnnbench.flags.groups.optimizer import OptimizerParams
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.groups.run import RunParams
from cnnbench.flags.groups.runtime import RuntimeParams
from cnnbench.flags.groups.strategies import StrategyParams
from cnnbench.flags.groups.variable_update import VariableUpdateParams
from cnnbench.flags.retired import OBSOLETE, accepts_retired

G = TypeVar("G")


@accepts_retired
@dataclass(frozen=True, kw_only=True)
class Params(
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
    """Every parameter of a run; a field is a flag of the same name.

    Values are normalised (device names in lower case, numbers as floats, ``use_fp16`` equal to
    ``precision == "fp16"``), and text for other types is parsed as on the command line;
    `cnnbench.plan.make_plan` checks them. Renamed and obsolete flags are accepted with a warning.
    FlagError for text that its flag cannot parse, a value that an obsolete flag never had, or a
    flag by both its names.
    """

    if TYPE_CHECKING:  # constants of optimizers are fields, and text is parsed

        def __init__(self, **values: Any) -> None: ...

    def __post_init__(self) -> None:
        for spec in FLAGS:
            object.__setattr__(self, spec.name, spec.read(getattr(self, spec.name)))
        if self.precision == "fp16" and self.use_fp16 is False:
            object.__setattr__(self, "use_fp16", True)
        elif self.use_fp16 is True and self.precision == "fp32":
            object.__setattr__(self, "precision", "fp16")
        if self.job_name == PS and self.num_gpus == 0:  # as in job files of tf_cnn_benchmarks
            object.__setattr__(self, "num_gpus", 1)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Params:
        """The parameters of a dictionary from `as_dict`; FlagError for unparsable text."""
        return cls(**values)

    def replace(self, **changes: Any) -> Params:
        """A copy with some values changed; ``precision`` and ``use_fp16`` are kept consistent."""
        if "precision" in changes:
            changes.setdefault("use_fp16", changes["precision"] == "fp16")
        elif self.precision == "fp16" and changes.get("use_fp16") is False:
            changes["precision"] = "fp32"
        return dataclasses.replace(self, **changes)

    def group(self, kind: type[G]) -> G:
        """The flags of one of the classes that this one inherits from."""
        names = (field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]
        return kind(**{name: getattr(self, name) for name in names})

    def as_dict(self) -> dict[str, Any]:
        """Every value by flag name as stored in records, in the order of declaration."""
        return {spec.name: spec.plain(getattr(self, spec.name)) for spec in FLAGS}


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
"""Title and dataclass of every group, in the order of the help."""

FLAGS: tuple[FlagSpec, ...] = tuple(spec for _, group in GROUPS for spec in specs_of(group))
"""Every flag that is a field of ``Params``, in the order of the help."""

SPECS: Mapping[str, FlagSpec] = {spec.name: spec for spec in FLAGS}
"""The flags of `FLAGS` by name."""

ACCEPTED: Mapping[str, FlagSpec] = {**SPECS, **{spec.name: spec for spec in OBSOLETE}}
"""All flags that a run accepts, by name; obsolete ones change nothing."""


def check_fp16(precision: str, use_fp16: bool) -> None:
    """Raises FlagError where --use_fp16, an older flag, contradicts --precision."""
    if use_fp16 != (precision == "fp16"):
        reason = f"contradicts --precision={precision}; give one of the two"
        raise FlagError("use_fp16", use_fp16, reason)
