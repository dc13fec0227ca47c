"""``cnnbench bisect``: find the commit that made a run slower."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cnnbench.base import plugins
from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab.asking import identity_of
from cnnbench.campaigns.ab.experiment import MOST_PAIRS, Experiment
from cnnbench.campaigns.ab.lengths import LENGTHS, LONGEST, SHORTEST
from cnnbench.campaigns.ab.side import RESERVED, AbSide, check_flags_of_commit, refuse_flags
from cnnbench.campaigns.bisect.answers import pairs_for_answers
from cnnbench.campaigns.bisect.history import GitHistory, find_repository_root, good_and_bad_hashes
from cnnbench.campaigns.bisect.search import BISECT, Bisection, BisectionSettings
from cnnbench.campaigns.bisect.texts import bisection_text, store_result, why_no_search
from cnnbench.campaigns.processes import ConfigurationIdentity
from cnnbench.cli.commands import write_or_print_output
from cnnbench.cli.commands.ab_flags import AbFlags
from cnnbench.cli.commands.campaign_flags import CampaignFlags
from cnnbench.cli.commands.command_lines import (
    command_line_with_flags,
    printing_resume_command,
    replace_flags,
    split_command_and_run_flags,
)
from cnnbench.cli.commands.judging import JudgingFlags
from cnnbench.cli.commands.sides import interpreter_path
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import flag, flag_sections, redeclare_flag, specs_of
from cnnbench.judge.compare import Criteria, Verdict
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.machine.repository import uncommitted_changes_text

_ABOUT = """\
Usage: cnnbench bisect GOOD BAD [FLAGS] -- FLAGS OF cnnbench run

Finds the commit between two revisions of a git repository that made a run slower. Measures GOOD
against BAD, then commits between them by bisection, each against GOOD in pairs of fresh
processes as cnnbench ab does, in temporary worktrees (cnnbench docs bisect). Commits that do not
build or whose run fails are skipped. The repository contains cnnbench, or a plug-in that the flags
name by its path in the repository:

  cnnbench bisect HEAD~8 HEAD -- --plugin=bench/nets.py --model=ours --device=cpu --batch_size=8
  cnnbench bisect v1.4 main --resume -- --plugin=bench/nets.py --model=ours --num_batches=50
"""

_EXIT_CODES = """\
Exit codes: 0 the commit was found; 3 BAD is not slower than GOOD, or this is undecided, or skipped
commits leave several candidates; 4 GOOD or BAD fails; 2 wrong use; 130 interrupted: the table has
the commits that were measured (continue with --resume).
"""


@dataclass(frozen=True, kw_only=True)
class BisectFlags(CampaignFlags):
    """Flags of `cnnbench bisect`."""

    repository: str = flag(".", "A folder in the git repository.", path="folder")
    first_parent: bool = flag(
        False, "Treat a merge as one commit; do not search the merged commits."
    )
    build: str | None = flag(
        None,
        "Shell command that is run in every worktree before it is measured, for at most --timeout "
        "seconds. If the command fails, the commit is skipped.",
    )
    python: str | None = flag(
        None,
        "Python interpreter of the processes. cnnbench and the requirements of the repository "
        "must be installed.",
        path="file",
    )
    pairs: int = redeclare_flag(
        AbFlags,
        "pairs",
        help="Maximum number of pairs per commit. A commit without a clear answer is skipped.",
    )
    burn_in: int = redeclare_flag(AbFlags, "burn_in")
    seconds: float | None = redeclare_flag(
        AbFlags,
        "seconds",
        help="Seconds of timed steps in each process. The number of steps is chosen after the "
        f"burn-in. If not given: {SHORTEST:g} to {LONGEST:g}, chosen from the noise, again after "
        "each interim analysis. With 0, or if one of the following flags is given, the flags of "
        "the runs determine the number of steps: "
        f"{', '.join(f'--{name}' for name in sorted(LENGTHS))}.",
    )
    pairing: str = redeclare_flag(AbFlags, "pairing")
    threshold: float | None = redeclare_flag(JudgingFlags, "threshold")
    alpha: float | None = redeclare_flag(
        JudgingFlags,
        "alpha",
        help="Two-sided significance level for each commit; 0.04 if not given.",
    )
    results: str = flag("bisect", "Folder for records, logs and the journal.", path="folder")
    resume: bool = redeclare_flag(
        CampaignFlags,
        "resume",
        help="Continue the search in --results: commits with an answer are not measured again.",
    )


_SPECS = specs_of(BisectFlags)
_TITLES = {
    "repository": "What is measured",
    "pairs": "How each commit is measured",
    "timeout": "Processes and records",
}
HELP = (_ABOUT, tuple(flag_sections(BisectFlags, _TITLES).items()), _EXIT_CODES)


def main(argv: Sequence[str]) -> int:
    """Runs a bisection. If it raises UsageError, nothing has been measured."""
    values, ends, flags = split_command_and_run_flags(argv, _SPECS, "bisect GOOD BAD")
    options = BisectFlags(**values)
    if len(ends) != 2:
        raise UsageError(f"cnnbench bisect takes two revisions, GOOD and BAD, not {len(ends)}")
    setting = _make_settings(options, ends, flags)
    reporter = ChildProcessReporter(sys.stderr)
    for name, commit in (("GOOD", setting.good), ("BAD", setting.bad)):
        if text := uncommitted_changes_text(name, commit, setting.history.repository):
            reporter.notice(text)
    bisection = _run_bisection(setting, options, reporter, argv)
    return _print_result(bisection, reporter, options.results, argv)


def _make_settings(
    options: BisectFlags, good_and_bad: Sequence[str], run_flags: tuple[str, ...]
) -> BisectionSettings:
    repository = find_repository_root(options.repository)
    good, bad = good_and_bad_hashes(good_and_bad[0], good_and_bad[1], repository)
    python = options.python
    if python is not None:
        python = interpreter_path("python", python)
    side = AbSide(flags=run_flags, python=python)
    refuse_flags(side, RESERVED, "cannot be used with bisect, which keeps all records")
    check_flags_of_commit(side, good, repository)
    seconds = 0.0 if LENGTHS & side.given_flags.keys() else options.seconds
    judging = JudgingFlags(threshold=options.threshold, alpha=options.alpha)
    experiment = Experiment(
        most_pairs=options.pairs,
        seed=options.resolve_seed(BISECT, options.results),
        burn_in=options.burn_in,
        timed_seconds=seconds,
        timeout=options.timeout,
        criteria=Criteria(policy=judging.policy, metrics=(THROUGHPUT.name,)),
    )
    return BisectionSettings(
        history=GitHistory(repository, options.first_parent),
        good=good,
        bad=bad,
        side=side,
        build=options.build,
        experiment=experiment,
        pairing=options.pairing,
    )


def _run_bisection(
    setting: BisectionSettings,
    options: BisectFlags,
    reporter: ChildProcessReporter,
    argv: Sequence[str],
) -> Bisection:
    policy = {
        "name": "bisection",
        "GOOD": setting.good,
        "BAD": setting.bad,
        "build": setting.build,
        "first_parent": options.first_parent,
        "pairs": options.pairs,
        "seconds": setting.experiment.timed_seconds,
        **setting.experiment.criteria.policy.constants,
    }
    plans = {"": identity_of(setting.side)._replace(config=None)}
    # Plug-ins with absolute paths do not belong to the commits, so their code must not change.
    for path in plugins.plugin_files_of_flags(setting.side.given_flags):
        if os.path.isabs(path):
            # An error is ignored here, because the measured processes report it.
            with contextlib.suppress(UsageError):
                plugins.load_plugin_file(path)
            parts = plugins.files_used_by_plugins({plugins.FLAG: path})
            plans[path] = ConfigurationIdentity({}, {plugins.FLAG: path}, Path(path).parent, parts)
    opened = options.open_campaign(BISECT, plans, policy, reporter, seed=setting.experiment.seed)
    with opened as (folder, campaign, _), contextlib.ExitStack() as stack:
        folder.add_session_start()
        bisection = Bisection(setting, folder, campaign, stack)

        def known() -> str:
            return bisection_text(bisection) if bisection.steps else ""

        with printing_resume_command(reporter, "bisect", argv, _SPECS, known):
            campaign.run_requests(bisection.requests())
        store_result(folder, bisection)
        return bisection


def _print_result(
    bisection: Bisection, reporter: ChildProcessReporter, results: str, argv: Sequence[str]
) -> int:
    write_or_print_output(None, bisection_text(bisection))
    bad_step = bisection.bad_step
    if len(bisection.suspects) == 1:
        return ExitCode.OK
    failed = not bisection.suspects and bad_step.judgement.verdict is Verdict.FAILED
    if failed:
        reporter.error(f"BAD ({bad_step.commit[:12]}) fails: {bad_step.judgement.reason}")
    elif not bisection.suspects:
        reporter.notice(why_no_search(bad_step))
    for line in _next_step_lines(bisection, results, argv):
        reporter.notice(line)
    return ExitCode.FAILED if failed else ExitCode.INCONCLUSIVE


def _next_step_lines(bisection: Bisection, results: str, argv: Sequence[str]) -> Iterator[str]:
    """Yields a line with what the user can do after an unsuccessful bisection, if anything: repeat
    the search with more pairs in another folder than `results`, or measure killed processes again.
    """
    steps = bisection.unanswered_steps
    undecided = [step for step in steps if step.is_undecided]
    if not undecided:
        if any(step.lost for step in steps):
            yield f"to go on: {command_line_with_flags('bisect', argv, _SPECS, resume=True)}"
        return
    pairs = pairs_for_answers(undecided)
    if not 0 < pairs <= MOST_PAIRS:
        yield "for a verdict, first find what disturbs the machine: cnnbench env --check"
    else:
        words = replace_flags(argv, _SPECS, ["resume"])
        again = {"pairs": pairs, "results": f"{results}-{pairs}"}
        yield f"for a verdict: {command_line_with_flags('bisect', words, _SPECS, **again)}"
