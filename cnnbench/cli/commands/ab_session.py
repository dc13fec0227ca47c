"""A session of an experiment that compares A and B: from values of flags to the exit code.

`run_experiment` tells the whole way, for `cnnbench ab` and for `cnnbench gate`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cnnbench.base.inference import ANALYSIS_STEP
from cnnbench.base.interrupts import was_interrupted
from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.base.text import count_text
from cnnbench.campaigns.ab.asking import identity_of
from cnnbench.campaigns.ab.experiment import AB, MOST_PAIRS, PROFILES, Experiment
from cnnbench.campaigns.ab.explain import PROFILES_OF_SIDES, AbProfiler, explain_or_notice
from cnnbench.campaigns.ab.lengths import LENGTHS
from cnnbench.campaigns.ab.pairing import choose_slice_seconds, why_not_interleavable
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.sessions import ExperimentState, find_experiment, load_complete_pairs
from cnnbench.campaigns.processes import Campaign, ResultsFolder
from cnnbench.cli.commands import choose_format, sides
from cnnbench.cli.commands.ab_flags import SPECS, AbFlags
from cnnbench.cli.commands.ab_report import report_experiment
from cnnbench.cli.commands.campaign_flags import results_folder
from cnnbench.cli.commands.command_lines import VARIABLES
from cnnbench.cli.commands.next_steps import pairs_for_clear_verdict
from cnnbench.errors import FlagError, UsageError
from cnnbench.judge.compare import Comparison, Verdict
from cnnbench.judge.compare.comparability import check_fact_names
from cnnbench.plan import refuse_files_of_run
from cnnbench.records.codec import encode
from cnnbench.records.explanation import Explanation
from cnnbench.records.files import OutputFile

_OF_ONE_SESSION = (
    "resume",
    "results",
    "pairs",
    "format",
    "output",
    "explain",
    "fail_on",
    "accept",
    *VARIABLES,
)


def run_experiment(
    values: Mapping[str, Any], common: tuple[str, ...], repeat: tuple[str, ...]
) -> int:
    """Runs the experiment that flags of `cnnbench ab` describe, or continues it, and writes the
    verdict. Returns the exit code. If it raises UsageError, nothing has been run.

    The experiment of a gate also writes the comparison to files in the parent of its folder.

    Args:
      values: values of the given flags by name.
      common: flags of the runs of both A and B.
      repeat: see `Experiment`. With --resume, that of the experiment is used.
    """
    earlier = None
    if values.get("resume"):
        earlier = _to_resume(values, common)
        values, common = _values_to_resume(earlier, values), earlier.experiment.common
    options = AbFlags(**choose_format({**values}, SPECS))
    options.check_values()
    if earlier is None:
        experiment = _new_experiment(values, common, repeat, options)
    else:  # Only what belongs to one session may differ.
        criteria = options.criteria(earlier.experiment.criteria.rules)
        experiment = replace(earlier.experiment, most_pairs=options.pairs, criteria=criteria)
    # Which environment variables there are is known only from the records of A and B.
    allowed = [name for name in options.allowed_differences if not name.startswith("env_")]
    check_fact_names(allowed)
    reporter = ChildProcessReporter(sys.stderr)
    with sides.open_sides(options, options.multi_process_layout, common, reporter) as both:
        for side in both.values():
            output = OutputFile("output", options.output)
            refuse_files_of_run([output], side.given_flags)
        if earlier is None:
            why_not = partial(why_not_interleavable, both)
            turns = choose_slice_seconds(options.pairing, why_not, reporter)
            has_length = any(LENGTHS & side.given_flags.keys() for side in both.values())
            seconds = 0.0 if has_length else options.seconds
            experiment = replace(experiment, turn_seconds=turns, timed_seconds=seconds)
        experiment = experiment.with_sides(both)
        plans = {name: identity_of(side) for name, side in both.items()}
        with options.open_campaign(
            AB,
            plans,
            reporter=reporter,
            settings=experiment,
            seed=experiment.seed,
            cool_down=experiment.cool_down,
        ) as (results, campaign, _):
            runner = ExperimentRunner(experiment, both, results, campaign)
            campaign.run_requests(runner.requests())
            judged = _explain_verdict(runner, options)
        return report_experiment(judged, runner, options)


def _new_experiment(
    values: Mapping[str, Any], common: tuple[str, ...], repeat: tuple[str, ...], options: AbFlags
) -> Experiment:
    """Creates the experiment that the flags describe, as far as it does not depend on A and B. See
    `run_experiment` for `values`, `common` and `repeat`.
    """
    return Experiment(
        given={name: encode(values[name]) for name in values if name not in VARIABLES},
        common=common,
        repeat=repeat,
        seed=options.resolve_seed(AB, options.results or ""),
        most_pairs=options.pairs,
        sequential=options.sequential,
        burn_in=options.burn_in,
        cool_down=options.cool_down,
        timeout=options.timeout,
        criteria=options.criteria(),
    )


def _to_resume(values: Mapping[str, Any], common: Sequence[str]) -> ExperimentState:
    """Reads the state of the experiment that --resume continues.

    Raises FlagError if there is none, if it cannot be continued, or if it has other flags than
    `values` and, after --, `common`.
    """
    folder = results_folder(values.get("results"), "ab", resume=True)
    earlier = find_experiment(Path(folder))
    if earlier is None or earlier.experiment.identity is None:
        raise FlagError("results", folder, AB.no_campaign_text)
    experiment, place = earlier.experiment, earlier.folder
    given, usual = experiment.given, vars(AbFlags())
    other = f"differs from the experiment in {place}; leave it out, or name another folder"
    for name, value in values.items():
        then = given.get(name, encode(usual[name]))
        if name not in _OF_ONE_SESSION and encode(value) != then:
            raise FlagError(name, value, other)
    if common and tuple(common) != experiment.common:
        raise UsageError(f"{shlex.join(common)!r} after -- {other}")
    if earlier.past_analyses and not experiment.sequential:
        reason = f"the experiment in {place} is judged once (--nosequential): begin a new one"
        raise FlagError("resume", "true", reason)
    for side, own in AbFlags(**values).environment_variables.items():
        had = getattr(experiment, side).variables
        if set(had) != set(own):
            wanted = " ".join(f"--{side}_env={name}=..." for name in had) or "none"
            reason = f"must name the variables of the experiment in {place}, whose values are not "
            raise FlagError(f"{side}_env", " ".join(own) or "none", f"{reason}stored: {wanted}")
    return earlier


def _values_to_resume(earlier: ExperimentState, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of flags of a session that continues an experiment: as stored, or as now given.

    Without --pairs, there are as many pairs as were planned, or as are enough for a verdict.
    """
    pairs, there = earlier.pair_limits[-1], len(load_complete_pairs(earlier.folder))
    analysed = earlier.past_analyses[-1].pairs if earlier.past_analyses else 0
    if analysed >= pairs and not earlier.has_clear_verdict:
        comparison = earlier.final_comparison()
        enough = pairs_for_clear_verdict(comparison) if comparison is not None else 0
        pairs = min(max(enough, analysed + ANALYSIS_STEP), MOST_PAIRS)
    merged = {**earlier.experiment.values_given, "pairs": pairs, **values}
    if merged["pairs"] < there:
        reason = f"{earlier.folder} has {count_text(there, 'pair', 'pairs')} already"
        raise FlagError("pairs", merged["pairs"], reason)
    # No further pairs are measured after a clear verdict.
    return {**merged, "pairs": pairs} if earlier.has_clear_verdict else merged


def _explain_verdict(runner: ExperimentRunner, options: AbFlags) -> Comparison:
    """Returns the comparison of the experiment, with an explanation if --explain asks for it. An
    interrupt is noted in `runner`.
    """
    judged = runner.comparison
    if not runner.is_judged:
        return judged
    wanted = options.explain == "always"
    if options.explain == "auto":
        entries = judged.deciding_configurations
        asked = [result for entry in entries for result in entry.requested_results]
        verdicts = {result.verdict for result in asked}
        wanted = bool(verdicts & {Verdict.SLOWER, Verdict.FASTER})
    if not wanted:
        return judged
    profile, notice = partial(_explain_by_profiles, runner), runner.campaign.reporter.notice
    explanation = explain_or_notice(runner.results, profile, notice)
    runner.interrupted = was_interrupted()
    return replace(judged, explanation=explanation)


def _explain_by_profiles(runner: ExperimentRunner) -> Explanation:
    """Explains the difference by profiles, which are stored in a subfolder of the results."""
    experiment, results = runner.experiment, runner.results
    campaign = Campaign(runner.campaign.reporter, cool_down=experiment.cool_down)
    place = results.folder / PROFILES
    with ResultsFolder(PROFILES_OF_SIDES, place, resume=True, within=results) as folder:
        return AbProfiler(
            sides=runner.sides,
            results=folder,
            campaign=campaign,
            timeout=experiment.timeout,
        ).explain()
