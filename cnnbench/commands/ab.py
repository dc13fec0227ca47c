"""``cnnbench ab``: is B slower than A? Measured in turn, a fresh process per sample."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnnbench.commands import interrupt_on_sigterm, seed_or_random, split_at_dashes
from cnnbench.commands.judging import JUDGING, Judging
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags import parse_command
from cnnbench.flags.declare import flag, specs_of

if TYPE_CHECKING:
    from cnnbench.ab.session import Experiment, Finding
    from cnnbench.ab.side import Side, SideFlags
    from cnnbench.text.progress import Reporter

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

Exit codes: 0 no regression; 1 B is a regression; 3 inconclusive or not comparable; 4 a process
failed; 2 wrong use; 130 interrupted: the verdict on the pairs so far is printed.
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
    a_python: str | None = flag(None, "Interpreter of side A that has cnnbench installed.")
    b_python: str | None = flag(None, "That of side B.")
    a_checkout: str | None = flag(None, _CHECKOUT)
    b_checkout: str | None = flag(None, "The same for side B.")
    a_env: str | None = flag(None, "Environment variable of side A, NAME=VALUE; may be repeated.")
    b_env: str | None = flag(None, "Environment variable of side B.")


@dataclass(frozen=True, kw_only=True)
class MeasuringFlags:
    """How it is measured."""

    pairs: int = flag(16, "Pairs at most; at least 6 for a verdict.", minimum=1, maximum=1000)
    sequential: bool = flag(True, "Stop at an interim analysis that is clear; off, run all pairs.")
    burn_in: int = flag(
        1,
        "Processes of each side before the first pair that do not count.",
        minimum=0,
        maximum=100,
    )
    cool_down: float = flag(0.0, "Seconds between processes.", minimum=0, maximum=86400)
    timeout: float = flag(1800.0, "Seconds for each process.", above=0)
    seed: int | None = flag(None, "Of the order within pairs; random if not given.", minimum=0)
    results: str | None = flag(
        None, "Where records go: DIR/a and DIR/b; ab-DATE-TIME if not given."
    )
    aa: bool = flag(
        False,
        "Measure side A twice, to see how far runs of the same thing lie apart. All pairs are "
        "run; cnnbench compare and ab take the answer as --baseline_aa=DIR.",
    )


@dataclass(frozen=True, kw_only=True)
class AbFlags(AbSideFlags, MeasuringFlags):
    """Flags of the command, those of the verdict apart."""


_OWN = (*specs_of(AbSideFlags), *specs_of(MeasuringFlags))


_FLAGS = (
    ("What a side is", specs_of(AbSideFlags)),
    ("How it is measured", specs_of(MeasuringFlags)),
    ("How it is judged and printed", JUDGING),
)
HELP = (_ABOUT, _FLAGS, _EXIT_CODES)


_VARIABLES = ("a_env", "b_env")

# A second process would resume what the first has left, or overwrite it.
_RESERVED = ("result_json", "result_csv", "train_dir")


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
    given, stray = parse_command(words, (*_OWN, *JUDGING))
    if stray:
        raise UsageError(
            f"stray argument {stray[0]!r}: flags of both sides go behind --, those of one "
            "side into --a or --b"
        )
    options = AbFlags(**{spec.name: given[spec.name] for spec in _OWN if spec.name in given})
    judging = Judging.of(given)
    if options.aa:
        _refuse_other_side(given, variables)
    # Imported late: --help and wrong flags need none of it.
    from cnnbench.text.progress import Reporter

    reporter = Reporter(sys.stderr)
    interrupt_on_sigterm()
    with contextlib.ExitStack() as stack:
        names = ("a", "a") if options.aa else ("a", "b")
        a, b = (stack.enter_context(_side(n, options, variables[n], common)) for n in names)
        resolved = _resolved(a, b)
        for notice in dict.fromkeys(n for side in resolved.values() for n in side.notices):
            reporter.line(notice)
        experiment = _experiment(options, judging, a, b, resolved)
        if not options.aa:
            _refuse_equal_sides(a, b)
        return _run(experiment, options, judging, reporter)


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


def _refuse_equal_sides(a: Side, b: Side) -> None:
    # Of equal checkouts and interpreters it may be the very question whether they are.
    if a == b and not (a.checkout or a.python or a.variables):
        raise UsageError(
            "the two sides are the same; say with --a and --b, --a_python, --a_checkout or --a_env "
            "what makes them differ, or measure one of them twice with --aa"
        )


@contextlib.contextmanager
def _side(
    name: str, options: AbFlags, variables: dict[str, str], common: Sequence[str]
) -> Iterator[Side]:
    """A side, with the checkout it needs."""
    from cnnbench.ab.side import Side, checked_out

    try:
        own = tuple(shlex.split(getattr(options, name)))
    except ValueError as error:
        raise FlagError(name, getattr(options, name), f"is no list of flags: {error}") from None
    flags = (*(common[1:] if common[:1] == ("run",) else common), *own)
    python, checkout = (getattr(options, f"{name}_{what}") for what in ("python", "checkout"))
    if python is not None:
        python = _interpreter(f"{name}_python", python)
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


def _interpreter(flag: str, text: str) -> str:
    """An absolute path; links are not followed, that would leave a virtual environment."""
    found = shutil.which(text)
    if found is None:
        raise FlagError(flag, text, "is no program that can be started")
    return os.path.abspath(found)


def _resolved(a: Side, b: Side) -> dict[str, SideFlags]:
    """The resolved flags by side; refuses wrong ones as far as this cnnbench knows them."""
    from cnnbench.ab.flags import check, refuse

    for side in (a, b):
        refuse(side, _RESERVED, "cannot go with ab; it keeps a record of each process")
    first = check(a)
    return {"a": first, "b": first if a == b else check(b)}


def _experiment(
    options: AbFlags, judging: Judging, a: Side, b: Side, resolved: dict[str, SideFlags]
) -> Experiment:
    from cnnbench.ab.sequential import looks
    from cnnbench.ab.session import Experiment
    from cnnbench.compare.comparability import check_facts

    loaded = judging.load_aa(reductions=False)
    check_facts(judging.allowed, () if loaded is None else loaded.records)
    return Experiment(
        a=a,
        b=b,
        looks=looks(options.pairs, judging.policy.alpha, options.sequential and not options.aa),
        seed=seed_or_random(options.seed),
        burn_in=options.burn_in,
        cool_down=options.cool_down,
        timeout=options.timeout,
        policy=judging.policy,
        metrics=judging.metric_names,
        allow_different=judging.allowed,
        aa=None if loaded is None else loaded.records,
        resolved=resolved,
    )


def _run(experiment: Experiment, options: AbFlags, judging: Judging, reporter: Reporter) -> int:
    from cnnbench.ab.results import Results
    from cnnbench.ab.session import Session, aa_lines
    from cnnbench.compare import processes_needed
    from cnnbench.machine import facts

    last = experiment.policy.replace(alpha=experiment.looks[-1].alpha)
    needed = processes_needed(last, paired=True)
    if experiment.pairs < needed and not options.aa:
        reporter.line(f"warning: a verdict needs at least {needed} pairs, not {experiment.pairs}")
    results = Results(options.results or f"ab-{datetime.now():%Y%m%d-%H%M%S}")
    reporter.line(f"A {experiment.a.description()}")
    reporter.line(f"B {experiment.b.description()}")
    reporter.line(f"at most {experiment.pairs} pairs, seed {experiment.seed}, in {results.folder}")
    finding = Session(experiment, results, reporter, facts=facts.collect()).run()
    judging.write(finding.comparison)
    if finding.failure:
        reporter.line(f"error: {finding.failure}; see {results.log('*')}")
    if options.aa and not finding.failure:
        for line in aa_lines(finding.comparison, experiment.policy):
            reporter.line(line)
        reporter.line(f"to judge with it: cnnbench compare BASE NEW --baseline_aa={results.folder}")
    _tell_again(experiment, finding, results.folder, judging, reporter)
    if finding.interrupted:
        reporter.line("error: interrupted")
        return ExitCode.INTERRUPTED
    if finding.failure:
        return ExitCode.FAILED
    return ExitCode.OK if options.aa else finding.comparison.exit_code


def _tell_again(
    experiment: Experiment, finding: Finding, folder: Path, judging: Judging, reporter: Reporter
) -> None:
    """The compare command that gives the same verdict from the files."""
    from cnnbench.compare import METRICS, Policy
    from cnnbench.compare.comparability import unknown_facts

    usual, policy = Policy(), experiment.policy
    flags = ["--paired"]
    flags += [] if finding.alpha == usual.alpha else [f"--alpha={finding.alpha!r}"]
    if policy.threshold != usual.threshold:
        flags.append(f"--threshold={judging.threshold!r}")
    records = [run for entry in finding.comparison.entries for run in (*entry.base, *entry.new)]
    allowed = dict.fromkeys(experiment.allowed)
    names = [name for name in allowed if name not in unknown_facts(allowed, records)]
    flags += [f"--allow_different={','.join(names)}"] if names else []
    flags += [f"--baseline_aa={judging.baseline_aa}"] if judging.baseline_aa else []
    if judging.metric_names != tuple(METRICS):
        flags.append(f"--metrics={','.join(judging.metric_names)}")
    command = shlex.join(["cnnbench", "compare", f"{folder}/a", f"{folder}/b", *flags])
    reporter.line(f"the same from the files: {command}")
