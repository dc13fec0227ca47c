"""Reports the result of an experiment: the comparison, the files of a gate, and next steps."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from cnnbench.base.terminal import print_notice, print_result
from cnnbench.base.text import count_text, format_duration
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.state import find_experiment
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.cli.commands.ab_flags import AbFlags
from cnnbench.cli.commands.next_steps import estimate_pairs_for_verdict, resume_command
from cnnbench.judge.compare import Comparison, Policy
from cnnbench.judge.compare.comparability import unknown_fact_names
from cnnbench.judge.compare.estimate import aa_spread_of_runs, usable_values
from cnnbench.judge.report.renderers import render
from cnnbench.records.files import write_text

_REPORTS = {"comment.md": "markdown", "junit.xml": "junit"}
"""Files that a gate writes next to the folder of its experiment, with their formats."""


CommandLineFactory: TypeAlias = Callable[..., str]
"""A function that returns the command line of a new experiment. Its keyword arguments are flags."""


def report_comparison(
    comparison: Comparison,
    runner: ExperimentRunner,
    options: AbFlags,
    make_command_line: CommandLineFactory,
) -> None:
    """Writes the comparison of an experiment, and prints command lines for possible next steps."""
    results, reporter = runner.results, runner.campaign.reporter
    next_step, more = _next_command_for_verdict(runner, options, make_command_line)
    enough = pairs_for_clear_verdict(runner.comparison)
    repeat = make_command_line(**({"pairs": enough} if enough else {}))
    comparison = replace(comparison, next_step=next_step, repeat=repeat)
    options.write_comparison(comparison)
    if runner.experiment.gate_command:
        write_gate_reports(results.folder.parent, comparison, results.folder.name)
    if runner.failure:
        reporter.error(f"{runner.failure}; see {results.log_path('*')}")
    if options.aa and not runner.failure:
        for line in _aa_spread_lines(runner.comparison, runner.experiment.policy):
            reporter.notice(line)
        reporter.notice(
            "to use this A/A experiment in a comparison: cnnbench compare BASE NEW "
            f"--baseline_aa={shlex.quote(str(results.folder))}"
        )
    if runner.comparison.entries and runner.is_judged:
        reporter.notice(
            f"to judge the records again: {shlex.join(command_to_judge_again(runner, options))}"
        )
    if next_step:
        seconds = runner.seconds_per_pair if more else None
        time = "" if seconds is None else f" (about {format_duration(more * seconds)} at most)"
        purpose = "to go on" if runner.interrupted else "for a verdict"
        reporter.notice(f"{purpose}{time}: {next_step}")


def _next_command_for_verdict(
    runner: ExperimentRunner, options: AbFlags, make_command_line: CommandLineFactory
) -> tuple[str, int]:
    """Returns the command line that may decide an experiment, or "", and the number of pairs that
    it measures.
    """
    if options.aa or runner.failure:
        return "", 0
    folder, variables, there = (
        runner.results.folder,
        options.environment_variables,
        len(runner.records["a"]),
    )
    state, enough = find_experiment(folder), pairs_for_clear_verdict(runner.comparison)
    if runner.interrupted:
        if state is not None and state.has_clear_verdict:
            return resume_command(state, None, variables), 0
        enough = max(runner.analyses.most_pairs, enough)
        if state is None or not state.is_resumable:
            return "", 0
    if not enough:
        return "", 0
    if state is not None and state.is_resumable:
        return resume_command(state, enough, variables), enough - there
    return make_command_line(pairs=enough), enough


def write_gate_reports(folder: Path, comparison: Comparison, *others: str) -> None:
    """Writes the report files of a gate to its folder, which contains `others`. On GitHub, also
    prints annotations.
    """
    for name, format in _REPORTS.items():
        write_text("results", str(folder / name), render(comparison, format))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print_result(render(comparison, "github"))
    print_notice(f"results in {folder}: {', '.join([*_REPORTS, *others])}")


def pairs_for_clear_verdict(comparison: Comparison) -> int:
    """Number of pairs that should give a clear verdict; 0 if more pairs would not help."""
    return next((estimate_pairs_for_verdict(*counts) for counts in comparison.undecided_results), 0)


def command_to_judge_again(runner: ExperimentRunner, options: AbFlags) -> list[str]:
    """The `cnnbench compare` command that gives the same verdict from the saved records."""
    experiment, folder = runner.experiment, runner.results.folder
    records = [run for entry in runner.comparison.entries for run in (*entry.base, *entry.new)]
    allowed = dict.fromkeys(experiment.allow_different)
    names = [name for name in allowed if name not in unknown_fact_names(allowed, records)]
    usual, policy = Policy(), experiment.policy
    flags: dict[str, object] = {
        "alpha": None if policy.alpha == usual.alpha else repr(policy.alpha),
        "threshold": repr(options.threshold) if policy.threshold != usual.threshold else "",
        "allow_different": ",".join(names),
        "baseline_aa": options.baseline_aa,
        "metrics": ",".join(experiment.metrics or ()),
        "fail_on": ",".join(options.fail_on or ()),
        "rules": options.rules,
        "accept": options.accept,
    }
    flags["allow_changed_work"] = options.allow_changed_work
    words = flags_to_arguments({name: value for name, value in flags.items() if value})
    return ["cnnbench", "compare", f"{folder}/a", f"{folder}/b", "--paired", *words]


def _aa_spread_lines(comparison: Comparison, policy: Policy) -> list[str]:
    """Lines with the A/A spread of each metric: how much equal runs differ."""
    records = [run for entry in comparison.entries for run in entry.runs]
    lines = []
    for metric in comparison.metrics:
        spread = aa_spread_of_runs(records, metric, policy)
        if spread is not None:
            noise = metric.change_text(spread, signed=False)
            processes = count_text(len(usable_values(records, metric)), "process", "processes")
            deviations = f"{policy.noise_factor:g} standard deviations of {processes}"
            lines.append(f"A/A spread of {metric.name}: {noise} ({deviations})")
    return lines or [f"no A/A spread: it needs at least {policy.min_processes} processes"]
