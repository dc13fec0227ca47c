"""A comparison as a table for a terminal; colours only repeat the words."""

from __future__ import annotations

import os
from typing import TextIO

from cnnbench.base.text.escape import plain
from cnnbench.base.text.numbers import count
from cnnbench.base.text.table import fitted_rows, wrapped
from cnnbench.base.text.terminal import is_terminal
from cnnbench.judge.compare.judgement import Verdict
from cnnbench.judge.compare.result import (
    ComparedConfiguration,
    Comparison,
    MetricResult,
    advice,
    answer,
    why,
)
from cnnbench.judge.explain.explanation import body
from cnnbench.judge.metrics.registry import Metric
from cnnbench.judge.report.renderers import wording

_INDENT = "      "


def wants_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal and NO_COLOR is not set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def render(comparison: Comparison, colour: bool = False) -> str:
    """The answer, the advice, the tables with reasons, the worst first, and a summary."""
    said = filter(None, (answer(comparison), why(comparison), advice(comparison)))
    lines = [line for sentence in said for line in wrapped(plain(sentence))]
    lines += ["", f"BASE {plain(comparison.base_label)}", f"NEW  {plain(comparison.new_label)}"]
    for metric, rows in wording.tables(comparison):
        lines += ["", *_table(comparison, metric, rows, colour)]
    if comparison.explanation is not None:
        lines += ["", "Why, milliseconds of a step:", *body(comparison.explanation)]
    lines += ["", *_summary(comparison)]
    return "\n".join(lines) + "\n"


def _table(
    comparison: Comparison,
    metric: Metric,
    rows: list[tuple[ComparedConfiguration, MetricResult]],
    colour: bool,
) -> list[str]:
    cells = [tuple(map(plain, wording.cells(entry, result))) for entry, result in rows]
    title, *heads = wording.head(comparison, metric)
    head, *body = fitted_rows([("verdict", *heads), *cells], left=(0, 1))
    lines = [title, *head]
    for (entry, result), row, (first, *more) in zip(rows, cells, body, strict=True):
        code = wording.sign(comparison, entry, result).colour
        if colour and code:
            first = first.replace(row[0], f"\x1b[{code}m{row[0]}\x1b[0m", 1)
        lines += [first, *more]
        if result.verdict is not Verdict.SAME:
            lines += wrapped(plain(result.judgement.reason), _INDENT)
    return lines


def _summary(comparison: Comparison) -> list[str]:
    lines = [
        f"{metric.name}: {found}"
        for metric in comparison.metrics
        if (found := wording.tally(comparison, metric))
    ]
    notes = (f"note: {plain(note)}" for note in comparison.notes)
    for sentence in (*wording.mean_sentences(comparison), wording.conditions(comparison), *notes):
        lines += wrapped(sentence, more=_INDENT)
    mentions = wording.mentions(comparison)
    if mentions:
        lines.append("Also different:")
        for mention in mentions:
            lines += wrapped(plain(mention), _INDENT)
    if comparison.skipped:
        lines.append(f"skipped: {count(len(comparison.skipped), 'file', 'files')}")
    code = comparison.exit_code
    lines.append(f"exit code {int(code)}: {wording.ending(comparison)}")
    return lines
