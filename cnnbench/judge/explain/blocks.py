"""Converts an explanation to blocks, from which all formats are written: the answer, a chart,
causes and tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from cnnbench.base.charts import Axis, DistributionRow, RowChart, legend_text
from cnnbench.base.document import (
    Content,
    Items,
    Row,
    Section,
    Table,
    TableCell,
    make_table,
    numeric_cell,
)
from cnnbench.base.text import count_text, format_interval, percent
from cnnbench.judge.explain.phrases import (
    cause_with_evidence,
    fact_texts,
    in_ms,
    measurement,
    signed_ms,
)
from cnnbench.records.explanation import ExplainedRow, Explanation

SHOWN = 10
"""Default number of rows in a table."""

_MOST_FACTS = 12  # An explanation that is not in full shows at most this many facts.


def explanation_sections(
    explanation: Explanation, max_rows: int = SHOWN, full: bool = False
) -> tuple[Section, Section, Section, Section]:
    """The blocks of an explanation: its answer with a chart, its causes (empty if there are none),
    its rows, and other differences between A and B.

    `max_rows` is the number of rows in the chart and, unless the explanation is shown in `full`, in
    the table; 0 means all. Unless it is in full, it has at most twelve other differences.
    """
    facts = fact_texts(explanation.facts)
    if len(facts) > _MOST_FACTS and not full:
        more = len(explanation.facts) - _MOST_FACTS
        facts = [*facts[:_MOST_FACTS], f"and {more} more (see the JSON output)"]
    contents: tuple[Sequence[Content], ...] = (
        [explanation.answer, [differences_chart(explanation, max_rows)]],
        [causes_table(explanation)],
        [_rows_table(explanation, 0 if full else max_rows)],
        [
            measurement(explanation),
            Items(texts=tuple(facts), title="Also different", folded=True, about="differences"),
        ],
    )
    answer, causes, rows, others = map(Section.of, contents)
    return answer, causes, rows, others


def causes_table(explanation: Explanation) -> Table | None:
    """The table of causes, and of the time that no cause explains; None without causes."""
    title = "Work that differs" if explanation.by_work else "Causes"
    return make_table(_cause_rows(explanation), title=f"{title}, mean milliseconds of a step")


def _cause_rows(explanation: Explanation) -> Iterator[Row]:
    for cause in explanation.causes:
        yield {
            "cause": cause.place,
            "difference, ms": _ms_cell(cause.difference, signed_ms),
            "A, ms": _ms_cell(cause.base),
            "B, ms": _ms_cell(cause.new),
            "+/-, ms": _ms_cell(cause.spread),
            "what": TableCell(cause_with_evidence(cause), kinds="prose"),
        }
    if explanation.causes and not explanation.by_work:
        unknown = numeric_cell(None, why="only the difference is known")
        yield {
            "cause": "not explained",
            "difference, ms": _ms_cell(explanation.unexplained, signed_ms),
            **dict.fromkeys(("A, ms", "B, ms", "+/-, ms"), unknown),
            "what": "",
        }


def _ms_cell(seconds: float, text: Callable[[float], str] = in_ms) -> TableCell:
    return numeric_cell(seconds, text(seconds), scale=1e3)


def _rows_table(explanation: Explanation, max_rows: int) -> Table | None:
    shown = "The largest rows" if 0 < max_rows < len(explanation.rows) else "All rows"
    return make_table(
        map(_row_cells, explanation_rows(explanation, max_rows)),
        title=f"{shown}, mean milliseconds of a step",
        folded=True,
        spare=("share", "+/-, ms"),
    )


def explanation_rows(explanation: Explanation, max_rows: int = SHOWN) -> list[ExplainedRow]:
    """Returns the rows of the table of an explanation: the largest `max_rows` rows (0 means all),
    the sum of all other rows, the time that was not profiled, and the whole step.

    The rows that contribute to the difference of the step are first. The spread is NaN in the rows
    for the sum and for the time that was not profiled.
    """
    shown = explanation.rows[:max_rows] if max_rows else explanation.rows
    lines = sorted(shown, key=lambda row: row.difference * explanation.difference <= 0)
    if rest := explanation.rows[len(shown) :]:
        name = count_text(len(explanation.rows) - len(shown), "other row", "other rows")
        base, new = (sum(getattr(row, side) for row in rest) for side in ("base", "new"))
        shares = [row.share for row in rest if row.share is not None]
        share = sum(shares) if shares else None
        lines.append(replace(explanation.make_row(name, base=base, new=new), share=share))
    lines.append(explanation.not_profiled)
    step = explanation.make_row(
        "step", base=explanation.base, new=explanation.new, spread=explanation.spread
    )
    lines.append(step)
    return lines


def _row_cells(row: ExplainedRow) -> Row:
    return {
        "layer": row.layer,
        "kind": row.kind,
        "direction": row.direction,
        "A, ms": _ms_cell(row.base),
        "B, ms": _ms_cell(row.new),
        "difference, ms": _ms_cell(row.difference, signed_ms),
        "+/-, ms": numeric_cell(None) if math.isnan(row.spread) else _ms_cell(row.spread),
        "share": numeric_cell(row.share, partial(percent, digits=0)),
    }


def differences_chart(explanation: Explanation, max_rows: int = SHOWN) -> RowChart:
    """Returns a chart of the differences in the largest rows, with twice their standard errors."""
    rows = []
    of = f"the {max_rows} largest of" if 0 < max_rows < len(explanation.rows) else "all"
    for row in explanation_rows(explanation, max_rows):
        difference, spread = row.difference, row.spread
        known, tone = not math.isnan(spread), "bad" if difference > 0 else "good"
        rows.append(
            DistributionRow(
                label=", ".join(filter(None, (row.layer, row.kind, row.direction))),
                values=((1e3 * difference, f"{format_interval(row.base, row.new, in_ms)} ms"),),
                low=1e3 * (difference - spread) if known else None,
                high=1e3 * (difference + spread) if known else None,
                text=f"{signed_ms(difference)} ms",
                tone=tone if known and abs(difference) > spread else "",
            )
        )
    return RowChart(
        title=f"Step time of B minus A: {of} {len(explanation.rows)} differences",
        x=Axis(label="difference (ms)"),
        rows=tuple(rows),
        limit=(0.0, "no difference"),
        note=legend_text(rows, dot="the difference", band="twice its standard error"),
    )
