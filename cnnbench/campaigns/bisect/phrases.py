"""The sentences about the result of `cnnbench bisect`."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.text import item_count, percent, percent_range
from cnnbench.campaigns.bisect.answers import BAD, SKIP, BisectionStep
from cnnbench.judge.compare import Verdict
from cnnbench.judge.metrics.judged import THROUGHPUT

TITLE = "Bisection"
NOT_ENDED = "The bisection has not ended"
CONTINUE = "cnnbench bisect with the same arguments and --resume continues it"
TABLE = (
    "The commits that cnnbench bisect compared with GOOD, in the order of the measurements. The "
    "paired change is the change against GOOD; the interval is its confidence interval."
)

# Changes of at least this size are printed as whole percentages.
_LARGE = 0.1


def step_answer(step: BisectionStep) -> str:
    """The answer about a commit as text."""
    if step.answer == SKIP:
        return f"{'undecided' if step.is_undecided else 'skipped'}: {step.judgement.reason}"
    if step.about_work:
        return "bad: other work to do" if step.answer == BAD else "good: the same work to do"
    return f"{step.answer}: {_speed_change(step)}"


def _speed_change(step: BisectionStep) -> str:
    """A commit's change of speed, "37 % slower (15 to 61 %)" or "+0.3 % (-1.0 to +1.6 %)"."""
    change, low, high = step.judgement.change, step.judgement.low, step.judgement.high
    if change is None or low is None or high is None:
        return f"{step.judgement.verdict.value}, {step.judgement.reason}"
    if low <= 0 <= high:
        return f"{THROUGHPUT.change_text(change)} ({THROUGHPUT.range_text(low, high)})"
    digits = 0 if abs(change) >= _LARGE else 1
    least, most = sorted((abs(low), abs(high)))
    direction = "slower" if change < 0 else "faster"
    return f"{percent(abs(change), digits)} {direction} ({percent_range(least, most, digits)})"


def first_bad_commit(commit: str) -> str:
    """Says that the bisection has found a commit."""
    return f"{commit} is the first bad commit"


def change_within_pairs(step: BisectionStep) -> str:
    """The change of the first bad commit, with its interval if that is known."""
    change, low, high = step.judgement.change, step.judgement.low, step.judgement.high
    if step.about_work or change is None or low is None or high is None:
        return step_answer(step)
    return (
        f"{THROUGHPUT.change_text(change)} images/sec within pairs, against GOOD "
        f"({percent(step.confidence, 0)} interval {THROUGHPUT.range_text(low, high)}, "
        f"{step.pairs} pairs)"
    )


def repeat_comparison(command: str) -> str:
    """The command line that compares the first bad commit with the commit before it."""
    return f"against the commit before it: {command}"


def merge(commits: Sequence[str], first_parent: bool) -> str:
    """Says that the first bad commit merges commits, and whether they were searched."""
    if first_parent:
        return (
            f"a merge of {' and '.join(commits)}; --first_parent did not search the merged commits"
        )
    return f"a merge of {' and '.join(commits)}; each of these is good alone"


def reverts(commit: str) -> str:
    """Says which commit the first bad commit reverts."""
    return f"it reverts {commit}"


def suspects(commits: Sequence[str]) -> str:
    """Says how many commits may be the first bad commit."""
    number = item_count(commits)
    return f"the first bad commit is one of these {number}; skipped commits hide which:"


def no_difference(step: BisectionStep) -> str:
    """Says why bisect cannot search (BAD is not slower than GOOD), and what the user can do."""
    if step.is_undecided:
        return f"whether BAD is slower than GOOD is undecided: {step.judgement.reason}"
    text = f"BAD is not slower than GOOD: {step.judgement.verdict.value}, {step.judgement.reason}; "
    if step.judgement.verdict in (Verdict.SAME, Verdict.NOT_SLOWER):
        return text + "check revisions and flags, or look for a smaller change with --threshold"
    if step.judgement.verdict is Verdict.FASTER:
        return text + "bisect looks for slower commits only: check which is GOOD and which is BAD"
    return text + "measure comparable commits"
