"""``cnnbench ab``: measure A and B alternately, and judge how B differs from A."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cnnbench.base.inference import ANALYSIS_STEP
from cnnbench.base.interrupts import was_interrupted
from cnnbench.base.terminal import ChildProcessReporter, print_notice, print_result
from cnnbench.base.text import count_text, format_duration
from cnnbench.campaigns.ab.experiment import (
    AB,
    PROFILES,
    Experiment,
    ExperimentState,
    confirmation_folder,
    find_experiment,
    load_complete_pairs,
)
from cnnbench.campaigns.ab.explain import PROFILES_OF_SIDES, AbProfiler, explain_or_notice
from cnnbench.campaigns.ab.lengths import LENGTHS, LONGEST, SHORTEST
from cnnbench.campaigns.ab.pairs import ExperimentRunner
from cnnbench.campaigns.ab.side import AbSide, choose_time_slice_seconds, why_not_interleavable
from cnnbench.campaigns.launch import flags_to_arguments
from cnnbench.campaigns.processes import Campaign, CodeChangedError, ResultsFolder
from cnnbench.cli.commands import choose_format, sides
from cnnbench.cli.commands.judging import JudgingFlags
from cnnbench.cli.commands.launch import JobLayoutFlags
from cnnbench.cli.commands.next_steps import (
    allowing_command,
    comparing_command,
    estimate_pairs_for_verdict,
    resume_command,
)
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags import flag, flag_sections, specs_of
from cnnbench.judge.compare import Comparison, Policy, Verdict
from cnnbench.judge.compare.comparability import check_fact_names, unknown_fact_names
from cnnbench.judge.compare.estimate import aa_spread_of_runs, usable_values
from cnnbench.judge.compare.result import with_second_experiment
from cnnbench.judge.report.renderers import render
from cnnbench.records.codec import encode
from cnnbench.records.explanation import Explanation
from cnnbench.records.files import write_text

_ABOUT = """\
Usage: cnnbench ab [--a=FLAGS] [--b=FLAGS] [FLAGS] [-- FLAGS OF BOTH A AND B]

Measures A and B in pairs of new processes, in random order within every pair, and judges whether B
is faster, slower, the same, not slower or inconclusive (cnnbench docs ab). It stops as soon as an
interim analysis has a clear verdict: after 8 pairs, 12, and so on up to --pairs. After a verdict of
slower or faster, it profiles A and B, and names the layers and causes of the difference (cnnbench
docs explain). If B may be the faster one, add --fail_on=slower,faster: otherwise it stops as soon
as B is certainly not slower.

  cnnbench ab --b=--precision=bf16 -- --model=lenet --device=cpu --batch_size=8
  cnnbench ab --a_python=old/bin/python --b_python=new/bin/python -- --model=resnet50
  cnnbench ab --a_checkout=main --b_checkout=. -- --plugin=bench/nets.py --model=ours
  cnnbench ab --resume --results=DIR --pairs=28
"""

_EXIT_CODES = """\
Flags, interpreters, code and variables that A and B define differently may always differ.

Exit codes: 0 no regression; 1 B is slower or computes something else (or what --fail_on names); 3
inconclusive, not comparable, or not confirmed; 4 a process failed, or processes were killed too
often; 2 wrong use; 130 interrupted: the change so far is printed without a verdict (continue with
--resume).
"""


@dataclass(frozen=True, kw_only=True)
class AbFlags(JobLayoutFlags, sides.SideFlags, sides.CampaignFlags, JudgingFlags):
    """Flags of `cnnbench ab`."""

    pairs: int = flag(
        16,
        "Maximum number of pairs; a verdict needs 6. With --resume, if not given: the number that "
        "probably gives a verdict. The error rate stays below alpha, however often you resume.",
        minimum=1,
        maximum=sides.MOST_PAIRS,
    )
    sequential: bool = flag(
        True,
        "Stop at an interim analysis with a clear result, or if the remaining pairs would "
        "probably give no verdict. If false, all pairs are run.",
    )
    burn_in: int = flag(
        1,
        "Number of burn-in processes of A and of B before the first pair. Their results are not "
        "used.",
        minimum=0,
        maximum=100,
    )
    seconds: float | None = flag(
        None,
        "Seconds of timed steps in each process. The number of steps is chosen after the "
        f"burn-in. If not given: {SHORTEST:g} to {LONGEST:g}, chosen from the noise, again after "
        "each interim analysis. With 0, or if A or B has one of the following flags, the flags of "
        "A and B determine the number of steps: "
        f"{', '.join(f'--{name}' for name in sorted(LENGTHS))}.",
        minimum=0,
        maximum=86400,
    )
    cool_down: float = flag(0.0, "Seconds between processes.", minimum=0, maximum=86400)
    pairing: str = flag(
        "auto",
        "How the two processes of a pair share the time. turns: both processes are started, and "
        "one runs steps for 0.3 s while the other waits. alternate: one process runs after the "
        "other. auto: turns if possible.",
        choices=("alternate", "turns", "auto"),
    )
    aa: bool = flag(
        False,
        "Measure side A twice, to see how much runs of the same configuration differ. All pairs "
        "are run. cnnbench compare and ab can use the results: --baseline_aa=DIR.",
    )
    confirm: bool = flag(
        False,
        "If a difference of speed would set exit code 1, measure it again, with at most the same "
        "number of pairs. The exit code is 1 only if both results agree, otherwise 3.",
    )
    explain: str = flag(
        "auto",
        "Profile a few more processes of A and of B, and name the layers and causes of the "
        "difference. auto (or no value): only after the verdicts slower and faster.",
        choices=("auto", "always", "never"),
        alone="auto",
    )

    def check_flags_of_aa(self, given: Collection[str]) -> None:
        """Raises FlagError for given flags that cannot be used with --aa."""
        for name in ("b", "b_python", "b_checkout", "b_env"):
            if name in given:
                value = "..." if name in sides.VARIABLES else getattr(self, name)
                raise FlagError(name, value, "--aa measures side A twice, so leave this flag out")
        if self.confirm:
            raise FlagError("confirm", "true", "with --aa, there is no verdict to confirm")


SECTIONS = {
    "a": "What A and B are",
    "pairs": "How it is measured",
    "timeout": "Processes and records",
    "threshold": "How it is judged and printed",
    "explain": "How it is judged and printed",
}
"""Titles of the sections of --help, by the flags with which they begin."""

_SPECS = specs_of(AbFlags)
HELP = (_ABOUT, tuple(flag_sections(AbFlags, SECTIONS).items()), _EXIT_CODES)

_REPORTS = {"comment.md": "markdown", "junit.xml": "junit"}
"""Files that a gate writes next to the folder of its experiment, with their formats."""

OF_ONE_EXPERIMENT = ("results", "seed", "format", "output")
"""Flags that a command that repeats an experiment leaves out."""

_OF_ONE_SESSION = (
    "resume",
    "results",
    "pairs",
    "format",
    "output",
    "confirm",
    "explain",
    "fail_on",
    "accept",
    *sides.VARIABLES,
)


def main(argv: Sequence[str]) -> int:
    """Runs an experiment that compares A and B. After a UsageError, nothing has been run."""
    values, stray, common = sides.split_command_and_run_flags(argv, _SPECS, "ab ...")
    if stray:
        raise UsageError(
            f"stray argument {sides.mask_variable_value(stray[0])!r}: put flags of both A and B "
            "after --, and flags of only one of them into --a or --b"
        )
    words = sides.flag_words(values, _SPECS, OF_ONE_EXPERIMENT)
    return run_experiment(values, common, ("ab", *words, "--", *common))


def run_experiment(
    values: Mapping[str, Any], common: tuple[str, ...], repeat: tuple[str, ...]
) -> int:
    """Runs the experiment that flags of `cnnbench ab` describe, or continues it, and writes the
    verdict. Returns the exit code. After a UsageError, nothing has been run.

    The experiment of a gate also writes the comparison to files in the parent of its folder.

    Args:
      values: values of the given flags by name.
      common: flags of the runs of both A and B.
      repeat: see `Experiment`. With --resume, that of the experiment is used.
    """
    earlier = None
    if values.get("resume"):
        earlier = _experiment_to_resume(values, common)
        values, common = _values_to_resume(earlier, values), earlier.experiment.common
    options = AbFlags(**choose_format({**values}, _SPECS))
    options.check_values()
    if options.aa:
        options.check_flags_of_aa(values)
    # An experiment uses the rules that were valid when it began.
    rules = options.load_rules() if earlier is None else earlier.experiment.criteria.rules
    criteria = options.criteria(options.with_accept(rules))
    loaded = options.load_aa_records(include_reductions=False)
    aa = None if loaded is None else loaded.records
    # Which environment variables there are is known only from the records of A and B.
    allowed = [name for name in options.allowed_differences if not name.startswith("env_")]
    check_fact_names(allowed, aa or ())
    reporter = ChildProcessReporter(sys.stderr)
    seed = options.resolve_seed(AB, options.results or "")
    options = replace(options, seed=seed)
    layout, names = options.multi_process_layout, "aa" if options.aa else "ab"
    advice = ", or measure one of them twice with --aa"
    with sides.open_sides(options, layout, common, reporter, names, advice) as both:
        plans = {name: side.identity() for name, side in both.items()}
        if earlier is None:
            given = {name: encode(values[name]) for name in values if name not in sides.VARIABLES}
            why_not = partial(why_not_interleavable, both)
            turns = choose_time_slice_seconds(options.pairing, why_not, reporter)
            command = {"given": given, "common": common, "repeat": repeat, "seed": seed}
            experiment = _make_experiment(options, both, turn_seconds=turns, **command)
        else:  # Only what belongs to one session may differ.
            experiment = replace(earlier.experiment, most_pairs=options.pairs)
        experiment = replace(experiment, criteria=criteria).with_sides(both)
        with options.open_campaign(
            AB, plans, reporter=reporter, settings=experiment, cool_down=experiment.cool_down
        ) as (results, campaign, _):
            runner = ExperimentRunner(experiment, both, results, campaign, aa)
            campaign.run_requests(runner.requests())
            judged = _confirm_changes(runner.comparison, runner, options)
            judged = _explain_verdict(judged, runner, options)
        return _report(judged, runner, options)


def _experiment_to_resume(values: Mapping[str, Any], common: Sequence[str]) -> ExperimentState:
    """Reads the state of the experiment that --resume continues.

    Raises FlagError if there is none, if it cannot be continued, or if it has other flags than
    `values` and, after --, `common`.
    """
    folder = sides.results_folder(values.get("results"), "ab", resume=True)
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
    confirms = earlier.has_clear_verdict and values.get("confirm", given.get("confirm"))
    if earlier.past_analyses and not (experiment.sequential or confirms):
        reason = f"the experiment in {place} is judged once (--nosequential, --aa): begin a new one"
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
        enough = _pairs_for_clear_verdict(comparison) if comparison is not None else 0
        pairs = min(max(enough, analysed + ANALYSIS_STEP), sides.MOST_PAIRS)
    stored = earlier.experiment.given.items()
    then = {name: tuple(value) if isinstance(value, list) else value for name, value in stored}
    merged = {**then, "pairs": pairs, **values}
    if merged["pairs"] < there:
        reason = f"{earlier.folder} has {count_text(there, 'pair', 'pairs')} already"
        raise FlagError("pairs", merged["pairs"], reason)
    # No further pairs are measured after a clear verdict.
    return {**merged, "pairs": pairs} if earlier.has_clear_verdict else merged


def _make_experiment(options: AbFlags, both: Mapping[str, AbSide], **more: Any) -> Experiment:
    """Creates the experiment that the flags describe, without sides and criteria. `more` are fields
    of `Experiment` that do not follow from single flags.
    """
    has_length = any(LENGTHS & side.given_flags.keys() for side in both.values())
    return Experiment(
        **more,
        most_pairs=options.pairs,
        sequential=options.sequential and not options.aa,
        burn_in=options.burn_in,
        cool_down=options.cool_down,
        timeout=options.timeout,
        timed_seconds=0.0 if has_length else options.seconds,
        is_aa=options.aa,
    )


def _confirm_changes(judged: Comparison, runner: ExperimentRunner, options: AbFlags) -> Comparison:
    """Measures again, in a second experiment, the changes that set exit code 1 (--confirm).

    Returns the comparison with the results of both experiments. The second experiment judges only
    the changed metrics, in at most the same number of pairs. If it is interrupted or fails, this is
    noted in `runner`, and the comparison is unchanged.
    """
    metrics, number = judged.metrics_to_confirm, len(runner.records["a"])
    if not (options.confirm and runner.is_judged and metrics):
        return judged
    first, campaign = runner.experiment, runner.campaign
    place = confirmation_folder(runner.results.folder, number)
    second = replace(
        first,
        identity=None,
        given={},
        common=(),
        repeat=(),
        criteria=replace(first.criteria, metrics=tuple(metrics)),
        most_pairs=number,
        # The orders of A and B must differ from the orders in the first experiment.
        seed=first.seed + number,
    )
    text = f"measuring {' and '.join(metrics)} again, at most {number} pairs, in {place}"
    campaign.reporter.notice(text)
    with ResultsFolder(AB, place, second, resume=True, within=runner.results) as results:
        confirming = ExperimentRunner(second, runner.sides, results, campaign, runner.aa)
        try:
            campaign.run_requests(confirming.requests())
        except CodeChangedError as error:
            runner.failure = str(error)
        except KeyboardInterrupt:
            runner.interrupted = True
        else:
            runner.failure = confirming.failure
    if runner.failure or runner.interrupted:
        return judged
    line = shlex.join(_command_to_judge_again(confirming, options))
    campaign.reporter.notice(f"to judge the records of the second experiment again: {line}")
    return with_second_experiment(judged, confirming.comparison)


def _explain_verdict(judged: Comparison, runner: ExperimentRunner, options: AbFlags) -> Comparison:
    """Adds an explanation to the comparison, if --explain asks for it. An interrupt is noted in
    `runner`.
    """
    if not runner.is_judged or runner.failure or runner.interrupted:
        return judged
    wanted = options.explain == "always"
    if options.explain == "auto" and not options.aa:
        entries = judged.deciding_configurations
        asked = [result for entry in entries for result in entry.requested_results]
        verdicts = {result.verdict for result in asked if not result.is_unconfirmed}
        wanted = bool(verdicts & {Verdict.SLOWER, Verdict.FASTER})
    if not wanted:
        return judged
    profile, notice = partial(_explain_by_profiles, runner), runner.campaign.reporter.notice
    explanation = explain_or_notice(runner.results, profile, "verdict", notice)
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


def _report(judged: Comparison, runner: ExperimentRunner, options: AbFlags) -> ExitCode:
    """Writes the comparison of an experiment, and prints command lines for possible next steps.

    Returns the exit code. Raises KeyboardInterrupt if the experiment was interrupted.
    """
    code = ExitCode.OK if options.aa else judged.exit_code
    if runner.failure:
        code = ExitCode.FAILED
    if runner.interrupted:
        code = ExitCode.INTERRUPTED
    experiment, results, reporter = runner.experiment, runner.results, runner.campaign.reporter
    enough = _pairs_for_clear_verdict(runner.comparison)
    command, *words = experiment.repeat
    pairs = {"pairs": enough} if enough else {}
    repeat = sides.command_line_with_flags(command, words, _SPECS, **pairs)
    if names := runner.comparison.names_to_allow:
        repeat = allowing_command(experiment.repeat, names)
    next_step, more = _next_command_for_verdict(runner, options, enough, repeat)
    comparison = replace(judged, ends_with=code, next_step=next_step, repeat=repeat)
    options.write_comparison(comparison)
    if experiment.is_of_gate:
        write_gate_reports(results.folder.parent, comparison, results.folder.name)
    if runner.failure:
        reporter.error(f"{runner.failure}; see {results.log_path('*')}")
    if options.aa and not runner.failure:
        for line in _aa_spread_lines(runner.comparison, experiment.criteria.policy):
            reporter.notice(line)
        reporter.notice(
            "to use this A/A experiment in a comparison: cnnbench compare BASE NEW "
            f"--baseline_aa={shlex.quote(str(results.folder))}"
        )
    if runner.comparison.entries and runner.is_judged:
        line = shlex.join(_command_to_judge_again(runner, options))
        reporter.notice(f"to judge the records again: {line}")
    if next_step:
        seconds = runner.seconds_per_pair if more else None
        time = "" if seconds is None else f" (about {format_duration(more * seconds)} at most)"
        purpose = "to go on" if runner.interrupted else "for a verdict"
        reporter.notice(f"{purpose}{time}: {next_step}")
    if runner.interrupted:
        raise KeyboardInterrupt
    return code


def _next_command_for_verdict(
    runner: ExperimentRunner, options: AbFlags, enough: int, repeat: str
) -> tuple[str, int]:
    """Returns the command line that may decide an experiment, or "", and the number of pairs that
    it measures.

    `enough` is the number of pairs that should give a verdict, or 0; `repeat` is the command line
    of a new experiment with this number of pairs.
    """
    if options.aa or runner.failure:
        return "", 0
    state = find_experiment(runner.results.folder)
    if state is None:
        return "", 0
    variables = options.environment_variables
    if runner.interrupted:
        if state.has_clear_verdict:
            return resume_command(state, None, variables), 0
        enough = max(runner.analyses.most_pairs, enough) if state.is_resumable else 0
    if enough and state.is_resumable:
        return resume_command(state, enough, variables), enough - len(runner.records["a"])
    judging = _command_to_judge_again(runner, options)[1:]
    allowing = comparing_command(runner.comparison, runner.experiment, judging)
    if allowing and not runner.interrupted:
        return allowing, runner.analyses.most_pairs if allowing == repeat else 0
    return (repeat, enough) if enough else ("", 0)


def write_gate_reports(folder: Path, comparison: Comparison, *others: str) -> None:
    """Writes the report files of a gate to its folder, which contains `others`. On GitHub, also
    prints annotations.
    """
    for name, format in _REPORTS.items():
        write_text("results", str(folder / name), render(comparison, format))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        print_result(render(comparison, "github"))
    print_notice(f"results in {folder}: {', '.join([*_REPORTS, *others])}")


def _pairs_for_clear_verdict(comparison: Comparison) -> int:
    """Number of pairs that should give a clear verdict; 0 if more pairs would not help."""
    return next((estimate_pairs_for_verdict(*counts) for counts in comparison.undecided_results), 0)


def _command_to_judge_again(runner: ExperimentRunner, options: AbFlags) -> list[str]:
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
        "baseline_aa": options.baseline_aa,
        "metrics": ",".join(criteria.metrics or ()),
        "fail_on": ",".join(options.fail_on or ()),
        "rules": options.rules,
        "accept": options.accept,
        "allow_changed_work": options.allow_changed_work,
    }
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
