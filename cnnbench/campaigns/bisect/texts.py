"""The result of a bisection as blocks, and in the journal for reports."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from cnnbench.base.document import Answer, Paragraph, Row, Section, make_table, numeric_cell
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.text import percent
from cnnbench.campaigns.ab.experiment import SIDES
from cnnbench.campaigns.bisect.answers import BAD, BisectionStep, step_answer_text
from cnnbench.campaigns.bisect.history import GitHistory
from cnnbench.campaigns.bisect.search import BISECT, Bisection
from cnnbench.campaigns.processes import (
    JOURNAL,
    Journal,
    ResultsFolder,
    store_answer,
    stored_answers,
)
from cnnbench.judge.compare import Verdict
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.machine.repository import abbreviate_hash, reverted_commit

_TITLE = "Bisection"


def bisection_text(bisection: Bisection) -> str:
    """The result of a bisection as text: a table of the measured commits, and the bad commit.

    If the bisection was interrupted, the number of remaining candidates replaces the bad commit. At
    least BAD must have been measured.
    """
    answer = []
    if bisection.suspects:
        answer = _answer(bisection)
    elif bisection.bad_step.answer == BAD:
        answer = [Paragraph(bisection.search.remaining_text)]
    return sections_to_text([[make_table(_step_rows(bisection), whole=True)], answer])


def store_result(folder: ResultsFolder, bisection: Bisection) -> None:
    """Stores the result of a bisection in its journal, for `stored_result`."""
    text, *details = (paragraph.text for paragraph in _answer(bisection))
    tone = "bad" if len(bisection.suspects) == 1 else "unsure"
    answer = Answer(_TITLE, text, tone, tuple(filter(None, details)))
    about = (
        "The commits that cnnbench bisect compared with GOOD, in the order of the measurements. "
        "The paired change is the change against GOOD; the interval is its confidence interval."
    )
    store_answer(folder, answer, about, _step_rows(bisection))


def stored_result(folder: Path) -> tuple[Answer, list[Section]] | None:
    """Reads the result of the bisection in a folder, as an answer and sections for a report.

    Returns None if the folder contains no bisection. If the bisection has not ended, the answer
    says so.
    """
    for answer, section in stored_answers(BISECT, folder):
        return answer, [section]
    if not BISECT.is_campaign(Journal(folder / JOURNAL).read()):
        return None
    go_on = "cnnbench bisect with the same arguments and --resume continues it"
    return Answer(_TITLE, "The bisection has not ended", "unsure", (go_on,)), []


def _step_rows(bisection: Bisection) -> Iterator[Row]:
    for step in bisection.steps.values():
        change, low, high = step.judgement.change, step.judgement.low, step.judgement.high
        interval = numeric_cell(None)
        if low is not None and high is not None:
            interval = numeric_cell(high - low, THROUGHPUT.range_text(low, high))
        yield {
            "commit": step.commit[:12],
            "answer": step.answer,
            "paired change": numeric_cell(change, THROUGHPUT.change_text),
            "interval": interval,
            "pairs": numeric_cell(step.pairs),
            "subject": bisection.setting.history.format_commit(step.commit),
        }


def _answer(bisection: Bisection) -> list[Paragraph]:
    """The answer of a bisection, and its details: about the first bad commit, or about the commits
    of which one is the first bad commit.
    """
    if len(bisection.suspects) == 1:
        return _culprit(bisection)
    if not bisection.suspects:
        return [Paragraph(why_no_search(bisection.bad_step))]
    number = len(bisection.suspects)
    text = f"the first bad commit is one of these {number}; skipped commits hide which:"
    paragraphs = [Paragraph(text)]
    for commit in bisection.suspects:
        step, why = bisection.steps.get(commit), ""
        if step is not None:
            why = BAD if step.answer == BAD else step_answer_text(step)
        title = f"{commit[:12]} {bisection.setting.history.format_commit(commit)}"
        paragraphs.append(Paragraph(title, indent=6, whole=True))
        paragraphs.append(Paragraph(why, indent=12, whole=True))
    return paragraphs


def why_no_search(step: BisectionStep) -> str:
    """Says why bisect cannot search (BAD is not slower than GOOD), and what the user can do."""
    if step.is_undecided:
        return f"whether BAD is slower than GOOD is undecided: {step.judgement.reason}"
    text = f"BAD is not slower than GOOD: {step.judgement.verdict.value}, {step.judgement.reason}; "
    if step.judgement.verdict in (Verdict.SAME, Verdict.NOT_SLOWER):
        return text + "check revisions and flags, or look for a smaller change with --threshold"
    if step.judgement.verdict is Verdict.FASTER:
        return text + "bisect looks for slower commits only: check which is GOOD and which is BAD"
    return text + "measure comparable commits"


def _culprit(bisection: Bisection) -> list[Paragraph]:
    (commit,), history = bisection.suspects, bisection.setting.history
    lines = (
        history.format_commit(commit),
        history.format_commit(commit, "%an, %as"),
        # The only remaining candidate must have been measured.
        _change(bisection.steps[commit]),
        *_commit_remarks(commit, history),
        f"against the commit before it: {_command_on_parent_and_commit('ab', commit, bisection)}",
        f"layers and causes: {_command_on_parent_and_commit('explain', commit, bisection)}",
    )
    return [
        Paragraph(f"{commit} is the first bad commit"),
        *(Paragraph(line, indent=6, whole=True) for line in lines),
    ]


def _command_on_parent_and_commit(command: str, commit: str, bisection: Bisection) -> str:
    """The command line that compares a commit (B) with the commit before it (A)."""
    history, side = bisection.setting.history, bisection.setting.side
    flags = [f"--a_checkout={history.parent(commit)[:12]}", f"--b_checkout={commit[:12]}"]
    if side.python is not None:
        flags += [f"--{name}_python={side.python}" for name in SIDES]
    line = shlex.join(["cnnbench", command, *flags, "--", *side.flags])
    if Path.cwd().is_relative_to(history.repository):
        return line
    return f"cd {shlex.quote(str(history.repository))} && {line}"


def _change(step: BisectionStep) -> str:
    """The change of the first bad commit, with its interval if that is known."""
    change, low, high = step.judgement.change, step.judgement.low, step.judgement.high
    if step.about_work or change is None or low is None or high is None:
        return step_answer_text(step)
    return (
        f"{THROUGHPUT.change_text(change)} images/sec within pairs, against GOOD "
        f"({percent(step.confidence, 0)} interval {THROUGHPUT.range_text(low, high)}, "
        f"{step.pairs} pairs)"
    )


def _commit_remarks(commit: str, history: GitHistory) -> Iterator[str]:
    """Yields remarks about a commit: one if it is a merge, and one if it reverts another commit."""
    first, *merged = history.format_commit(commit, "%P").split()
    if merged:
        text = f"a merge of {' and '.join(map(abbreviate_hash, (first, *merged)))}; "
        if history.first_parent:
            yield text + "--first_parent did not search the merged commits"
        else:
            yield text + "each of these is good alone"
    if other := reverted_commit(history.format_commit(commit, "%b")):
        yield f"it reverts {abbreviate_hash(other)}"
