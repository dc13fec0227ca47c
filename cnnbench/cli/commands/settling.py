"""Next steps after an inconclusive comparison: number of pairs and the command for them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cnnbench.base.jobs.job import split_hosts
from cnnbench.base.text import labels
from cnnbench.campaigns.ab.flags import RESERVED
from cnnbench.campaigns.ab.results import SIDES, Begun, resumable
from cnnbench.campaigns.launch.tasks import JobLayout, command_words
from cnnbench.cli.commands.sides import MOST_PAIRS, shown
from cnnbench.flags.declare import named
from cnnbench.flags.params import FLAGS, SPECS
from cnnbench.flags.roles import Role
from cnnbench.judge.compare import ComparedConfiguration, Comparison, MetricResult, Policy
from cnnbench.judge.compare.comparability import Group
from cnnbench.judge.compare.compare import PlanOf
from cnnbench.judge.compare.result import undecided
from cnnbench.judge.compare.sequential import Continuation
from cnnbench.judge.metrics.measurement import MeasuredReduction, Measurement
from cnnbench.plan.place import ADDRESSES

_MOST_LINES = 3
_HOSTS = ("worker_hosts", "ps_hosts")
_LEFT_OUT = (*RESERVED, *named(FLAGS, Role.OUTPUT), labels.FLAG, *ADDRESSES)


def settling_pairs(entry: ComparedConfiguration, result: MetricResult) -> int:
    """Pairs, or processes per side, with which an inconclusive result is expected to be decided.

    0 where more would not help, or `cnnbench ab` and `run` cannot measure them.
    """
    enough = result.judgement.needed or result.judgement.at_least or 0
    if result.too_noisy or not _is_measured_again(entry.base, entry.new):
        return 0
    return enough if enough <= MOST_PAIRS else 0


def next_experiment(policy: Policy) -> PlanOf:
    """How further pairs are judged of runs that belong to no experiment that can go on.

    A function of the runs of BASE and of NEW: in a new experiment where their flags or revisions
    say what `cnnbench ab` has to compare, else (None) together with these.
    """

    def plan(base: Group, new: Group) -> Continuation | None:
        sides = base.records, new.records
        if not (all(sides) and _is_measured_again(*sides) and _differing(*sides)):
            return None
        return Continuation(policy.alpha)

    return plan


def continued(base: str, new: str) -> Begun | None:
    """The experiment of which two paths are the sides, if it can go on; else None."""
    folder = Path(base).parent
    if [base, new] != [str(folder / side) for side in SIDES]:
        return None
    return resumable(folder)


def with_next_step(comparison: Comparison, earlier: Begun | None) -> tuple[Comparison, list[str]]:
    """A comparison of saved records with its next step, and lines with commands.

    `earlier` is the experiment that they belong to, if it can go on. The next step is that of the
    configuration which the advice is about; the lines are about the first ones that an experiment
    would settle.
    """
    commands = {
        entry.name: resumption(Path(comparison.base_label).parent, pairs, earlier)
        if earlier is not None
        else _command(entry, result, comparison, pairs)
        for entry, result in undecided(comparison)
        if (pairs := settling_pairs(entry, result))
    }
    several = len(comparison.entries) > 1
    lines = [
        f"to settle {name if several else 'it'}: {command}" for name, command in commands.items()
    ]
    if len(lines) > _MOST_LINES:
        more = f"and {len(lines) - _MOST_LINES} more, with their own flags in the same way"
        lines[_MOST_LINES:] = [more]
    for entry, _ in undecided(comparison)[:1]:
        comparison = replace(comparison, next_step=commands.get(entry.name, ""))
    return comparison, lines


def resumption(
    folder: Path,
    pairs: int,
    earlier: Begun,
    variables: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The command that continues an experiment; see `shown` for values of variables."""
    flags = command_words({"resume": True, "results": folder, "pairs": pairs})
    own = [
        f"--{side}_env={shown(name + '=' + (variables or {}).get(side, {}).get(name, '...'))}"
        for side in SIDES
        for name in earlier.facts["sides"][side]["variables"]
    ]
    return shlex.join(["cnnbench", "ab", *flags, *own])


def _is_measured_again(base: Sequence[Measurement], new: Sequence[Measurement]) -> bool:
    """Whether the printed commands can measure more of these: runs of jobs on one machine."""
    addresses = (split_hosts(new[-1].config.get(name)) for name in _HOSTS)
    machines = {address.rpartition(":")[0] for those in addresses for address in those}
    return not isinstance(base[0], MeasuredReduction) and len(machines) <= 1


def _differing(base: Sequence[Measurement], new: Sequence[Measurement]) -> dict[str, str]:
    """The flags of `cnnbench ab` in which its sides differ; none if records do not tell."""
    flags = [_flags(side[-1]) for side in (base, new)]
    subjects = [side[-1].subject for side in (base, new)]
    revisions = [one.revision for one in subjects if one is not None and not one.dirty]
    found: dict[str, str] = {}
    if len(revisions) == len(SIDES) and None not in revisions and revisions[0] != revisions[1]:
        found = {f"{name}_checkout": str(one) for name, one in zip(SIDES, revisions, strict=True)}
    for name, own, other in zip(SIDES, flags, flags[::-1], strict=True):
        only = {flag: text for flag, text in own.items() if other.get(flag) != text}
        found |= {name: shlex.join(command_words(only))} if only else {}
    return found


def _command(
    entry: ComparedConfiguration, result: MetricResult, comparison: Comparison, pairs: int
) -> str:
    base, new = (_flags(side[-1]) for side in (entry.base, entry.new))
    common = command_words({name: text for name, text in base.items() if new.get(name) == text})
    job = _job(entry.new[-1])
    if result.judgement.new_experiment:
        sides = command_words(_differing(entry.base, entry.new))
        policy = _policy_flags(comparison)
        return shlex.join(
            ["cnnbench", "ab", f"--pairs={pairs}", *job, *policy, *sides, "--", *common]
        )
    # Records do not tell what makes the sides differ, so only the user can measure more of each.
    run = shlex.join(["cnnbench", *(["launch", *job, "--"] if job else ()), *common])
    base_files = _more_files("base", comparison.base_label)
    new_files = _more_files("new", comparison.new_label)
    loop = f"for i in $(seq {max(1, pairs - result.fewest)}); do {run} --result_json={new_files}"
    return f"{loop}; done  # and in turn with these as many of the other side, to {base_files}"


def _policy_flags(comparison: Comparison) -> list[str]:
    """Flags for the same threshold and level, where they are not the usual ones."""
    usual, found = Policy(), comparison.policy
    flags = [f"--threshold={100 * found.threshold:g}"] if found.threshold != usual.threshold else []
    return [*flags, *([f"--alpha={found.alpha!r}"] if found.alpha != usual.alpha else [])]


def _more_files(side: str, label: str) -> str:
    """New files, as words of the shell, in a side's folder, or beside its file or its pattern's."""
    stem = f"{label}/" if os.path.isdir(label) else re.split(r"[*?[]|\.json$", label)[0]
    return f"{shlex.quote(re.sub('(?<=[^/])$', '-', stem))}{side}-$(date +%s)-$i.json"


def _flags(measurement: Measurement) -> dict[str, str]:
    """The flags that a process was given, except those for the places of its results."""
    return {
        name: SPECS[name].text(measurement.config[name])
        for name in measurement.explicit_flags
        if name in SPECS and name not in _LEFT_OUT and measurement.config.get(name) is not None
    }


def _job(measurement: Measurement) -> tuple[str, ...]:
    """The flags for the processes of the job that was measured; none for one process."""
    workers, ps = (split_hosts(measurement.config.get(name)) for name in _HOSTS)
    if not workers:
        return ()
    controller = bool(measurement.config.get("controller_host"))
    return JobLayout(workers=len(workers), ps=len(ps), controller=controller).flags
