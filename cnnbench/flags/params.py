"""All parameters of a run as one frozen value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cnnbench.base.jobs.job import LOCAL, PS, Job, Task, split_hosts
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
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.modes import Mode, Processes


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
    ``precision == "fp16"``), and text for other types is parsed as on the command line; `validate`
    checks them. Renamed and obsolete flags are accepted with a warning. FlagError for text that its
    flag cannot parse, a value that an obsolete flag never had, or a flag by both its names.
    """

    validated = False
    """Whether ``validate`` has accepted these values."""

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

    @property
    def update_mode(self) -> Mode:
        """The mode that --variable_update names; FlagError if unknown."""
        return registry.find(self.variable_update)

    @cached_property
    def job(self) -> Job:
        """The job that the flags describe; with --device=auto its towers are on CPU devices.

        FlagError for invalid addresses, or a task outside the job.
        """
        return Job(
            task=Task(self.job_name or LOCAL, self.task_index),
            worker_hosts=split_hosts(self.worker_hosts),
            ps_hosts=split_hosts(self.ps_hosts),
            controller_host=self.controller_host or None,
            client_per_worker=self.update_mode.processes is Processes.CLIENT_PER_WORKER,
            towers_per_worker=self.num_gpus,
            device="gpu" if self.device == "gpu" else "cpu",
        )

    def mark_validated(self) -> None:
        """Marks these values as checked; for `validate`."""
        object.__setattr__(self, "validated", True)

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
