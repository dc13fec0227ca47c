"""The end of a session of an experiment: prints the comparison, writes the files of a gate, and
names the command lines with which the user can go on.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

from cnnbench.base.terminal import print_notice, print_result
from cnnbench.base.text import format_duration
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.sessions import ExperimentState, find_experiment
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.cli.commands.ab_flags import SPECS, AbFlags
from cnnbench.cli.commands.command_lines import command_line_with_flags, flag_words
from cnnbench.cli.commands.next_steps import (
    allowing_command,
    comparing_command,
    pairs_for_clear_verdict,
    resume_command,
)
from cnnbench.errors import ExitCode
from cnnbench.judge.compare import Comparison, Policy
from cnnbench.judge.compare.comparability import unknown_fact_names
from cnnbench.judge.report.renderers import render
from cnnbench.records.files import write_text

_OF_SESSIONS = ("explain", "fail_on", "accept")
"""Flags that may differ between the sessions of an experiment, and have an effect on the result."""

_REPORTS = {"comment.md": "markdown", "junit.xml": "junit"}
"""Files that a gate writes next to the folder of its experiment, with their formats."""


def report_experiment(judged: Comparison, runner: ExperimentRunner, options: AbFlags) -> ExitCode:
    """Writes the comparison of an experiment, and prints command lines for possible next steps.

    Returns the exit code. Raises KeyboardInterrupt if the experiment was interrupted.
    """
    code = judged.exit_code
    if runner.failure:
        code = ExitCode.FAILED
    if runner.interrupted:
        code = ExitCode.INTERRUPTED
    experiment, results, reporter = runner.experiment, runner.results, runner.campaign.reporter
    enough = pairs_for_clear_verdict(runner.comparison)
    command, *words = experiment.repeat
    pairs = {"pairs": enough} if enough else {}
    repeat = command_line_with_flags(command, words, SPECS, **pairs)
    if names := runner.comparison.names_to_allow:
        repeat = allowing_command(experiment.repeat, names)
    next_step, more = _next_command(runner, options, enough, repeat)
    comparison = replace(judged, ends_with=code, next_step=next_step, repeat=repeat)
    options.write_comparison(comparison)
    if experiment.is_of_gate:
        write_gate_reports(results.folder.parent, comparison, results.folder.name)
    if runner.failure:
        reporter.error(f"{runner.failure}; see {results.log_path('*')}")
    if runner.comparison.entries and runner.is_judged:
        line = shlex.join(command_to_judge_again(runner, options))
        reporter.notice(f"to judge the records again: {line}")
    if next_step:
        seconds = runner.seconds_per_pair if more else None
        time = "" if seconds is None else f" (about {format_duration(more * seconds)} at most)"
        purpose = "to go on" if runner.interrupted else "for a verdict"
        reporter.notice(f"{purpose}{time}: {next_step}")
    if runner.interrupted:
        raise KeyboardInterrupt
    return code


def _next_command(
    runner: ExperimentRunner, options: AbFlags, enough: int, repeat: str
) -> tuple[str, int]:
    """Returns the command line that may decide an experiment, or "", and the number of pairs that
    it measures.

    `enough` is the number of pairs that should give a verdict, or 0; `repeat` is the command line
    of a new experiment with this number of pairs.
    """
    if runner.failure:
        return "", 0
    state = find_experiment(runner.results.folder)
    if state is None:
        return "", 0
    resume = partial(
        resume_command,
        state,
        variables=options.environment_variables,
        session=_flags_of_session(state, options),
    )
    if runner.interrupted:
        if state.has_clear_verdict:
            return resume(), 0
        enough = max(runner.analyses.most_pairs, enough) if state.is_resumable else 0
    if enough and state.is_resumable:
        return resume(enough), enough - len(runner.records["a"])
    judging = command_to_judge_again(runner, options)[1:]
    allowing = comparing_command(runner.comparison, runner.experiment, judging)
    if allowing and not runner.interrupted:
        return allowing, runner.analyses.most_pairs if allowing == repeat else 0
    return (repeat, enough) if enough else ("", 0)


def _flags_of_session(state: ExperimentState, options: AbFlags) -> list[str]:
    """The flags that differ between this session and the first session of an experiment, whose
    flags a further session has.
    """
    given = AbFlags(**state.experiment.values_given)
    values = {name: getattr(options, name) for name in _OF_SESSIONS}
    changed = {name: value for name, value in values.items() if value != getattr(given, name)}
    return flag_words(changed, SPECS)


def write_gate_reports(folder: Path, comparison: Comparison, *others: str) -> None:
    """Writes the report files of a gate to its folder, which contains `others`. On GitHub, also
    prints annotations.
    """
    for name, format in _REPORTS.items():
        write_text("results", str(folder / name), render(comparison, format))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print_result(render(comparison, "github"))
    print_notice(f"results in {folder}: {', '.join([*_REPORTS, *others])}")


def command_to_judge_again(runner: ExperimentRunner, options: AbFlags) -> list[str]:
    """The `cnnbench compare` command that gives the same verdict from the saved records."""
    criteria, folder = runner.experiment.criteria, runner.results.folder
    records = [run for entry in runner.comparison.entries for run in (*entry.base, *entry.new)]
    allowed = dict.fromkeys(criteria.allow_different)
    names = [name for name in allowed if name not in unknown_fact_names(allowed, records)]
    usual, policy = Policy(), criteria.policy
    flags: dict[str, object] = {
        "alpha": None if policy.alpha == usual.alpha else repr(policy.alpha),
        "threshold": repr(options.threshold) if policy.threshold != usual.threshold else "",
        "allow_different": ",".join(names),
        "plugin": ",".join(options.plugin),
        "metrics": ",".join(criteria.metrics or ()),
        "fail_on": ",".join(options.fail_on or ()),
        "rules": options.rules,
        "accept": options.accept,
        "allow_changed_work": options.allow_changed_work,
    }
    words = flags_to_arguments({name: value for name, value in flags.items() if value})
    return ["cnnbench", "compare", f"{folder}/a", f"{folder}/b", "--paired", *words]
