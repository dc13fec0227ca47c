"""The difference between the sides of an experiment by layers and causes."""

from __future__ import annotations

from cnnbench.base.text.numbers import percent
from cnnbench.judge.explain.text import ExplainedLine, about, chart, lines_of
from cnnbench.judge.report.document import (
    Charts,
    Section,
    TableColumn,
    Text,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import ReportSubject
from cnnbench.records.explanation import Cause, FactChange

_CAUSES: tuple[TableColumn[Cause], ...] = (
    TableColumn("cause", lambda cause: cause.place),
    numeric("difference, ms", lambda cause: cause.difference, scale=1e3),
    numeric("A, ms", lambda cause: cause.base, scale=1e3),
    numeric("B, ms", lambda cause: cause.new, scale=1e3),
    TableColumn("what", lambda cause: "; ".join((cause.text, *cause.evidence)), "prose"),
)
_ROWS: tuple[TableColumn[ExplainedLine], ...] = (
    TableColumn("layer", lambda line: line.layer),
    TableColumn("kind", lambda line: line.kind),
    TableColumn("direction", lambda line: line.direction),
    numeric("A, ms", lambda line: line.base, scale=1e3),
    numeric("B, ms", lambda line: line.new, scale=1e3),
    numeric("difference, ms", lambda line: line.new - line.base, scale=1e3),
    numeric("+/-, ms", lambda line: line.spread, scale=1e3),
    numeric("share", lambda line: line.share, percent),
)
_FACTS: tuple[TableColumn[FactChange], ...] = (
    TableColumn("fact", lambda one: one.fact),
    TableColumn("A", lambda one: one.base),
    TableColumn("B", lambda one: one.new),
)


def explanation(results: ReportSubject) -> Section | None:
    """The answer, its causes, the largest rows as a chart and all of them as a table."""
    found = None if results.comparison is None else results.comparison.explanation
    if found is None:
        return None
    return section(
        "why",
        "Where the difference is",
        Text(text=found.answer),
        Charts(charts=(chart(found),)),
        table(_CAUSES, found.causes),
        table(_ROWS, lines_of(found), title="The largest rows, of a step"),
        table(_ROWS, lines_of(found, 0), title="All rows", folded=True),
        table(_FACTS, found.facts, title="Also different", folded=True),
        Text(text=about(found)),
    )
