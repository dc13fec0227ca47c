"""Next steps after an inconclusive comparison: number of pairs and the command for them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
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
from cnnbench.judge.compare import ComparedConfiguration, Comparison, Policy, processes_needed
from cnnbench.judge.compare.further import Continuation
from cnnbench.judge.compare.judgement import judge
from cnnbench.judge.compare.result import too_noisy, undecided
from cnnbench.judge.metrics.measurement import MeasuredReduction, Measurement
from cnnbench.plan.place import ADDRESSES

_MOST_LINES = 3
_NEW = "cnnbench ab --pairs="
_HOSTS = ("worker_hosts", "ps_hosts")
_LEFT_OUT = (*RESERVED, *named(FLAGS, Role.OUTPUT), labels.FLAG, *ADDRESSES)


def settling_pairs(
    comparison: Comparison, entry: ComparedConfiguration, earlier: Begun | None = None
) -> int:
    """Pairs of an experiment that would settle an inconclusive configuration.

    0 where more pairs would not help, or cannot be measured by `cnnbench ab`. `earlier` is the
    experiment to continue; None for a new one.
    """
    result = entry.main
    needed, measured = result.judgement.needed, min(len(result.base), len(result.new))
    if isinstance(entry.base[0], MeasuredReduction) or too_noisy(result, comparison.paired):
        return 0
    addresses = (split_hosts(entry.new[-1].config.get(name)) for name in _HOSTS)
    if len({address.rpartition(":")[0] for those in addresses for address in those}) > 1:
        return 0  # processes of the job were on several machines
    plan = Continuation(comparison.policy.alpha) if earlier is None else earlier.plan
    if needed is None:
        family = len(comparison.entries)
        enough = processes_needed(comparison.policy, family, comparison.paired, result.metric)
        pairs = next(plan.numbers(measured, 1 / family)) if 0 < measured < enough else 0
    elif earlier is None:
        afresh = judge(
            result.base,
            result.new,
            comparison.policy,
            paired=comparison.paired,
            noise=result.judgement.noise,
            metric=result.metric,
            plan=plan,
        )
        pairs = afresh.needed or 0
    else:
        pairs = needed
    return pairs if pairs <= MOST_PAIRS else 0


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
        else _command(entry, comparison, pairs)
        for entry in undecided(comparison)
        if (pairs := settling_pairs(comparison, entry, earlier))
    }
    several = len(comparison.entries) > 1
    lines = [
        f"to settle {name if several else 'it'}: {command}" for name, command in commands.items()
    ]
    if len(lines) > _MOST_LINES:
        more = f"and {len(lines) - _MOST_LINES} more, with their own flags in the same way"
        lines[_MOST_LINES:] = [more]
    for entry in undecided(comparison)[:1]:
        command = commands.get(entry.name, "")
        new = settling_pairs(comparison, entry) if command.startswith(_NEW) else 0
        comparison = replace(comparison, next_step=command, new_pairs=new)
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


def _command(entry: ComparedConfiguration, comparison: Comparison, pairs: int) -> str:
    base, new = (_flags(side[-1]) for side in (entry.base, entry.new))
    both = dict(base.items() & new.items())
    own = {
        name: shlex.join(command_words({k: v for k, v in flags.items() if k not in both}))
        for name, flags in (("a", base), ("b", new))
    }
    common = command_words({name: text for name, text in base.items() if name in both})
    sides = command_words({**_checkouts(entry), **{k: v for k, v in own.items() if v}})
    job = _job(entry.new[-1])
    if sides:
        policy = _policy_flags(comparison)
        return shlex.join(
            ["cnnbench", "ab", f"--pairs={pairs}", *job, *policy, *sides, "--", *common]
        )
    # Records do not tell what makes the sides differ, so only the user can measure more of each.
    run = shlex.join(["cnnbench", *(["launch", *job, "--"] if job else ()), *common])
    base_files = _more_files("base", comparison.base_label)
    new_files = _more_files("new", comparison.new_label)
    measured, needed = min(len(entry.main.base), len(entry.main.new)), entry.main.judgement.needed
    # As many as the advice says; without a number there, those of an experiment.
    more = pairs - measured if needed is None else max(1, needed - measured)
    loop = f"for i in $(seq {more}); do {run} --result_json={new_files}; done"
    return f"{loop}  # and in turn with these as many of the other side, to {base_files}"


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


def _checkouts(entry: ComparedConfiguration) -> dict[str, str | None]:
    """Revisions of both sides, if these are what was measured."""
    subjects = [side[-1].subject for side in (entry.base, entry.new)]
    found = [one.revision for one in subjects if one is not None and not one.dirty]
    if len(found) < 2 or None in found or found[0] == found[1]:
        return {}
    return {f"{name}_checkout": revision for name, revision in zip("ab", found, strict=True)}
