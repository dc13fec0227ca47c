"""Result of a bisection as text."""

from __future__ import annotations

import shlex

from cnnbench.base.text.escape import one_line
from cnnbench.base.text.numbers import NONE, percent
from cnnbench.base.text.table import fitted
from cnnbench.campaigns.bisect.bench import Setting
from cnnbench.campaigns.bisect.commits import History
from cnnbench.campaigns.bisect.search import BAD, Step, is_about_work
from cnnbench.campaigns.bisect.session import BisectionOutcome, word
from cnnbench.judge.compare.verdict import Verdict
from cnnbench.judge.metrics.registry import THROUGHPUT

_TITLES = ("commit", "answer", "change", "interval", "pairs", "subject")


def lines(outcome: BisectionOutcome, setting: Setting, history: History) -> list[str]:
    """A table of the steps, and the first bad commit or the candidates for it."""
    rows = [_TITLES, *(_row(step, history) for step in outcome.steps)]
    text = [*fitted(rows, left=(0, 1, 5)), ""]
    if len(outcome.suspects) == 1:
        text += _culprit(outcome, setting, history)
    elif outcome.suspects:
        text += _range(outcome, history)
    # Subjects and names may hold anything; the indentation is ours.
    return [" " * (len(line) - len(line.lstrip(" "))) + one_line(line) for line in text]


def no_difference(step: Step) -> str:
    """The reason why there is nothing to search for, and advice."""
    if step.undecided:
        return f"whether BAD is slower than GOOD is undecided: {step.reason}"
    text = f"BAD is not slower than GOOD: {step.verdict}, {step.reason}; "
    if step.verdict == Verdict.SAME.value:
        return text + "check revisions and flags, or look for a smaller change with --threshold"
    if step.verdict == Verdict.FASTER.value:
        return text + "bisect looks for slower commits only: check which is GOOD and which is BAD"
    return text + "measure what can be compared"


def _row(step: Step, history: History) -> tuple[str, ...]:
    known = step.low is not None and step.high is not None
    return (
        step.commit[:12],
        step.answer,
        _change(step),
        _interval(step) if known else NONE,
        str(step.pairs),
        history.describe(step.commit).subject,
    )


def _culprit(outcome: BisectionOutcome, setting: Setting, history: History) -> list[str]:
    (commit,) = outcome.suspects
    about, step = history.describe(commit), outcome.of(commit)
    assert step is not None  # only what was measured is bad for certain
    sides = [f"--a_checkout={history.parent(commit)[:12]}", f"--b_checkout={commit[:12]}"]
    again = ["cnnbench", "ab", *sides, "--", *setting.flags]
    what = word(step, outcome.differ)
    if not is_about_work(outcome.differ) and step.low is not None:
        what = f"{_change(step)} median images/sec against GOOD "
        what += f"({percent(step.confidence, 0)} interval {_interval(step)}, {step.pairs} pairs)"
    return [
        f"{commit} is the first bad commit",
        f"      {about.subject}",
        f"      {about.author}, {about.date}",
        f"      {what}",
        f"      against the commit before it: {shlex.join(again)}",
    ]


def _range(outcome: BisectionOutcome, history: History) -> list[str]:
    number = len(outcome.suspects)
    text = [f"the first bad commit is one of these {number}; skipped commits hide which:"]
    for commit in outcome.suspects:
        step = outcome.of(commit)
        why = "" if step is None else word(step, outcome.differ)
        text.append(f"      {commit[:12]} {history.describe(commit).subject}")
        text.append(f"            {BAD if step is not None and step.answer == BAD else why}")
    return text


def _change(step: Step) -> str:
    return NONE if step.change is None else THROUGHPUT.change_text(step.change)


def _interval(step: Step) -> str:
    if step.low is None or step.high is None:
        return NONE
    return THROUGHPUT.range_text(step.low, step.high)
