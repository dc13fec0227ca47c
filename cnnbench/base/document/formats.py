"""Formats of whole reports. To add a format, write it in a module of its own, and list it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cnnbench.base.document import Report
from cnnbench.base.document.html import report_to_html
from cnnbench.base.document.markdown import report_to_markdown
from cnnbench.base.terminal import ProgressLine

FORMATS: Mapping[str, Callable[[Report], str]] = {
    "html": report_to_html,
    "markdown": report_to_markdown,
}
"""Functions that write a report, by the name of the format. Markdown contains no charts."""


def render_report(report: Report, format: str, progress: ProgressLine | None = None) -> str:
    """Writes a report in one of the `FORMATS`. Other formats raise KeyError.

    `progress` shows how many charts of a page have been drawn.
    """
    return report_to_html(report, progress) if format == "html" else FORMATS[format](report)
