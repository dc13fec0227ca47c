"""Writes a report as a part of an HTML page, without style, script and charts, for notebooks.

All texts are escaped, because they may come from untrusted records.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from cnnbench.base.document import (
    Answer,
    Block,
    ChartGroup,
    CommandLine,
    Items,
    Paragraph,
    Report,
    Section,
    Table,
    TableCell,
)
from cnnbench.base.text import to_plain_line

_ADDRESSES = ("https://", "http://")


def report_to_fragment(report: Report) -> str:
    """Writes a report as HTML elements that can be inserted into any page."""
    lines = [f"<h3>{_text(report.title)}</h3>", f"<p>{_text(report.subtitle)}</p>"]
    facts = [_answer_item(answer) for answer in report.answers]
    facts += [f"<li>{_text(name)}: {_text(value)}</li>" for name, value in report.highlights]
    if facts:
        lines += ["<ul>", *facts, "</ul>"]
    for section in report.sections:
        lines += _section_lines(section)
    return "\n".join(lines) + "\n"


def _answer_item(answer: Answer) -> str:
    details = "".join(f"<li>{_text(detail)}</li>" for detail in answer.details)
    inner = f"<ul>{details}</ul>" if details else ""
    return f"<li><b>{_text(answer.name)}: {_text(answer.text)}</b>{inner}</li>"


def _section_lines(section: Section) -> list[str]:
    visible = section.visible_when_folded if section.folded else None
    blocks = (block for block in section.blocks if block is not visible)
    lines = [line for block in blocks for line in _block_lines(block)]
    title = _text(section.title)
    if visible is not None:
        title = f"{title}: {_text(visible.text)}"
    elif not lines:  # The section contains only charts.
        return []
    return _folded_lines(title, lines) if section.folded else [f"<h4>{title}</h4>", *lines]


def _folded_lines(title: str, lines: Iterable[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", *lines, "</details>"]


def _block_lines(block: Block) -> list[str]:
    if isinstance(block, ChartGroup):
        return []
    if isinstance(block, Paragraph):
        return [f"<p>{_text(block.text)}</p>"]
    if isinstance(block, CommandLine):
        return [f"<p>{_text(block.name)}: {_text(block.text)}</p>"]
    title = _text(block.title)
    lines = _list_lines(block) if isinstance(block, Items) else _table_lines(block)
    if block.folded:
        return _folded_lines(title, lines)
    return [f"<h5>{title}</h5>", *lines] if title else lines


def _table_lines(table: Table) -> list[str]:
    aligned = [
        ' style="text-align: right"' if "number" in kinds else "" for _, kinds, _ in table.columns
    ]
    titles = zip(aligned, table.columns, strict=True)
    head = "".join(f"<th{align}>{_text(title)}</th>" for align, (title, _, _) in titles)
    rows = (
        "".join(f"<td{align}>{_cell(cell)}</td>" for align, cell in zip(aligned, row, strict=True))
        for row in table.rows
    )
    lines = ["<table>", f"<tr>{head}</tr>", *(f"<tr>{row}</tr>" for row in rows), "</table>"]
    return lines if table.remarks is None else [*lines, *_block_lines(table.remarks)]


def _list_lines(block: Items) -> list[str]:
    texts = block.texts if block.folded else block.first
    others = None if block.folded else block.others
    lines = ["<ul>", *(f"<li>{_text(text)}</li>" for text in texts), "</ul>"]
    return lines if others is None else [*lines, *_block_lines(others)]


def _cell(cell: TableCell) -> str:
    text = _text(cell.marked_text)
    if not cell.link.startswith(_ADDRESSES):
        return text
    return f'<a href="{_text(cell.link)}" rel="noopener noreferrer">{text}</a>'


def _text(text: str) -> str:
    return html.escape(to_plain_line(text))
