"""Reports on run records: one HTML file, Markdown, or tables for other programs.

Imports no TensorFlow. `load` finds what a report is about, `gather` sorts it and compares it
with a baseline, `build` writes the sections as data, and `render` makes text of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from cnnbench.report.build import build
from cnnbench.report.document import Report
from cnnbench.report.material import Material, gather
from cnnbench.report.sources import Sources, load

__all__ = ["FORMATS", "Material", "Report", "Sources", "build", "gather", "load", "render"]

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
