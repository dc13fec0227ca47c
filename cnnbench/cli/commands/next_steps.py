"""Next steps after a comparison without a verdict: command lines that measure more pairs, or that
allow what differs.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cnnbench.base import values as labels
from cnnbench.base.inference import AnalysisSchedule
from cnnbench.base.job import split_hosts
from cnnbench.campaigns.ab.experiment import MOST_PAIRS, SIDES, Experiment
from cnnbench.campaigns.ab.sessions import ExperimentState, find_experiment
from cnnbench.campaigns.ab.side import RESERVED
from cnnbench.campaigns.launch import JobLayout, flags_to_arguments
from cnnbench.cli.commands.command_lines import command_line_with_flags, mask_variable_value
from cnnbench.cli.commands.judging import JudgingFlags
from cnnbench.flags import FLAGS, SPECS, Affects, specs_of, split_command_line
from cnnbench.judge.compare import (
    ComparedConfiguration,
    Comparison,
    MetricResult,
    Policy,
    processes_needed,
)
from cnnbench.judge.compare.comparability import MeasurementGroup
from cnnbench.judge.compare.criteria import PlanOf
from cnnbench.judge.metrics.measurement import MeasuredReduction, Measurement
from cnnbench.plan import ADDRESSES

_MOST_LINES = 3
_WRITTEN = (spec.name for spec in FLAGS if spec.path and spec.affects is Affects.NOTHING)
_LEFT_OUT = (*RESERVED, *_WRITTEN, labels.FLAG, *ADDRESSES)


def pairs_for_verdict(entry: ComparedConfiguration, result: MetricResult) -> int:
    """Estimates how many pairs are enough for a verdict on an inconclusive result.

    Without pairs, it is the number of processes of BASE and of NEW. It is 0 if more pairs would not
    help, or if `cnnbench ab` and `run` cannot measure more pairs.
    """
    enough = result.judgement.needed or result.judgement.at_least or 0
    if result.too_noisy or not _is_repeatable(entry.base, entry.new):
        return 0
    return enough if enough <= MOST_PAIRS else 0


def pairs_for_clear_verdict(comparison: Comparison) -> int:
    """Number of pairs that should give a clear verdict; 0 if more pairs would not help."""
    return next((pairs_for_verdict(*counts) for counts in comparison.undecided_entries), 0)


def further_analysis_planner(policy: Policy) -> PlanOf:
    """Returns a function that plans how further runs of BASE and NEW are judged.

    The runs belong to no experiment that can be continued. If their flags or revisions say what
    `cnnbench ab` must compare, further pairs are judged in a new experiment. Otherwise (None), they
    are judged together with these runs.
    """

    def plan(base: MeasurementGroup, new: MeasurementGroup) -> AnalysisSchedule | None:
        sides = base.records, new.records
        if not (all(sides) and _is_repeatable(*sides) and _ab_flags(*sides)):
            return None
        return AnalysisSchedule(policy.alpha)

    return plan


def experiment_of_records(base: str, new: str) -> ExperimentState | None:
    """The experiment whose folder contains the records of both paths; None if there is none."""
    folder = Path(base).parent
    is_experiment = [Path(base), Path(new)] == [folder / side for side in SIDES]
    return find_experiment(folder) if is_experiment else None


def comparing_command(
    comparison: Comparison, experiment: Experiment | None, judging: Sequence[str]
) -> str:
    """The command line with which configurations can be compared that cannot be compared now: its
    --allow_different names what differs. "" if this would not help.

    It is the command line `judging` (without "cnnbench"), which judges the same records. If they
    are too few for a verdict, because they belong to an experiment that ended early, it is the
    command line that repeats the experiment.
    """
    names, words = comparison.names_to_allow, judging
    if not names:
        return ""
    if experiment is not None and experiment.repeat:
        policy, share = experiment.criteria.policy, experiment.smallest_alpha_share
        pairs = min(len(entry.base) for entry in comparison.entries)
        if pairs < processes_needed(policy, paired=True, share=share):
            words = experiment.repeat
    return allowing_command(words, names)


def allowing_command(words: Sequence[str], names: Sequence[str]) -> str:
    """The command line `words` (without "cnnbench"), whose --allow_different also has `names`."""
    specs = [spec for spec in specs_of(JudgingFlags) if spec.name == "allow_different"]
    command, *rest = words
    texts, _ = split_command_line(rest, {spec.name: spec for spec in specs})
    given = texts.get("allow_different", ("",))[-1]
    value = ",".join(filter(None, (given, *names)))
    return command_line_with_flags(command, rest, specs, allow_different=value)


def add_next_command(
    comparison: Comparison,
    earlier: ExperimentState | None,
    allowing: str = "",
    judging: Sequence[str] = (),
) -> tuple[Comparison, list[str]]:
    """Adds a command line that may lead to a verdict to a comparison of saved records that is
    inconclusive or not comparable.

    Also returns lines with `allowing`, and with such command lines for each of the first
    inconclusive configurations.

    Args:
      earlier: the experiment to which the records belong, if it can be continued; otherwise None.
      allowing: the `comparing_command`.
      judging: flags that say how the records are judged, for a new experiment.
    """
    commands = {
        entry.name: resume_command(earlier, pairs)
        if earlier is not None
        else _next_command(entry, result, comparison, pairs, judging)
        for entry, result in comparison.undecided_entries
        if (pairs := pairs_for_verdict(entry, result))
    }
    several = len(comparison.entries) > 1
    lines = [
        f"for a verdict{f' on {name}' if several else ''}: {command}"
        for name, command in commands.items()
    ]
    if len(lines) > _MOST_LINES:
        more = f"and {len(lines) - _MOST_LINES} more, with their own flags in the same way"
        lines[_MOST_LINES:] = [more]
    next_steps = [commands.get(entry.name, "") for entry, _ in comparison.undecided_entries]
    if allowing:
        next_steps.insert(0, allowing)
        lines.insert(0, f"for a verdict: {allowing}")
    if next_steps:
        comparison = replace(comparison, next_step=next_steps[0])
    return comparison, lines


def resume_command(
    earlier: ExperimentState,
    pairs: int | None = None,
    variables: Mapping[str, Mapping[str, str]] | None = None,
    session: Sequence[str] = (),
) -> str:
    """The command line that continues an experiment of `cnnbench ab` or `cnnbench gate`.

    Args:
      pairs: the new maximum number of pairs; None for that of the experiment.
      variables: values of environment variables by "a" or "b", see `mask_variable_value`.
      session: flags that differ from those of the experiment's first session.
    """
    command, folder = "ab", earlier.folder
    if earlier.experiment.is_of_gate:  # The parent folder is the results folder of the gate.
        command, folder = "gate", folder.parent
    more = {} if pairs is None else {"pairs": pairs}
    flags = flags_to_arguments({"resume": True, "results": folder, **more})
    own = [
        f"--{side}_env="
        + mask_variable_value(name + "=" + (variables or {}).get(side, {}).get(name, "..."))
        for side in SIDES
        for name in getattr(earlier.experiment, side).variables
    ]
    return shlex.join(["cnnbench", command, *flags, *session, *own])


def _is_repeatable(base: Sequence[Measurement], new: Sequence[Measurement]) -> bool:
    """Whether commands on a single machine can measure further runs like `base` and `new`."""
    machines = {
        address.rpartition(":")[0] for hosts in _job_addresses(new[-1]) for address in hosts
    }
    return not isinstance(base[0], MeasuredReduction) and len(machines) <= 1


def _ab_flags(base: Sequence[Measurement], new: Sequence[Measurement]) -> dict[str, str]:
    """Flags of `cnnbench ab` that make A and B differ as the records in `base` and `new` do; empty
    if unknown.
    """
    flags = [_given_flags(side[-1]) for side in (base, new)]
    subjects = [side[-1].subject for side in (base, new)]
    revisions = [
        subject.revision for subject in subjects if subject is not None and not subject.dirty
    ]
    differing: dict[str, str] = {}
    if len(revisions) == len(SIDES) and None not in revisions and revisions[0] != revisions[1]:
        differing = {
            f"{name}_checkout": str(revision)
            for name, revision in zip(SIDES, revisions, strict=True)
        }
    for name, own, other in zip(SIDES, flags, flags[::-1], strict=True):
        only = {flag: text for flag, text in own.items() if other.get(flag) != text}
        differing |= {name: shlex.join(flags_to_arguments(only))} if only else {}
    return differing


def _next_command(
    entry: ComparedConfiguration,
    result: MetricResult,
    comparison: Comparison,
    pairs: int,
    judging: Sequence[str],
) -> str:
    """The command line that begins a new experiment with `pairs` pairs and the flags `judging`, or
    that measures further runs.
    """
    base, new = (_given_flags(side[-1]) for side in (entry.base, entry.new))
    common = flags_to_arguments(
        {name: text for name, text in base.items() if new.get(name) == text}
    )
    workers, ps = _job_addresses(entry.new[-1])
    job: tuple[str, ...] = ()
    if workers:
        controller = bool(entry.new[-1].config.get("controller_host"))
        job = JobLayout(workers=len(workers), ps=len(ps), controller=controller).flags
    if result.judgement.new_experiment:
        sides = flags_to_arguments(_ab_flags(entry.base, entry.new))
        flags = [f"--pairs={pairs}", *job, *judging, *sides]
        return shlex.join(["cnnbench", "ab", *flags, "--", *common])
    # The records do not say how BASE and NEW differ, so only the user can measure further runs.
    run = shlex.join(["cnnbench", *(["launch", *job, "--"] if job else ()), *common])
    base_files = _further_records("base", comparison.base_label)
    new_files = _further_records("new", comparison.new_label)
    more = max(1, pairs - min(len(result.base), len(result.new)))
    loop = f"for i in $(seq {more}); do {run} --result_json={new_files}"
    return f"{loop}; done  # and in turn with these as many of the other side, to {base_files}"


def _further_records(side: str, label: str) -> str:
    """Shell text for the names of further records: in the folder of existing records, or next to
    their files.
    """
    stem = f"{label}/" if os.path.isdir(label) else re.split(r"[*?[]|\.json$", label)[0]
    return f"{shlex.quote(re.sub('(?<=[^/])$', '-', stem))}{side}-$(date +%s)-$i.json"


def _given_flags(measurement: Measurement) -> dict[str, str]:
    """The flags that were given for a measured process, except output paths, by name."""
    return {
        name: SPECS[name].text(measurement.config[name])
        for name in measurement.explicit_flags
        if name in SPECS and name not in _LEFT_OUT and measurement.config.get(name) is not None
    }


def _job_addresses(measurement: Measurement) -> tuple[Sequence[str], Sequence[str]]:
    """Addresses of the workers, and addresses of the ps tasks, of a measured job."""
    config = measurement.config
    return split_hosts(config.get("worker_hosts")), split_hosts(config.get("ps_hosts"))
