"""Base class of results that Jupyter shows as text and tables, and that pandas can compute with."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import cnnbench
from cnnbench.base.escapes import to_plain_line
from cnnbench.base.text import shortened

if TYPE_CHECKING:
    from pandas import DataFrame


class Displayed:
    """Base class of results: comparisons, histories, records and reports.

    Jupyter shows a result without its charts, which are in the pages of `cnnbench report`.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(_import_views().to_html(self))

    def _repr_markdown_(self) -> str:
        return str(_import_views().to_markdown(self))

    def to_pandas(self) -> DataFrame:
        """Returns the result as a pandas DataFrame, in which numbers are numbers and times are
        times in UTC.

        A comparison has a row for each configuration and metric, a history for each point, a run
        record one row, the subject of a report a row for each configuration, and a report a row for
        each cell of its tables.
        """
        return _import_views().to_frame(self)


def short_repr(result: object, text: str) -> str:
    """Returns a `repr` of one line, which contains the class of the result and a text."""
    return f"<{type(result).__name__}: {shortened(to_plain_line(text))}>"


def _import_views() -> ModuleType:
    return cnnbench.import_result_views()
