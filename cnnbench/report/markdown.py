"""A report as Markdown: the same sections without their charts."""

from __future__ import annotations

from collections.abc import Iterable

from cnnbench.report.document import Block, Charts, Report, Section, Table
from cnnbench.text.escape import markdown

_MARKS = {"good": "🟢 ", "bad": "🔴 ", "unsure": "🟡 "}


def render(report: Report) -> str:
    """The report, ending in a line break."""
    lines = [f"# {markdown(report.title)}", "", f"{markdown(report.subtitle)}.", ""]
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
        yield _row([markdown(column.title) for column in block.columns])
        yield _row(["--:" if column.number else "---" for column in block.columns])
        for row in block.rows:
            yield _row([f"{_MARKS.get(cell.tone, '')}{markdown(cell.text)}" for cell in row])
    elif not isinstance(block, Charts):
        yield f"{_MARKS.get(block.tone, '')}{markdown(block.text)}"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
