"""Reports on run records: one HTML file, Markdown, or tables for other programs.

Imports no TensorFlow. `load` reads records, `gather` sorts them and compares them with a
baseline, `build` makes the sections as data, and `render` formats them.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from cnnbench.records.load import load_records as load
from cnnbench.report.build import build
from cnnbench.report.document import Report
from cnnbench.report.results import Results, gather

__all__ = ["FORMATS", "Report", "Results", "build", "gather", "load", "render"]

FORMATS: dict[str, str] = {
    "html": "cnnbench.report.html",
    "markdown": "cnnbench.report.markdown",
}
"""Formats by name; a module with ``render(report) -> str`` each."""


def render(report: Report, format: str) -> str:
    """The report in one of `FORMATS`.

    Raises:
      KeyError: an unknown format.
    """
    return cast("str", import_module(FORMATS[format]).render(report))
