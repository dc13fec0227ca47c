"""Writes a report as one HTML page, which loads no other files, or as HTML elements for notebooks.

All texts are escaped, because they may come from untrusted records. The content security policy of
the page allows only its own style and script.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
from importlib import resources
from typing import TYPE_CHECKING, Any

from cnnbench.base.charts import draw
from cnnbench.base.charts.figure import theme_css
from cnnbench.base.document import Report
from cnnbench.base.escapes import to_plain_line
from cnnbench.base.terminal import ProgressLine

if TYPE_CHECKING:
    from jinja2 import Template


def report_to_html(report: Report, progress: ProgressLine | None = None) -> str:
    """Writes a whole report as a page. `progress` shows how many charts have been drawn."""
    progress = progress or ProgressLine.silent()
    # A chart is drawn in up to two widths, so the progress line counts two drawings for each chart.
    progress.start("drawing", 2 * len(report.charts))
    drawn = itertools.count(1)

    def svg(*arguments: Any) -> str:
        progress.update(next(drawn))
        return draw.chart_to_svg(*arguments)

    style, script = theme_css() + _file_text("style.css"), _file_text("script.js")
    policy = (
        f"default-src 'none'; style-src '{_policy_digest(style)}'; script-src "
        f"'{_policy_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    widths = {1: draw.WIDE, 2: draw.HALF, 3: draw.NARROW}
    text = _page_template().render(
        report=report,
        level=1,
        policy=policy,
        style=style,
        script=script,
        svg=svg,
        widths=widths,
    )
    progress.finish()
    return text


def report_to_fragment(report: Report) -> str:
    """Writes a report as HTML elements for any page: without style sheet, script and charts."""
    return _page_template().render(report=report, level=3, fragment=True)


@functools.cache
def _page_template() -> Template:
    from jinja2 import Environment

    environment = Environment(autoescape=True, finalize=_to_printable, keep_trailing_newline=True)
    return environment.from_string(_file_text("template.html"))


def _to_printable(value: Any) -> Any:
    """Removes control characters and text-direction marks, which untrusted records may have."""
    return (
        to_plain_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
    )


@functools.cache
def _file_text(name: str) -> str:
    return resources.files("cnnbench.base.document").joinpath(f"page/{name}").read_text("utf-8")


def _policy_digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
