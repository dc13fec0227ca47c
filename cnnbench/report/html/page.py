"""The page: a skeleton of our own around text that is escaped wherever it comes from."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

from cnnbench.report.charts import Lines, draw
from cnnbench.report.document import Block, Cell, Charts, Column, Report, Section, Table, Text
from cnnbench.report.html.script import SCRIPT
from cnnbench.report.html.style import PAGE
from cnnbench.text.escape import markup

_SHORT = 24
"""Signs of a marked text that stays on one line."""

_HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="soft">{subtitle}</p>
{figures}
</header>
"""


def render(report: Report) -> str:
    """The report as one HTML document.

    Its policy allows this style sheet and this script by their hashes and nothing else: no
    other script or style, no resource from anywhere, no form, no frame.
    """
    parts = [
        _HEAD.format(
            policy=_policy(),
            title=markup(report.title),
            style=PAGE,
            subtitle=markup(report.subtitle),
            figures=_figures(report),
        )
    ]
    if len(report.sections) > 1:
        parts.append(_navigation(report.sections))
    parts.append("<main>\n")
    parts += [_section(section) for section in report.sections]
    parts.append("</main>\n<footer>One file, complete in itself; it loads nothing.</footer>\n")
    parts.append(f"<script>{SCRIPT}</script>\n</body>\n</html>\n")
    return "".join(parts)


def _policy() -> str:
    return (
        "default-src 'none'; "
        f"style-src '{_digest(PAGE)}'; script-src '{_digest(SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _figures(report: Report) -> str:
    items = "".join(
        f"<div><dt>{markup(name)}</dt><dd>{markup(value)}</dd></div>\n"
        for name, value in report.figures
    )
    return f'<dl class="figures">\n{items}</dl>' if items else ""


def _navigation(sections: Iterable[Section]) -> str:
    links = "".join(
        f'<li><a href="#{section.key}">{markup(section.title)}</a></li>' for section in sections
    )
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n'


def _section(section: Section) -> str:
    blocks = "".join(_block(block) for block in section.blocks)
    return f'<section id="{section.key}">\n<h2>{markup(section.title)}</h2>\n{blocks}</section>\n'


def _block(block: Block) -> str:
    if isinstance(block, Text):
        tone = f' class="tone {block.tone}"' if block.tone else ""
        return f"<p{tone}>{markup(block.text)}</p>\n"
    if isinstance(block, Charts):
        return _charts(block)
    return _table(block)


def _charts(block: Charts) -> str:
    figures = "".join(f"<figure{_wide(chart)}>{draw(chart)}</figure>\n" for chart in block.charts)
    return f'<div class="charts">\n{figures}</div>\n'


def _wide(chart: object) -> str:
    return ' class="wide"' if isinstance(chart, Lines) and chart.wide else ""


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_look(one)}>{markup(one.title)}</th>' for one in table.columns)
    rows = "\n".join(_row(table, row) for row in table.rows)
    label = f' aria-label="{markup(table.title)}"' if table.title else ""
    body = (
        f'<div class="scroll" tabindex="0"><table{label}>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>\n"
    )
    if not table.title:
        return body
    if table.folded:
        return f"<details><summary>{markup(table.title)}</summary>\n{body}</details>\n"
    return f"<h3>{markup(table.title)}</h3>\n{body}"


def _row(table: Table, row: tuple[Cell, ...]) -> str:
    cells = []
    for index, (column, cell) in enumerate(zip(table.columns, row, strict=True)):
        content = markup(cell.text)
        if cell.tone:
            short = " short" if len(cell.text) <= _SHORT else ""
            content = f'<span class="tone {cell.tone}{short}">{content}</span>'
        value = "" if cell.value is None else f' data-value="{cell.value!r}"'
        hint = f' title="{markup(cell.hint)}"' if cell.hint else ""
        name, scope = ("th", ' scope="row"') if index == 0 else ("td", "")
        cells.append(f"<{name}{scope}{_look(column)}{value}{hint}>{content}</{name}>")
    return f"<tr>{''.join(cells)}</tr>"


def _look(column: Column) -> str:
    classes = [name for name in ("number", "code", "prose", "steady") if getattr(column, name)]
    return f' class="{" ".join(classes)}"' if classes else ""
