"""Reports on run records, without TensorFlow: HTML, Markdown, or tables for other programs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cnnbench.records.load import load_records as load

if TYPE_CHECKING:
    from cnnbench.base.document import Report
    from cnnbench.judge.report.formats import FORMATS, render
    from cnnbench.judge.report.results import ReportSubject, gather
    from cnnbench.judge.report.sections import build

__all__ = ["FORMATS", "Report", "ReportSubject", "build", "gather", "load", "render"]

_HOMES = {
    "FORMATS": "judge.report.formats",
    "Report": "base.document",
    "ReportSubject": "judge.report.results",
    "build": "judge.report.sections",
    "gather": "judge.report.results",
    "render": "judge.report.formats",
}


def __getattr__(name: str) -> Any:
    """Imports a module when its name is used: `cnnbench compare` needs only the renderers."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"cnnbench.{_HOMES[name]}"), name)
