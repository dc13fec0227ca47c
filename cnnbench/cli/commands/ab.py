"""``cnnbench ab``: is B slower than A? Measured in turn, a fresh process per sample."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnnbench.cli.commands import interrupt_on_signals, seed_or_random, sides, split_at_dashes
from cnnbench.cli.commands.judging import JUDGING, JudgingFlags
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags.declare import flag, specs_of

if TYPE_CHECKING:
    from cnnbench.base.text.progress import Reporter
    from cnnbench.campaigns.ab.experiment import Experiment
    from cnnbench.campaigns.ab.session import Finding
    from cnnbench.campaigns.ab.side import Side
    from cnnbench.judge.compare import Comparison

_ABOUT = """\
Usage: cnnbench ab [--a=FLAGS] [--b=FLAGS] [FLAGS] [-- FLAGS OF BOTH SIDES]

Measures two sides in turn, each sample in a fresh process, in random order within every pair,
and judges the pairs: faster, slower, same, inconclusive (docs/ab.md). It stops as soon as an
interim analysis is clear: after 8 pairs, 12, and so on up to --pairs.

  cnnbench ab --a=--precision=fp32 --b=--precision=bf16 -- --model=resnet50
  cnnbench ab --a_python=old/bin/python --b_python=new/bin/python -- --model=resnet50
  cnnbench ab --a_checkout=main --b_checkout=. -- --model=lenet
"""

_EXIT_CODES = """\
What the sides differ in is allowed by itself.

Exit codes: 0 no regression; 1 B is a regression, or other work; 3 inconclusive or not
comparable; 4 a process failed, or processes were killed too often; 2 wrong use; 130 interrupted:
the verdict on the pairs so far is printed.
"""

_CHECKOUT = (
    "Work in this folder, or in a temporary worktree of this git revision; if it is a checkout of "
    "cnnbench, its code runs."
)


@dataclass(frozen=True, kw_only=True)
class AbSideFlags:
    """What a side is."""

    a: str = flag("", "Flags of side A alone, in one word.")
    b: str = flag("", "Flags of side B alone.")
    a_python: str | None = flag(
        None, "Interpreter of side A that has cnnbench installed.", path="file"
    )
    b_python: str | None = flag(None, "That of side B.", path="file")
    a_checkout: str | None = flag(None, _CHECKOUT, path="folder")
    b_checkout: str | None = flag(None, "The same for side B.", path="folder")
    a_env: str | None = flag(None, "Environment variable of side A, NAME=VALUE; may be repeated.")
    b_env: str | None = flag(None, "Environment variable of side B.")


SECONDS, DISTURBED_SECONDS = 5.0, 10.0
"""Timed steps of a process in all, and where other programs use the CPUs; docs/methodology.md."""


@dataclass(frozen=True, kw_only=True)
class MeasuringFlags:
    """How it is measured."""

    pairs: int = flag(
        16, "Pairs at most; at least 6 for a verdict.", minimum=1, maximum=sides.MOST_PAIRS
    )
    sequential: bool = flag(
        True,
        "Stop at an interim analysis that is clear, or after which the pairs that are left have "
        "hardly a chance of a verdict; off, run all pairs.",
    )
    burn_in: int = flag(
        1,
        "Processes of each side before the first pair that do not count.",
        minimum=0,
        maximum=100,
    )
    seconds: float | None = flag(
        None,
        "Seconds of timed steps in each process; their number is chosen after the burn-in. Not "
        f"given: {SECONDS:g}, or {DISTURBED_SECONDS:g} where other programs use the CPUs. 0, or "
        "with --num_batches or --num_epochs among the flags of a side: as many as these say.",
        minimum=0,
        maximum=86400,
    )
    cool_down: float = flag(0.0, "Seconds between processes.", minimum=0, maximum=86400)
    timeout: float = flag(1800.0, "Seconds for each process.", above=0)
    pairing: str = flag(
        "auto",
        "How the two processes of a pair share their time: turns, both are alive and step in turn; "
        "alternate, one runs after the other; auto, turns where they are possible.",
        choices=("alternate", "turns", "auto"),
    )
    seed: int | None = flag(None, "Of the order within pairs; random if not given.", minimum=0)
    results: str | None = flag(
        None, "Where records go: DIR/a and DIR/b; ab-DATE-TIME if not given.", path="folder"
    )
    aa: bool = flag(
        False,
        "Measure side A twice, to see how far runs of the same thing lie apart. All pairs are "
        "run; cnnbench compare and ab take the answer as --baseline_aa=DIR.",
    )


@dataclass(frozen=True, kw_only=True)
class AbFlags(AbSideFlags, MeasuringFlags, JudgingFlags):
    """Flags of the command."""


_FLAGS = (
    ("What a side is", specs_of(AbSideFlags)),
    ("How it is measured", specs_of(MeasuringFlags)),
    ("How it is judged and printed", JUDGING),
)
HELP = (_ABOUT, _FLAGS, _EXIT_CODES)


_OF_ONE_EXPERIMENT = ("pairs", "results", "seed")

_VARIABLES = ("a_env", "b_env")

# Flags of a run that say how many timed steps it makes.
_LENGTHS = frozenset({"num_batches", "num_epochs"})


def main(argv: Sequence[str]) -> int:
    """Runs an experiment.

    Returns:
      The exit code that the help explains.

    Raises:
      UsageError: wrong flags; nothing has been run.
      BenchmarkError: results can no longer be written.
    """
    rest, variables = _take_variables(argv)
    words, common = split_at_dashes(rest)
    specs = [spec for _, those in _FLAGS for spec in those]
    given, stray = sides.parse(words, specs, "ab ...", "; those of one side into --a or --b")
    if stray:
        raise UsageError(
            f"stray argument {stray[0]!r}: flags of both sides go behind --, those of one "
            "side into --a or --b"
        )
    options = AbFlags(**given)
    options.check()
    if options.aa:
        _refuse_other_side(given, variables)
    # Imported late: --help and wrong flags need none of it.
    from cnnbench.base.text.progress import Reporter

    reporter = Reporter(sys.stderr)
    interrupt_on_signals()
    with contextlib.ExitStack() as stack:
        names = ("a", "a") if options.aa else ("a", "b")
        a, b = (stack.enter_context(_side(n, options, variables[n], common)) for n in names)
        experiment = _experiment(options, a, b, reporter)
        if not options.aa:
            _refuse_equal_sides(experiment)
        return _run(_in_turn(experiment, options, reporter), options, reporter, argv)


def _take_variables(argv: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The command line without --a_env and --b_env, and what they say, by side."""
    found: dict[str, dict[str, str]] = {"a": {}, "b": {}}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return [*rest, word, *words], found
        name, equals, text = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in _VARIABLES:
            rest.append(word)
            continue
        if not equals:
            text = next(words, "")
        variable, equals, value = text.partition("=")
        if not equals or not variable:
            raise FlagError(name, text, "must be NAME=VALUE")
        found[name[0]][variable] = value
    return rest, found


def _refuse_other_side(given: dict[str, Any], variables: dict[str, dict[str, str]]) -> None:
    if variables["b"]:
        given = {**given, "b_env": "..."}
    for name in (name for name in ("b", "b_python", "b_checkout", "b_env") if name in given):
        raise FlagError(name, given[name], "--aa measures side A twice; leave it out")


def _refuse_equal_sides(experiment: Experiment) -> None:
    a, b = experiment.a, experiment.b
    configs = [experiment.resolved[name].config for name in ("a", "b")]
    code = _code(a)
    same_flags = a.flags == b.flags or (bool(configs[0]) and configs[0] == configs[1])
    if (same_flags, a.python, a.variables, code) != (True, b.python, b.variables, _code(b)):
        return
    what = "" if a.checkout is None else f": {a.revision} and {b.revision} are both {code}"
    raise UsageError(
        f"the two sides are the same{what}; say with --a and --b, --a_python, --a_checkout or "
        "--a_env what makes them differ, or measure one of them twice with --aa"
    )


def _code(side: Side) -> str:
    """The folder, or the commit of the temporary worktree, that a side works in."""
    from cnnbench.campaigns.ab.checkout import commit_of

    if side.checkout is None or side.revision is None or Path(side.revision).is_dir():
        return str(side.checkout or "")
    return f"commit {(commit_of(side.revision) or '')[:12]}"


@contextlib.contextmanager
def _side(
    name: str, options: AbFlags, variables: dict[str, str], common: Sequence[str]
) -> Iterator[Side]:
    """A side, with the checkout it needs."""
    from cnnbench.campaigns.ab.checkout import checked_out
    from cnnbench.campaigns.ab.side import Side

    try:
        own = tuple(shlex.split(getattr(options, name)))
    except ValueError as error:
        raise FlagError(name, getattr(options, name), f"is no list of flags: {error}") from None
    flags = (*(common[1:] if common[:1] == ("run",) else common), *own)
    python, checkout = (getattr(options, f"{name}_{what}") for what in ("python", "checkout"))
    if python is not None:
        python = sides.interpreter(f"{name}_python", python)
    with contextlib.ExitStack() as stack:
        folder = None
        if checkout is not None:
            folder = stack.enter_context(checked_out(f"{name}_checkout", checkout))
        yield Side(
            flags=flags,
            own=own,
            python=python,
            checkout=folder,
            revision=checkout,
            variables=variables,
        )


def _experiment(options: AbFlags, a: Side, b: Side, reporter: Reporter) -> Experiment:
    """What to measure; refuses wrong flags of sides as far as this cnnbench knows them."""
    from cnnbench.campaigns.ab.flags import check, names, refuse

    for side in (a, b):
        refuse(side, sides.RESERVED, "cannot go with ab; it keeps a record of each process")
    first = check(a)
    resolved = {"a": first, "b": first if a == b else check(b)}
    for notice in dict.fromkeys(n for side in resolved.values() for n in side.notices):
        reporter.notice(notice)
    # Imported later still: they load NumPy.
    from cnnbench.campaigns.ab.experiment import Experiment
    from cnnbench.campaigns.ab.sequential import interim_analyses
    from cnnbench.judge.compare.comparability import check_facts
    from cnnbench.machine import repository

    # Side A measured twice is one and the same.
    labels = {"a": "a", "b": "a" if options.aa else "b"}
    found = {
        name: repository.of_folder(side.checkout)
        if side.checkout
        else repository.of_work(resolved[name].config)
        for name, side in (("a", a), ("b", b))
    }
    subjects = {name: replace(one, side=labels[name]) for name, one in found.items()}
    loaded = options.load_aa(reductions=False)
    check_facts(options.allowed, () if loaded is None else loaded.records)
    sequential = options.sequential and not options.aa
    told = any(names(side) & _LENGTHS for side in (a, b))
    given = options.seconds
    return Experiment(
        a=a,
        b=b,
        analyses=interim_analyses(options.pairs, options.policy.alpha, sequential),
        seed=seed_or_random(options.seed),
        burn_in=options.burn_in,
        cool_down=options.cool_down,
        timeout=options.timeout,
        timed_seconds=0.0 if told else SECONDS if given is None else given,
        disturbed_seconds=0.0 if told else DISTURBED_SECONDS if given is None else given,
        policy=options.policy,
        metrics=options.metric_names,
        allow_different=options.allowed,
        allow_changed_work=options.allow_changed_work,
        aa=None if loaded is None else loaded.records,
        resolved=resolved,
        subjects=subjects,
    )


def _in_turn(experiment: Experiment, options: AbFlags, reporter: Reporter) -> Experiment:
    from cnnbench.campaigns.ab.turns import turn_seconds

    sides, resolved = experiment.sides(), experiment.resolved
    seconds = turn_seconds(options.pairing, sides, resolved, reporter)
    return replace(experiment, turn_seconds=seconds)


def _run(experiment: Experiment, options: AbFlags, reporter: Reporter, argv: Sequence[str]) -> int:
    from cnnbench.base.text.numbers import duration
    from cnnbench.campaigns.ab.pairs import Pairs
    from cnnbench.campaigns.ab.results import PairsFolder
    from cnnbench.campaigns.ab.session import Session
    from cnnbench.campaigns.processes.campaign import Campaign
    from cnnbench.judge.compare import processes_needed
    from cnnbench.judge.compare.noise import spread_lines
    from cnnbench.machine import facts

    last = experiment.policy.replace(alpha=experiment.analyses[-1].alpha)
    needed = processes_needed(last, paired=True)
    if experiment.pairs < needed and not options.aa:
        reporter.warning(f"a verdict needs at least {needed} pairs, not {experiment.pairs}")
    with PairsFolder(options.results or f"ab-{datetime.now():%Y%m%d-%H%M%S}") as results:
        reporter.notice(f"A {experiment.a.description()}")
        reporter.notice(f"B {experiment.b.description()}")
        reporter.notice(
            f"at most {experiment.pairs} pairs, seed {experiment.seed}, in {results.folder}"
        )
        pairs = Pairs(experiment, results, Campaign(reporter, facts.collect()))
        finding = Session(pairs).run()
    code = _exit_code(finding, options)
    settled = options.aa or finding.failure or finding.interrupted
    enough = 0 if settled else _enough(finding.comparison)
    next_step = _next_step(enough, argv) if enough else ""
    comparison = replace(finding.comparison, ends_with=code, next_step=next_step)
    options.write(comparison)
    if finding.failure:
        reporter.error(f"{finding.failure}; see {results.log('*')}")
    if options.aa and not finding.failure:
        for line in spread_lines(finding.comparison, experiment.policy):
            reporter.notice(line)
        reporter.notice(
            f"to judge with it: cnnbench compare BASE NEW --baseline_aa={results.folder}"
        )
    command = shlex.join(_same_from_files(experiment, finding, results.folder, options))
    reporter.notice(f"the same from the files: {command}")
    if next_step:
        seconds = pairs.seconds_per_pair
        time = "" if seconds is None else f" (about {duration(enough * seconds)} at most)"
        reporter.notice(f"to settle it{time}: {next_step}")
    if finding.interrupted:
        reporter.error("interrupted")
    return code


def _exit_code(finding: Finding, options: AbFlags) -> ExitCode:
    if finding.interrupted:
        return ExitCode.INTERRUPTED
    if finding.failure:
        return ExitCode.FAILED
    return ExitCode.OK if options.aa else finding.comparison.exit_code


def _next_step(pairs: int, argv: Sequence[str]) -> str:
    """The command that measures so many pairs."""
    again = sides.without(argv, _OF_ONE_EXPERIMENT)
    return shlex.join(["cnnbench", "ab", f"--pairs={pairs}", *again])


def _enough(comparison: Comparison) -> int:
    """Pairs for an experiment that is to settle it; 0 where they would not help."""
    from cnnbench.cli.commands.settling import settling_pairs
    from cnnbench.judge.compare.answer import undecided

    return next((settling_pairs(comparison, entry) for entry in undecided(comparison)), 0)


def _same_from_files(
    experiment: Experiment, finding: Finding, folder: Path, options: AbFlags
) -> list[str]:
    """The compare command that gives the same verdict from the files."""
    from cnnbench.judge.compare import DEFAULT_METRICS, Policy
    from cnnbench.judge.compare.comparability import unknown_facts

    records = [run for entry in finding.comparison.entries for run in (*entry.base, *entry.new)]
    allowed = dict.fromkeys(experiment.allowed)
    names = [name for name in allowed if name not in unknown_facts(allowed, records)]
    usual = Policy()
    flags = {
        "alpha": None if finding.alpha == usual.alpha else repr(finding.alpha),
        "threshold": repr(options.threshold) if options.policy.threshold != usual.threshold else "",
        "allow_different": ",".join(names),
        "baseline_aa": options.baseline_aa,
        "metrics": ",".join(options.metric_names)
        if options.metric_names != DEFAULT_METRICS
        else "",
    }
    given = [f"--{name}={text}" for name, text in flags.items() if text]
    given += ["--allow_changed_work"] if options.allow_changed_work else []
    return ["cnnbench", "compare", f"{folder}/a", f"{folder}/b", "--paired", *given]
