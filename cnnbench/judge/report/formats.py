"""A report as one HTML page, or as Markdown without its charts."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from cnnbench.base.charts import draw, sheet
from cnnbench.base.text.escape import markdown, plain
from cnnbench.judge.report.document import Block, Charts, Report, Section, Table, TableCell

if TYPE_CHECKING:
    from jinja2 import Template

_MARKS = {"good": "🟢 ", "bad": "🔴 ", "unsure": "🟡 "}


def render(report: Report, format: str) -> str:
    """The report in one of `FORMATS`; raises a KeyError for another format."""
    return FORMATS[format](report)


def _html(report: Report) -> str:
    """One HTML document that loads nothing: its policy allows only its own style and script."""
    style, script = sheet.theme() + _file("style.css"), _file("script.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    widths = {1: draw.WIDE, 2: draw.HALF, 3: draw.NARROW}
    return _template().render(
        report=report, policy=policy, style=style, script=script, svg=draw.svg, widths=widths
    )


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
    return resources.files("cnnbench.judge.report").joinpath(f"html/{name}").read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _markdown(report: Report) -> str:
    lines = [f"# {markdown(report.title)}", "", f"{markdown(report.subtitle)}.", ""]
    for one in report.answers:
        lines.append(f"- {_MARKS.get(one.tone, '')}{markdown(one.name)}: {markdown(one.text)}")
        lines += [f"  - {markdown(detail)}" for detail in one.details]
    lines += [f"- {markdown(name)}: {markdown(value)}" for name, value in report.highlights]
    for section in report.sections:
        written = list(_section(section))
        # A section of charts only is left out.
        lines += ["", *written] if written[1:] else []
    return "\n".join(lines) + "\n"


def _section(section: Section) -> Iterable[str]:
    yield f"## {markdown(section.title)}"
    for block in section.blocks:
        lines = list(_block(block))
        if lines:
            yield ""
            yield from lines


def _block(block: Block) -> Iterable[str]:
    if isinstance(block, Table):
        if block.title:
            yield f"### {markdown(block.title)}"
            yield ""
        yield _row([markdown(title) for title, _, _ in block.columns])
        yield _row(["--:" if "number" in kinds else "---" for _, kinds, _ in block.columns])
        for row in block.rows:
            yield _row(map(_cell, row))
    elif not isinstance(block, Charts):
        yield f"{_MARKS.get(block.tone, '')}{markdown(block.text)}"


def _cell(cell: TableCell) -> str:
    text = f"{_MARKS.get(cell.tone, '')}{markdown(cell.text)}"
    return f"[{text}]({cell.link})" if cell.link else text


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


FORMATS: Mapping[str, Callable[[Report], str]] = {"html": _html, "markdown": _markdown}
"""Functions by name of the format."""
