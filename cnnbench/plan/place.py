"""What a run does, rules that refuse flags, and which task of a job this process is.

A rule (`UnusableFlagRule`) is evaluated on an object with flags, such as a `RunPlan`. If several
rules of a table apply to a flag, the first rule gives the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from cnnbench.base.job import LOCAL, WORKER, Job, Task, split_hosts
from cnnbench.errors import FlagError
from cnnbench.flags.declare import FlagSpec, RunPart, names_of_flags
from cnnbench.flags.groups.run import EVAL_DURING_TRAINING, RunParams
from cnnbench.flags.params import FLAGS, SPECS, Params
from cnnbench.variable_mgr.modes import BUILT_IN, Mode, Processes

# What a run does: training, evaluation, forward passes only, or input only.


class WorkKind(enum.Enum):
    """What a run does. The values are printed in the header of the output."""

    TRAINING = "training"
    TRAINING_AND_EVALUATION = "training + evaluation"
    EVALUATION = "evaluation"
    FORWARD = "forward only"
    INPUT = "input only"

    @classmethod
    def of(cls, flags: RunParams) -> WorkKind:
        """Returns what a run with these flags does."""
        if flags.eval:
            return cls.EVALUATION
        if flags.forward_only:
            return cls.FORWARD
        if flags.input_only:
            return cls.INPUT
        during = any(getattr(flags, name) for name in EVAL_DURING_TRAINING)
        return cls.TRAINING_AND_EVALUATION if during else cls.TRAINING

    @property
    def trains(self) -> bool:
        """Whether the run updates the weights."""
        return self in (WorkKind.TRAINING, WorkKind.TRAINING_AND_EVALUATION)

    @property
    def evaluates(self) -> bool:
        """Whether the run evaluates the weights on the validation subset."""
        return self in (WorkKind.EVALUATION, WorkKind.TRAINING_AND_EVALUATION)

    @property
    def only_forward(self) -> bool:
        """Whether the run computes forward passes only, without gradients."""
        return self in (WorkKind.EVALUATION, WorkKind.FORWARD)


# Rules about flags: which flags are refused or have no effect, under which condition, and why.


class _HasParams(Protocol):
    @property
    def params(self) -> Any: ...


P = TypeVar("P", bound=_HasParams)
Condition: TypeAlias = "Callable[[P], object]"
Reason: TypeAlias = "str | Callable[[P], str | None]"


class RuleKind(enum.Enum):
    """Whether a rule refuses its flags, or only reports that they have no effect."""

    REFUSED = "the first flag of the rule that differs from its default is refused"
    REFUSED_FOR_ANY_VALUE = "the flag is refused with any value, for example if it is required"
    NOTICE = "a line says which given flags of the rule have no effect"


@dataclass(frozen=True)
class UnusableFlagRule(Generic[P]):
    """A rule: flags, a condition, and the reason why the flags are refused or have no effect.

    Attributes:
      when: returns a true value if the rule applies.
      why: the end of a message, after "--flag=value: " or "--flag has no effect "; or a function
        that returns it. The function returns "" or None if nothing is wrong, and may raise the
        FlagError itself.
      says: text of a notice in place of "has no effect".
    """

    flags: tuple[str, ...]
    when: Condition[P]
    why: Reason[P]
    kind: RuleKind
    says: str = ""

    def reason(self, resolved: P) -> str:
        """Returns why the flags are refused or have no effect; "" if the rule does not apply."""
        if not self.when(resolved):
            return ""
        return self.why if isinstance(self.why, str) else self.why(resolved) or ""


def refusal_rule(
    flags: str | Sequence[str], when: Condition[P], why: Reason[P]
) -> UnusableFlagRule[P]:
    """A rule for flags that are refused if they differ from their defaults."""
    return UnusableFlagRule(_split_flag_names(flags), when, why, RuleKind.REFUSED)


def refusal_rule_for_any_value(
    flag: str, when: Condition[P], why: Reason[P]
) -> UnusableFlagRule[P]:
    """A rule that refuses a flag with any value, including its default."""
    return UnusableFlagRule((flag,), when, why, RuleKind.REFUSED_FOR_ANY_VALUE)


def exclusion_rule(settings: str, why: str, other: str = "") -> UnusableFlagRule[P]:
    """A rule that refuses the last of several settings if all these settings are given.

    `if_all_given` describes settings. The message is "cannot be used with --", `other` and `why`.
    The default of `other` is the first setting.
    """
    first, last = settings.split(",")[0], settings.split(",")[-1]
    return refusal_rule_for_any_value(
        last.partition("=")[0],
        if_all_given(settings),
        f"cannot be used with --{other or first}{why}",
    )


def no_effect_rule(
    flags: str | Sequence[str], when: Condition[P], why: Reason[P], says: str = ""
) -> UnusableFlagRule[P]:
    """A rule for flags that have no effect."""
    return UnusableFlagRule(_split_flag_names(flags), when, why, RuleKind.NOTICE, says)


def rules_from_declarations(specs: Iterable[FlagSpec]) -> dict[str, UnusableFlagRule[Any]]:
    """Rules for flags without effect, created from `only_with` in the declarations of the flags.

    Returns the rules by condition. Conditions on flags that are not in `specs` are ignored: these
    flags belong to another command.
    """
    known = {spec.name: spec for spec in specs}
    flags: dict[str, list[str]] = {}
    for spec in known.values():
        for condition in spec.effect_conditions:
            flags.setdefault(condition, []).append(spec.name)
    return {
        condition: _rule_from_declaration(condition, names)
        for condition, names in flags.items()
        if {setting.partition("=")[0] for setting in _split_settings(condition)} <= known.keys()
    }


def _split_settings(condition: str) -> list[str]:
    """Splits a condition such as "not cluster=flags,eval: reason" into its settings."""
    return condition.partition(": ")[0].removeprefix("not ").split(",")


def _rule_from_declaration(condition: str, flags: Sequence[str]) -> UnusableFlagRule[Any]:
    settings, when = ",".join(_split_settings(condition)), if_none_given
    preposition = "without"
    if condition.startswith("not "):
        preposition, when = "with", if_all_given
    words: dict[str, list[str]] = {}
    for setting in _split_settings(condition):
        name, equals, value = setting.partition("=")
        words.setdefault(f"--{name}{equals}", []).append(value)
    named = " or ".join(flag + " or ".join(values) for flag, values in words.items())
    _, colon, more = condition.partition(": ")
    return no_effect_rule(flags, when(settings), f"{preposition} {named}{colon}{more}")


def _split_flag_names(flags: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(flags.split(",")) if isinstance(flags, str) else tuple(flags)


def if_all_given(settings: str) -> Callable[[Any], bool]:
    """Returns a condition that is true if all comma-separated settings are given.

    A setting is ``flag=value``, or a flag that has any value but false, zero or empty.
    """
    return lambda resolved: all(
        _setting_holds(resolved.params, setting) for setting in settings.split(",")
    )


def if_none_given(settings: str) -> Callable[[Any], bool]:
    """Returns a condition that is true if none of the comma-separated settings is given."""
    return lambda resolved: (
        not any(_setting_holds(resolved.params, setting) for setting in settings.split(","))
    )


def always(resolved: object) -> bool:
    """A condition that is always true.

    It serves rules for flags that are never used, and rules whose `why` is a function that checks.
    """
    return True


# Sizes in bytes are text, so "0" means zero bytes, as in --agg_small_grads_max_bytes=0.
_OFF = (None, False, 0, "", (), "0")


def _setting_holds(params: Any, setting: str) -> bool:
    name, equals, value = setting.partition("=")
    value_of_flag = getattr(params, name)
    if equals:
        return SPECS[name].text(value_of_flag) == value
    return value_of_flag not in _OFF


def raise_first_refusal(rules: Iterable[UnusableFlagRule[P]], resolved: P) -> None:
    """Raises FlagError for the first rule that applies to `resolved`, if there is one."""
    for rule in rules:
        values = {name: getattr(resolved.params, name) for name in rule.flags}
        if rule.kind is RuleKind.REFUSED:
            values = {n: value for n, value in values.items() if value != SPECS[n].default}
        if values and (reason := rule.reason(resolved)):
            name, value = next(iter(values.items()))
            raise FlagError(name, SPECS[name].text(value), reason)


def no_effect_notices(
    rules: Iterable[UnusableFlagRule[P]], resolved: P, explicit: Sequence[str]
) -> tuple[str, ...]:
    """Returns one line for each rule that applies to flags of the command line (`explicit`).

    If several rules apply to a flag, only the first rule is used.
    """
    lines = []
    for rule in rules:
        names = [name for name in explicit if name in rule.flags]
        if names and (reason := rule.reason(resolved)):
            explicit = [name for name in explicit if name not in names]
            *others, last = (f"--{name}" for name in names)
            subject = f"{', '.join(others)} and {last}" if others else last
            says = rule.says or ("have no effect" if others else "has no effect")
            lines.append(f"{subject} {says} {reason}")
    return tuple(lines)


# The task of this process in its job, from the flags.

ADDRESSES = names_of_flags(FLAGS, RunPart.TASK)
"""Flags of a task and its addresses. --cluster sets them if it names an environment."""


class JobFlagNames(NamedTuple):
    """Names of the flags that describe a job, as error messages print them.

    The defaults are the flags of ``cnnbench run``; ``cnnbench launch`` has other flags.
    """

    job: str = "--job_name"
    towers: str = "--num_gpus"


OF_A_PROCESS = JobFlagNames()


def built_in_mode_names(which: Callable[[Mode], bool]) -> str:
    """Comma-separated names of the built-in modes for which `which` returns true."""
    return ", ".join(mode.name for mode in BUILT_IN if which(mode))


class _RequestedPlace(NamedTuple):
    """The flags and the mode from which `PlaceInJob` is resolved. Addresses are not checked yet."""

    params: Params
    mode: Mode
    names: JobFlagNames


def _given_address_flags(wanted: _RequestedPlace) -> list[str]:
    return [name for name in ADDRESSES if "_host" in name and getattr(wanted.params, name)]


def _has_client_per_worker(wanted: _RequestedPlace) -> bool:
    return bool(wanted.params.job_name) and wanted.mode.processes is Processes.CLIENT_PER_WORKER


_IN_SEVERAL = built_in_mode_names(lambda other: other.processes is not Processes.ONE)
_RULES: tuple[UnusableFlagRule[_RequestedPlace], ...] = (
    refusal_rule_for_any_value(
        "job_name",
        lambda p: not p.params.job_name and _given_address_flags(p),
        lambda p: (
            f"is missing; with --{_given_address_flags(p)[-1]}, it says whether this process is "
            "a worker, a ps task or the controller"
        ),
    ),
    refusal_rule(
        "task_index", if_none_given("job_name"), "needs --job_name and the addresses of that job"
    ),
    refusal_rule(
        "server_protocol",
        if_all_given("job_name"),
        "must be grpc, the only protocol of TensorFlow's own servers",
    ),
    refusal_rule(
        "variable_update",
        lambda p: p.params.job_name and p.mode.processes is Processes.ONE,
        lambda p: f"works in one process only; with {p.names.job} use one of {_IN_SEVERAL}",
    ),
    refusal_rule_for_any_value(
        "ps_hosts",
        lambda p: p.params.job_name and p.mode.uses_ps and not p.params.ps_hosts,
        lambda p: (
            f"--variable_update={p.mode.name} with {p.names.job} "
            "needs tasks that store the variables; --variable_update=collective_all_reduce needs "
            "none"
        ),
    ),
    refusal_rule(
        "ps_hosts",
        lambda p: p.params.job_name and not p.mode.uses_ps,
        lambda p: f"--variable_update={p.mode.name} uses no parameter servers; leave the flag out",
    ),
    refusal_rule(
        "controller_host",
        _has_client_per_worker,
        lambda p: f"--variable_update={p.mode.name} has no controller: every worker runs a step",
    ),
    refusal_rule(
        "input_only",
        _has_client_per_worker,
        lambda p: f"measures one process; leave out {p.names.job}",
    ),
)


@dataclass(frozen=True, kw_only=True)
class PlaceInJob:
    """The task of this process in its job, and how the workers of the job update the variables.

    Attributes:
      mode: the mode of --variable_update, which determines the processes of a job.
      job: all tasks. With --device=auto, the job's towers are on CPU devices.
      asynchronous: whether workers update the variables independently. If so, a step is an update
        by one worker.
      coordinated: whether a coordinator process schedules the updates of all workers.
      names: names of the job's flags for error messages.
    """

    mode: Mode
    job: Job
    asynchronous: bool
    coordinated: bool
    names: JobFlagNames

    @classmethod
    def resolved(cls, flags: Params, work: WorkKind, mode: Mode, names: JobFlagNames) -> PlaceInJob:
        """Determines the task of this process, and the other tasks of its job, from the flags.

        FlagError for invalid addresses, a task outside the job, or a mode that does not fit it.
        """
        raise_first_refusal(_RULES, _RequestedPlace(flags, mode, names))
        coordinated = mode.processes is Processes.COORDINATOR
        without_sync = coordinated or not flags.cross_replica_sync
        return cls(
            mode=mode,
            job=Job(
                task=Task(flags.job_name or LOCAL, flags.task_index),
                worker_addresses=split_hosts(flags.worker_hosts),
                ps_addresses=split_hosts(flags.ps_hosts),
                controller_address=flags.controller_host or None,
                client_per_worker=mode.processes is Processes.CLIENT_PER_WORKER,
                towers_per_worker=flags.num_gpus,
                device="gpu" if flags.device == "gpu" else "cpu",
            ),
            asynchronous=work.trains and bool(flags.job_name) and without_sync,
            coordinated=coordinated,
            names=names,
        )

    @property
    def towers_per_step(self) -> int:
        """Number of towers that contribute gradients to one update of the variables."""
        return self.job.towers_per_worker if self.asynchronous else self.job.num_towers

    def tolerates_loss_of(self, task: Task, state: str) -> bool:
        """Whether the job continues without `task`, which was lost in `state` (ended or silent).

        A coordinator can reassign an update only if the worker has ended, not if it hangs.
        """
        # The late import keeps socket code out of commands that only check flags.
        from cnnbench.base.rendezvous import REFUSED

        worker = self.asynchronous and task.job == WORKER and task != self.job.chief
        return worker and (not self.coordinated or state == REFUSED)
