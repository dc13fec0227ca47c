"""Documents as Markdown, without their charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cnnbench.base.document import Block, Charts, Report, Section, Table, TableCell
from cnnbench.base.text.escape import markdown
from cnnbench.base.text.numbers import NONE

_MARKS = {"good": "🟢 ", "bad": "🔴 ", "unsure": "🟡 "}


def render(report: Report) -> str:
    """A whole report."""
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
        lines = _block(block)
        if lines:
            yield ""
            yield from lines


def _block(block: Block) -> list[str]:
    if isinstance(block, Table):
        title = [f"### {markdown(block.title)}", ""] if block.title else []
        return [*title, *table_lines(block)]
    if isinstance(block, Charts):
        return []
    return [f"{_MARKS.get(block.tone, '')}{markdown(block.text)}"]


def table_lines(block: Table, names: Callable[[str], str] = markdown) -> list[str]:
    """The lines of a table; `names` escapes the texts of columns without numbers."""
    aligned = ["number" in kinds for _, kinds, _ in block.columns]
    return [
        row([markdown(title) for title, _, _ in block.columns]),
        row(["--:" if number else "---" for number in aligned]),
        *(
            row([_cell(cell, markdown if number else names) for cell, number in pairs])
            for pairs in (zip(cells, aligned, strict=True) for cells in block.rows)
        ),
    ]


def _cell(cell: TableCell, escape: Callable[[str], str]) -> str:
    text = f"{_MARKS.get(cell.tone, '')}{NONE if cell.text == NONE else escape(cell.text)}"
    return f"[{text}]({cell.link})" if cell.link else text


def row(cells: Sequence[str]) -> str:
    """A row of a table, of escaped texts."""
    return f"| {' | '.join(cells)} |"
