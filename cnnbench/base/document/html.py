"""Reports as one HTML page that loads nothing: its policy allows only its own style and script."""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from cnnbench.base.charts import draw, sheet
from cnnbench.base.document import Report, markdown
from cnnbench.base.text.escape import plain
from cnnbench.base.text.progress import Progress

if TYPE_CHECKING:
    from jinja2 import Template


def render(report: Report, format: str, progress: Progress | None = None) -> str:
    """The report in one of `FORMATS`; raises a KeyError for another format.

    `progress` shows the number of charts that have been drawn.
    """
    return _page(report, progress) if format == "html" else FORMATS[format](report)


def _page(report: Report, progress: Progress | None = None) -> str:
    progress = progress or Progress.silent()
    progress.start("drawing", 2 * len(report.charts))  # most for two widths
    drawn = itertools.count(1)

    def svg(*arguments: Any) -> str:
        progress.update(next(drawn))
        return draw.svg(*arguments)

    style, script = sheet.theme() + _file("style.css"), _file("script.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    widths = {1: draw.WIDE, 2: draw.HALF, 3: draw.NARROW}
    text = _template().render(
        report=report, policy=policy, style=style, script=script, svg=svg, widths=widths
    )
    progress.finish()
    return text


@functools.cache
def _template() -> Template:
    from jinja2 import Environment

    environment = Environment(autoescape=True, finalize=_finalize, keep_trailing_newline=True)
    return environment.from_string(_file("template.html"))


def _finalize(value: Any) -> Any:
    """Removes control characters and direction marks from text of records."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


@functools.cache
def _file(name: str) -> str:
    return resources.files("cnnbench.base.document").joinpath(f"page/{name}").read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


FORMATS: Mapping[str, Callable[[Report], str]] = {"html": _page, "markdown": markdown.render}
"""Functions by name of the format; Markdown has no charts."""
