"""What the flags of a run resolve to without its network and its data."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.params import Params
from cnnbench.plan.exchange import Exchange
from cnnbench.plan.machine import MachinePlan
from cnnbench.plan.numerics import Numerics
from cnnbench.plan.place import OF_A_PROCESS, JobFlagNames, Place
from cnnbench.plan.work import Work
from cnnbench.variable_mgr.modes import Mode


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The flags of a run and the parts of its plan that need neither network nor data.

    Attributes:
      params: a value for every flag, with the addresses of the job.
      explicit_flags: names of the given flags.
      notices: lines for the user, such as about flags without effect.
      outputs: files and display; the flags' defaults in processes that write nothing.
    """

    params: Params
    explicit_flags: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    work: Work
    place: Place
    numerics: Numerics
    exchange: Exchange
    machine: MachinePlan
    outputs: OutputParams

    @property
    def saves_into(self) -> str | None:
        """The folder that the run writes checkpoints into, or None."""
        return self.params.train_dir if self.work.trains else None

    @property
    def summarizes_evaluations(self) -> bool:
        """Whether event files of evaluations are written, into --eval_dir."""
        return self.work.evaluates and self.outputs.summary_verbosity > 0


def of_params(params: Params, mode: Mode, names: JobFlagNames = OF_A_PROCESS) -> Setup:
    """Resolves the parts of a setup, each from the flags and earlier parts."""
    work = Work.of(params)
    place = Place.resolved(params, work, mode, names)
    numerics = Numerics.resolved(params, work)
    return Setup(
        params=params,
        work=work,
        place=place,
        numerics=numerics,
        exchange=Exchange.resolved(params, work, place, numerics),
        machine=MachinePlan.of(params),
        outputs=params.group(OutputParams),
    )
