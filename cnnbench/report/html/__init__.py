"""A report as one HTML page that loads nothing and runs no script but its own."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

from jinja2 import Environment, Template

from cnnbench.charts import draw
from cnnbench.report.document import Report
from cnnbench.text.escape import plain


def render(report: Report) -> str:
    """The report as one HTML document.

    Its policy allows this style sheet and this script by their hashes and nothing else: no
    other script or style, no resource from anywhere, no form, no frame.
    """
    style, script = draw.theme() + _file("style.css"), _file("script.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _template().render(
        report=report,
        policy=policy,
        style=style,
        script=script,
        svg=draw.svg,
    )


@functools.cache
def _template() -> Template:
    environment = Environment(autoescape=True, finalize=_finalize, keep_trailing_newline=True)
    return environment.from_string(_file("template.html"))


def _finalize(value: Any) -> Any:
    """Text of records without control characters and direction marks."""
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


@functools.cache
def _file(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
