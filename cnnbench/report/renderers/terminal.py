"""A comparison as a table for a terminal; colours only repeat what the words say."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TextIO

from cnnbench.compare.result import Comparison, Entry, Result
from cnnbench.metrics.policy import Verdict
from cnnbench.metrics.registry import Metric
from cnnbench.report.renderers import wording
from cnnbench.text.numbers import count
from cnnbench.text.terminal import is_terminal

_COLOURS = {
    Verdict.FASTER: "32",
    Verdict.SLOWER: "31;1",
    Verdict.FAILED: "31;1",
    Verdict.INCONCLUSIVE: "33",
    Verdict.NOT_COMPARABLE: "33",
    Verdict.MISSING: "33",
}
_LEFT = 2
"""Columns aligned to the left: verdict and configuration."""

_INDENT = "      "


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour what goes to a stream: terminals only, and not if NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def render(comparison: Comparison, colour: bool = False) -> str:
    """The table, the worst configuration first, and what a reader needs besides.

    Args:
      comparison: to be shown.
      colour: add ANSI colours to the verdicts.
    """
    paint = _paint if colour else _plain
    lines = [f"BASE {_line(comparison.base_label)}", f"NEW  {_line(comparison.new_label)}", ""]
    for number, metric in enumerate(comparison.leading):
        lines += [""] if number else []
        lines += _table(comparison, metric, comparison.about(metric), paint)
    further = wording.also(comparison)
    for metric in comparison.metrics:
        of_metric = [(entry, result) for entry, result in further if result.metric is metric]
        if of_metric:
            lines += ["", *_table(comparison, metric, of_metric, paint)]
    lines += ["", *_summary(comparison)]
    return "\n".join(lines) + "\n"


def _table(
    comparison: Comparison,
    metric: Metric,
    rows: Sequence[tuple[Entry, Result]],
    paint: Callable[[str, Verdict], str],
) -> list[str]:
    unit = "MiB" if metric.unit == "bytes" else metric.unit
    head = (
        metric.name,
        "configuration",
        f"base {unit}",
        f"new {unit}",
        "change",
        f"{wording.confidence(comparison)} interval",
        "p",
        "runs",
    )
    cells = [_cells(entry, result) for entry, result in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    lines = [_aligned(head, widths).rstrip()]
    for (_, result), row in zip(rows, cells, strict=True):
        first, rest = row[0].ljust(widths[0]), _aligned(row, widths)[widths[0] :]
        lines.append((paint(first, result.verdict) + rest).rstrip())
        if result.verdict is not Verdict.SAME:
            lines.append(f"{_INDENT}{_line(result.judgement.reason)}")
    return lines


def _cells(entry: Entry, result: Result) -> tuple[str, ...]:
    judgement = result.judgement
    return (
        f"{wording.MARKS[result.verdict]} {result.word}",
        _line(entry.name),
        wording.value_text(judgement.base_median, result.metric, unit=False),
        wording.value_text(judgement.new_median, result.metric, unit=False),
        wording.change(result),
        wording.interval(result),
        wording.p_value(result),
        wording.runs(entry),
    )


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.ljust(width) if index < _LEFT else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _summary(comparison: Comparison) -> list[str]:
    lines = [
        f"{metric.name}: {found}"
        for metric in comparison.metrics
        if (found := wording.tally(comparison, metric))
    ]
    lines += wording.mean_sentences(comparison)
    lines.append(wording.conditions(comparison))
    lines += [f"note: {_line(note)}" for note in comparison.notes]
    mentions = wording.mentions(comparison)
    if mentions:
        lines.append("also different, and not held against the comparison:")
        lines += [f"{_INDENT}{_line(mention)}" for mention in mentions]
    if comparison.skipped:
        lines.append(f"skipped: {count(len(comparison.skipped), 'file', 'files')}")
    code = comparison.exit_code
    lines.append(f"exit code {int(code)}: {wording.ENDINGS[code]}")
    return lines


def _line(text: str) -> str:
    """Text from a record as one line without control sequences."""
    return "".join(c if c.isprintable() else " " for c in text)


def _paint(text: str, verdict: Verdict) -> str:
    colour = _COLOURS.get(verdict)
    return text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"


def _plain(text: str, verdict: Verdict) -> str:
    return text
