"""Results as Jupyter shows them, and as pandas DataFrames (see `cnnbench.base.notebook`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cnnbench.base.document import Report, Table
from cnnbench.base.document.html import report_to_fragment
from cnnbench.base.document.markdown import report_to_markdown
from cnnbench.base.notebook import Displayed
from cnnbench.judge.compare.result import Comparison
from cnnbench.judge.history.blocks import build_page
from cnnbench.judge.history.page import HistoryDocument, csv_rows
from cnnbench.judge.report import ReportSubject, build, gather
from cnnbench.judge.report.tables import data_frame, frame
from cnnbench.records.load import Loaded
from cnnbench.records.run import RunRecord

if TYPE_CHECKING:
    from pandas import DataFrame

_TABLES: Mapping[type[Displayed], str] = {Comparison: "comparison", RunRecord: "runs"}
"""Tables of `cnnbench.judge.report.tables` that contain a result."""


def to_html(result: Displayed) -> str:
    """Returns a result as HTML elements. TypeError for results of an unknown class."""
    return report_to_fragment(_report(result))


def to_markdown(result: Displayed) -> str:
    """Returns a result as Markdown. TypeError for results of an unknown class."""
    return report_to_markdown(_report(result))


def to_frame(result: Displayed) -> DataFrame:
    """Returns a result as a table; see `Displayed.to_pandas`. TypeError for unknown classes."""
    if isinstance(result, Report):
        return data_frame(_cell_rows(result))
    if isinstance(result, HistoryDocument):
        return data_frame(csv_rows(result))
    return frame(_subject(result), _TABLES.get(type(result), "configurations"))


def _report(result: Displayed) -> Report:
    if isinstance(result, Report):
        return result
    if isinstance(result, HistoryDocument):
        return build_page(result)
    return build(_subject(result))


def _subject(result: Displayed) -> ReportSubject:
    if isinstance(result, ReportSubject):
        return result
    if isinstance(result, Comparison):
        return gather(Loaded((), result.skipped), comparison=result)
    if isinstance(result, RunRecord):
        return gather(Loaded((result,), ()))
    raise TypeError(f"{type(result).__name__} is not a result that can be shown")


def _cell_rows(report: Report) -> Iterator[dict[str, object]]:
    """Yields a row for each cell of the tables in a report. `value` is the number, in the unit that
    the column's title names; for an interval, its width.
    """
    for section in report.sections:
        tables = [block for block in section.blocks if isinstance(block, Table)]
        for table, row in ((of, row) for of in tables for row in of.rows):
            for (title, _, _), cell in zip(table.columns, row, strict=True):
                yield {
                    "section": section.title,
                    "table": table.title,
                    "row": row[0].text,
                    "column": title,
                    "value": cell.value,
                    "text": cell.text,
                }
