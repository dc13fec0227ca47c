"""The result of a bisection as blocks, and in the journal for reports."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from cnnbench.base.document import Answer, Paragraph, Row, Section, make_table, numeric_cell
from cnnbench.base.document.console import sections_to_text
from cnnbench.campaigns.bisect import phrases
from cnnbench.campaigns.bisect.answers import BAD, BisectionStep
from cnnbench.campaigns.bisect.history import GitHistory
from cnnbench.campaigns.bisect.search import BISECT, Bisection
from cnnbench.campaigns.processes.answers import store_answer, stored_answers
from cnnbench.campaigns.processes.journal import JOURNAL, Journal
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.machine.repository import abbreviate_hash, reverted_commit


def bisection_text(bisection: Bisection) -> str:
    """The result of a bisection as text: a table of the measured commits, and the bad commit."""
    answer = _answer_paragraphs(bisection) if bisection.suspects else []
    return sections_to_text([[make_table(_step_rows(bisection), whole=True)], answer])


def store_result(folder: ResultsFolder, bisection: Bisection) -> None:
    """Stores the result of a bisection in its journal, for `stored_result`."""
    text, *details = (paragraph.text for paragraph in _answer_paragraphs(bisection))
    tone = "bad" if len(bisection.suspects) == 1 else "unsure"
    answer = Answer(phrases.TITLE, text, tone, tuple(filter(None, details)))
    store_answer(folder, answer, phrases.TABLE, _step_rows(bisection))


def stored_result(folder: Path) -> tuple[Answer, list[Section]] | None:
    """Reads the result of the bisection in a folder, as an answer and sections for a report.

    Returns None if the folder contains no bisection. If the bisection has not ended, the answer
    says so.
    """
    for answer, section in stored_answers(BISECT, folder):
        return answer, [section]
    if not BISECT.is_campaign(Journal(folder / JOURNAL).read()):
        return None
    return Answer(phrases.TITLE, phrases.NOT_ENDED, "unsure", (phrases.CONTINUE,)), []


def _step_rows(bisection: Bisection) -> Iterator[Row]:
    history = bisection.setting.history
    return (_step_row(step, history) for step in bisection.steps.values())


def _step_row(step: BisectionStep, history: GitHistory) -> Row:
    change, low, high = step.judgement.change, step.judgement.low, step.judgement.high
    interval = numeric_cell(None)
    if low is not None and high is not None:
        interval = numeric_cell(high - low, THROUGHPUT.range_text(low, high))
    return {
        "commit": step.commit[:12],
        "answer": step.answer,
        "paired change": numeric_cell(change, THROUGHPUT.change_text),
        "interval": interval,
        "pairs": numeric_cell(step.pairs),
        "subject": history.format_commit(step.commit),
    }


def _answer_paragraphs(bisection: Bisection) -> list[Paragraph]:
    """The answer of a bisection, and its details: about the first bad commit, or about the commits
    of which one is the first bad commit.
    """
    if len(bisection.suspects) == 1:
        return _culprit_paragraphs(bisection)
    if bisection.suspects:
        return _suspects_paragraphs(bisection)
    return [Paragraph(phrases.no_difference(bisection.bad_step))]


def _culprit_paragraphs(bisection: Bisection) -> list[Paragraph]:
    (commit,), history = bisection.suspects, bisection.setting.history
    step = bisection.steps[commit]  # The only remaining candidate must have been measured.
    sides = [f"--a_checkout={history.parent(commit)[:12]}", f"--b_checkout={commit[:12]}"]
    again = shlex.join(["cnnbench", "ab", *sides, "--", *bisection.setting.side.flags])
    if not Path.cwd().is_relative_to(history.repository):
        again = f"cd {shlex.quote(str(history.repository))} && {again}"
    lines = (
        history.format_commit(commit),
        history.format_commit(commit, "%an, %as"),
        phrases.change_within_pairs(step),
        *_merge_remarks(commit, history),
        phrases.repeat_comparison(again),
    )
    return [
        Paragraph(phrases.first_bad_commit(commit)),
        *(Paragraph(line, indent=6, whole=True) for line in lines),
    ]


def _merge_remarks(commit: str, history: GitHistory) -> Iterator[str]:
    """Yields remarks about a commit: one if it is a merge, and one if it reverts another commit."""
    first, *merged = history.format_commit(commit, "%P").split()
    if merged:
        yield phrases.merge([*map(abbreviate_hash, (first, *merged))], history.first_parent)
    if other := reverted_commit(history.format_commit(commit, "%b")):
        yield phrases.reverts(abbreviate_hash(other))


def _suspects_paragraphs(bisection: Bisection) -> list[Paragraph]:
    text = [Paragraph(phrases.suspects(bisection.suspects))]
    for commit in bisection.suspects:
        step, why = bisection.steps.get(commit), ""
        if step is not None:
            why = BAD if step.answer == BAD else phrases.step_answer(step)
        title = f"{commit[:12]} {bisection.setting.history.format_commit(commit)}"
        text += [Paragraph(title, indent=6, whole=True), Paragraph(why, indent=12, whole=True)]
    return text
