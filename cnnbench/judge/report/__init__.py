"""Reports on run records, without TensorFlow: HTML, Markdown, or tables for other programs."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.document import Answer, Report, Section
from cnnbench.base.document.writers import FORMATS
from cnnbench.base.document.writers import render_report as render
from cnnbench.judge.report.results import ReportSubject, gather
from cnnbench.records.load import load_records as load

__all__ = ["FORMATS", "Report", "ReportSubject", "build", "gather", "load", "render"]


def build(
    results: ReportSubject,
    title: str = "",
    answers: Sequence[Answer] = (),
    first: Sequence[Section] = (),
) -> Report:
    """The report on some results; see `cnnbench.judge.report.sections.build`."""
    from cnnbench.judge.report import sections  # late: `cnnbench compare` needs only the renderers

    return sections.build(results, title, answers, first)
