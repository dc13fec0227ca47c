"""A comparison as Markdown for a pull request; untrusted text (records, paths) is code."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.document.writers import markdown_row
from cnnbench.base.text import code, markdown
from cnnbench.judge.compare.judgement import Verdict
from cnnbench.judge.compare.result import Comparison, MetricResult
from cnnbench.judge.explain.explanation import markdown_body
from cnnbench.judge.report.renderers import wording

LIMIT = 65_536
"""Largest number of characters of a comment on GitHub."""

# Characters of all tables and of the remarks; the reasons get the rest.
_TABLES, _REMARKS = 32_000, 12_000

_SYMBOLS, _CHANGED_WORK = {"good": "🟢", "bad": "🔴", "unsure": "🟡", "": "⚪"}, "🔵"
"""By the tone of a verdict."""

_MOST_ANSWERS = 3
"""Configurations with changed work that are named before the tables."""


def render(comparison: Comparison) -> str:
    """Heading, tables and folded details, cut to fit into a comment on GitHub."""
    told = [markdown(one) for one in (comparison.answer, comparison.why, comparison.advice) if one]
    told += [f"Next: {code(comparison.next_step)}"] if comparison.next_step else []
    lines = [
        f"### cnnbench: {wording.ending(comparison)}",
        "",
        "\n\n".join(told),
        "",
        f"{code(comparison.base_label)} → {code(comparison.new_label)}: "
        f"{wording.outcome(comparison)}.",
        "",
    ]
    answers = [
        f"- {_CHANGED_WORK} {code(entry.name)}: {markdown(entry.main.judgement.reason)}"
        for entry in comparison.deciding
        if entry.main.verdict is Verdict.CHANGED_WORK
    ]
    lines += [*answers[:_MOST_ANSWERS], ""] if answers else []
    for metric, found in wording.tables(comparison):
        if not found:
            continue
        rows = []
        for entry, result in found:
            _, _, *numbers = wording.row(comparison, entry, result).values()
            symbol = _SYMBOLS[wording.tone(comparison, entry, result)]
            symbol = _CHANGED_WORK if result.verdict is Verdict.CHANGED_WORK else symbol
            verdict = f"{symbol} {result.word}"
            rows.append(markdown_row((verdict, code(entry.name), *(one.text for one in numbers))))
        _, *heads = wording.row(comparison, *found[0])
        head = markdown_row((f"{metric.name}, median {metric.unit_text}", *heads))
        rows = _fitting(rows, _TABLES - _size(lines), markdown_row(("…", "{} more", *[""] * 6)))
        lines += [head, "|---|---|--:|--:|--:|--:|--:|--:|", *rows, ""]
    if comparison.explanation is not None:
        lines += [*markdown_body(comparison.explanation), ""]
    details = _details(comparison, LIMIT - _size(lines))
    return "\n".join([*lines, *details]) + "\n"


def _details(comparison: Comparison, room: int) -> list[str]:
    reasons = [
        f"- {code(entry.name)}: {_reason(result)}"
        for _, rows in wording.tables(comparison)
        for entry, result in rows
        if result.verdict is not Verdict.SAME
    ]
    head = ["<details><summary>Why, and how it was judged</summary>", ""]
    lines = [f"- {mean}" for mean in wording.mean_sentences(comparison)]
    lines += [
        f"- {metric.name}: {found}"
        for metric in comparison.metrics
        if metric not in comparison.leading and (found := wording.tally(comparison, metric))
    ]
    lines.append(f"- {wording.conditions(comparison)}")
    lines += [f"- note: {code(note)}" for note in comparison.notes]
    lines += [f"- also different: {code(mention)}" for mention in wording.mentions(comparison)]
    lines += [f"- skipped: {code(str(one))}" for one in comparison.skipped]
    remarks = _fitting(lines, _REMARKS, "- … and {} lines more")
    reasons = _fitting(reasons, room - _size([*head, *remarks]) - 100, "- … and {} reasons more")
    return [*head, *reasons, *remarks, "", "</details>"]


def _reason(result: MetricResult) -> str:
    if result.judgement.p is None:
        return f"{result.word}: {code(result.judgement.reason)}"
    return wording.explained(result)


def _size(lines: Sequence[str]) -> int:
    return sum(len(line) + 1 for line in lines)


def _fitting(lines: Sequence[str], room: int, more: str) -> list[str]:
    """Lines that fit into `room` characters, and `more` with the number of other lines."""
    for index, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return [*lines[:index], more.format(len(lines) - index)]
    return list(lines)
