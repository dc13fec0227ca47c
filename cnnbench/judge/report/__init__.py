"""Writes reports on records as HTML, Markdown or tables. Does not import TensorFlow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cnnbench.base.document import Report
from cnnbench.base.document.formats import FORMATS
from cnnbench.base.document.formats import render_report as render
from cnnbench.judge.report.results import ReportSubject, gather
from cnnbench.records.load import load_records as load

if TYPE_CHECKING:
    from cnnbench.judge.report.sections import build

__all__ = ["FORMATS", "Report", "ReportSubject", "build", "gather", "load", "render"]


def __getattr__(name: str) -> Any:
    if name == "build":  # `cnnbench compare` does not need this import.
        return import_module("cnnbench.judge.report.sections").build
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
