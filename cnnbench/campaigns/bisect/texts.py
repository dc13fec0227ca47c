"""The result of a bisection as text, and in the journal for reports."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from cnnbench.base.document import (
    Answer,
    Paragraph,
    Row,
    Section,
    TableCell,
    make_table,
    numeric_cell,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.text import (
    NONE,
    integer,
    item_count,
    percent,
)
from cnnbench.campaigns.bisect.answers import (
    BAD,
    BisectionStep,
    is_search_for_changed_work,
    no_difference_reason,
    step_answer_text,
)
from cnnbench.campaigns.bisect.commits import BISECT
from cnnbench.campaigns.bisect.history import GitHistory
from cnnbench.campaigns.bisect.search import Bisection
from cnnbench.campaigns.processes.answers import store_answer, stored_answers
from cnnbench.campaigns.processes.journal import JOURNAL, Journal
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.judge.metrics import THROUGHPUT
from cnnbench.machine.repository import (
    abbreviate_hash,
    reverted_commit,
)


def bisection_text(bisection: Bisection) -> str:
    """The result of a bisection as text: a table of the measured commits, and the bad commit."""
    steps = make_table(
        (_step_row(step, bisection.setting.history) for step in bisection.steps.values()),
        whole=True,
    )
    more = (
        _first_bad_commit_texts(bisection)
        if len(bisection.suspects) == 1
        else _suspect_range_texts(bisection)
    )
    return sections_to_text([[steps], more if bisection.suspects else []])


_TITLE = "Bisection"


def store_result(folder: ResultsFolder, bisection: Bisection) -> None:
    """Stores the result of a bisection in its journal, for `stored_result`."""
    history, suspects = bisection.setting.history, bisection.suspects
    if len(suspects) == 1:
        text, *details = (paragraph.text for paragraph in _first_bad_commit_texts(bisection))
    elif suspects:
        text, *details = (paragraph.text for paragraph in _suspect_range_texts(bisection))
    else:
        text, details = no_difference_reason(bisection.bad_step), []
    tone = "bad" if len(suspects) == 1 else "unsure"
    store_answer(
        folder,
        Answer(_TITLE, text, tone, tuple(filter(None, details))),
        "The commits that cnnbench bisect compared with GOOD, in the order of the measurements. "
        "The paired change is the change against GOOD; the interval is its confidence interval.",
        (_step_row(step, history) for step in bisection.steps.values()),
    )


def stored_result(folder: Path) -> tuple[Answer, list[Section]] | None:
    """Reads the result of the bisection in a folder, as an answer and sections for a report.

    Returns None if the folder contains no bisection. If the bisection has not ended, the answer
    says so.
    """
    for answer, section in stored_answers(BISECT, folder):
        return answer, [section]
    if not BISECT.is_campaign(Journal(folder / JOURNAL).read()):
        return None
    more = "cnnbench bisect with the same arguments and --resume continues it"
    return Answer(_TITLE, "The bisection has not ended", "unsure", (more,)), []


def _step_row(step: BisectionStep, history: GitHistory) -> Row:
    return {
        "commit": step.commit[:12],
        "answer": step.answer,
        "paired change": TableCell(_change_cell(step), kinds="number"),
        "interval": TableCell(_interval_cell(step), kinds="number"),
        "pairs": numeric_cell(step.pairs, integer),
        "subject": history.format_commit(step.commit),
    }


def _first_bad_commit_texts(bisection: Bisection) -> list[Paragraph]:
    (commit,), history = bisection.suspects, bisection.setting.history
    step = bisection.steps[commit]  # The only remaining candidate must have been measured.
    sides = [f"--a_checkout={history.parent(commit)[:12]}", f"--b_checkout={commit[:12]}"]
    again = shlex.join(["cnnbench", "ab", *sides, "--", *bisection.setting.side.flags])
    if not Path.cwd().is_relative_to(history.repository):
        again = f"cd {shlex.quote(str(history.repository))} && {again}"
    what = step_answer_text(step, bisection.bad_step)
    if not is_search_for_changed_work(bisection.bad_step) and step.judgement.low is not None:
        what = f"{_change_cell(step)} images/sec within pairs, against GOOD "
        what += (
            f"({percent(step.confidence, 0)} interval {_interval_cell(step)}, {step.pairs} pairs)"
        )
    lines = (
        history.format_commit(commit),
        history.format_commit(commit, "%an, %as"),
        what,
        *_merge_and_revert_remarks(commit, history),
    )
    return [
        Paragraph(f"{commit} is the first bad commit"),
        *(Paragraph(line, indent=6, whole=True) for line in lines),
        Paragraph(f"against the commit before it: {again}", indent=6, whole=True),
    ]


def _merge_and_revert_remarks(commit: str, history: GitHistory) -> Iterator[str]:
    """Yields remarks about a commit: one if it is a merge, and one if it reverts another commit."""
    first, *merged = history.format_commit(commit, "%P").split()
    if merged:
        text = f"a merge of {' and '.join(map(abbreviate_hash, (first, *merged)))}; "
        text += (
            "--first_parent did not search the merged commits"
            if history.first_parent
            else "each of these is good alone"
        )
        yield text
    if other := reverted_commit(history.format_commit(commit, "%b")):
        yield f"it reverts {abbreviate_hash(other)}"


def _suspect_range_texts(bisection: Bisection) -> list[Paragraph]:
    number = item_count(bisection.suspects)
    text = [
        Paragraph(f"the first bad commit is one of these {number}; skipped commits hide which:")
    ]
    for commit in bisection.suspects:
        step = bisection.steps.get(commit)
        why = (
            ""
            if step is None
            else BAD
            if step.answer == BAD
            else step_answer_text(step, bisection.bad_step)
        )
        title = f"{commit[:12]} {bisection.setting.history.format_commit(commit)}"
        text += [Paragraph(title, indent=6, whole=True), Paragraph(why, indent=12, whole=True)]
    return text


def _change_cell(step: BisectionStep) -> str:
    return NONE if step.judgement.change is None else THROUGHPUT.change_text(step.judgement.change)


def _interval_cell(step: BisectionStep) -> str:
    if step.judgement.low is None or step.judgement.high is None:
        return NONE
    return THROUGHPUT.range_text(step.judgement.low, step.judgement.high)
