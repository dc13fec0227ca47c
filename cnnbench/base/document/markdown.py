"""Writes reports as Markdown, without charts, and sections as a comment on GitHub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from cnnbench.base.document import (
    Block,
    ChartGroup,
    CommandLine,
    Items,
    Report,
    Section,
    Table,
    TableCell,
)
from cnnbench.base.escapes import escape_markdown, markdown_code
from cnnbench.base.text import NONE
from cnnbench.errors import UsageError

_MARKS = {"good": "🟢 ", "bad": "🔴 ", "unsure": "🟡 ", "changed": "🔵 ", "": ""}
_NO_TONE = "⚪ "
"""Circle in cells that have a mark but no tone."""

COMMENT_LIMIT = 60_000
"""Maximum number of characters in a comment. GitHub accepts 65,536, and counts some of them
twice.
"""

_LONGEST_CELL, _LONGEST_TEXT, _LONGEST_COMMAND = 200, 600, 2_000
"""Maximum lengths of texts in a comment. A character may become an entity of six characters."""


@dataclass(frozen=True)
class _Part:
    """Lines that are separated from other lines by an empty line.

    If there is too little room, lines of the body are replaced by `more`, in which {} is their
    number.
    """

    head: tuple[str, ...]
    body: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    more: str = ""

    @property
    def text(self) -> str:
        return "\n".join((*self.head, *self.body, *self.tail))

    def with_room(self, room: int) -> _Part:
        """Returns the part with a body of at most `room` characters, or only with `more`."""
        if not self.body or _size(self.body) <= room:
            return self
        room -= _size((self.more,)) + len(str(len(self.body)))
        count = 0
        for line in self.body:
            room -= _size((line,))
            if room < 0:
                break
            count += 1
        more = self.more.format(len(self.body) - count)
        return replace(self, body=(*self.body[:count], more))


def report_to_markdown(report: Report) -> str:
    """Writes a whole report as Markdown, without charts."""
    facts = []
    for answer in report.answers:
        name, text = escape_markdown(answer.name), escape_markdown(answer.text)
        facts.append(f"- {_MARKS[answer.tone]}{name}: {text}")
        facts += [f"  - {escape_markdown(detail)}" for detail in answer.details]
        if answer.command is not None:
            command = markdown_code(answer.command.text)
            facts.append(f"  - {escape_markdown(answer.command.name)}: {command}")
    facts += [
        f"- {escape_markdown(name)}: {escape_markdown(value)}" for name, value in report.highlights
    ]
    parts = [
        _Part((f"# {escape_markdown(report.title)}",)),
        _Part((f"{escape_markdown(report.subtitle)}.",)),
        *([_Part(tuple(facts))] if facts else []),
    ]
    for section in report.sections:
        written = [*_Writer().section_parts(section, "##")]
        # Markdown shows no charts, so a section that contains only charts is left out.
        parts += written if written[1:] else []
    return _join_parts(parts)


def sections_to_comment(sections: Iterable[Section], title: str) -> str:
    """Writes sections as a comment on GitHub, which has at most `COMMENT_LIMIT` characters.

    GitHub shows folded parts after a click. Long texts are cut, and lines that do not fit are left
    out, which the comment says.
    """
    parts = [_Part((f"### {escape_markdown(title)}",))]
    for section in sections:
        parts += _Writer(comment=True).section_parts(section, "####")
    return _join_parts(_fit_parts(parts, COMMENT_LIMIT))


def _join_parts(parts: Iterable[_Part]) -> str:
    return "\n\n".join(part.text for part in parts) + "\n"


def _fit_parts(parts: Sequence[_Part], limit: int) -> list[_Part]:
    """Shortens the longest bodies until all parts together have at most `limit` characters."""
    # Every body gets an equal share of the space. Longer bodies use what shorter ones do not need.
    fitted = [*parts]
    room = limit - sum(_size((*part.head, *part.tail)) + 1 for part in parts)
    by_size = sorted(range(len(parts)), key=lambda place: _size(parts[place].body))
    for done, place in enumerate(by_size):
        fitted[place] = parts[place].with_room(room // (len(parts) - done))
        room -= _size(fitted[place].body)
    return fitted


def _size(lines: Iterable[str]) -> int:
    return sum(len(line) + 1 for line in lines)


@dataclass(frozen=True)
class _Writer:
    """Writes sections and blocks. In a comment on GitHub, folds sections and cuts long texts."""

    comment: bool = False

    def section_parts(self, section: Section, level: str) -> Iterator[_Part]:
        """Yields the title of a section, if it has one, and its blocks."""
        title = self._text(section.title)
        folded = self.comment and section.folded
        if folded:
            yield _Part((_summary(title),))
        elif title:
            yield _Part((f"{level} {title}",))
        for block in section.blocks:
            yield from self._block_parts(block)
        if folded:
            yield _Part(("</details>",))

    def _block_parts(self, block: Block) -> Iterator[_Part]:
        if isinstance(block, Table):
            yield from self._table_parts(block)
        elif isinstance(block, Items):
            yield from self._list_parts(block)
        elif isinstance(block, CommandLine):
            command = markdown_code(self._cut(block.text, _LONGEST_COMMAND))
            yield _Part((f"{self._text(block.name)}: {command}",))
        elif not isinstance(block, ChartGroup):
            yield _Part((f"{_MARKS[block.tone]}{self._text(block.text)}",))

    def _table_parts(self, block: Table) -> Iterator[_Part]:
        head, rule, *rows = table_to_markdown_lines(block, self._cell_text)
        more = markdown_row(["… {} more", *[""] * (len(block.columns) - 1)])
        yield from self._with_title(block, _Part((head, rule), tuple(rows), (), more))
        if block.remarks is not None:
            yield from self._list_parts(block.remarks)

    def _list_parts(self, block: Items) -> Iterator[_Part]:
        others = block.others if self.comment and not block.folded else None
        texts = block.texts if others is None else block.first
        lines = tuple(f"- {self._text(text)}" for text in texts)
        yield from self._with_title(block, _Part((), lines, (), f"- … and {{}} more {block.about}"))
        if others is not None:
            yield from self._list_parts(others)

    def _with_title(self, block: Table | Items, part: _Part) -> Iterator[_Part]:
        """Yields a block with its title before it. In a comment, it may be folded."""
        title = self._text(block.title)
        if self.comment and block.folded:
            yield replace(
                part, head=(_summary(title), "", *part.head), tail=(*part.tail, "", "</details>")
            )
            return
        if title:
            yield _Part((f"{'####' if self.comment else '###'} {title}",))
        yield part

    def _cell_text(self, text: str) -> str:
        return escape_markdown(self._cut(text, _LONGEST_CELL))

    def _text(self, text: str) -> str:
        return escape_markdown(self._cut(text, _LONGEST_TEXT))

    def _cut(self, text: str, longest: int) -> str:
        """Shortens a text to `longest` characters in a comment; other documents keep it whole."""
        too_long = self.comment and len(text) > longest
        return f"{text[: longest - 1]}…" if too_long else text


def _summary(title: str) -> str:
    return f"<details><summary>{title}</summary>"


def table_to_markdown_lines(
    block: Table, names: Callable[[str], str] = escape_markdown
) -> list[str]:
    """Formats a table as lines. `names` escapes the texts in columns without numbers."""
    aligned = ["number" in kinds for _, kinds, _ in block.columns]
    escapes = [escape_markdown if number else names for number in aligned]
    rows = [[escape_markdown(title) for title, _, _ in block.columns]]
    rows.append(["--:" if number else "---" for number in aligned])
    for cells in block.rows:
        rows.append([_cell(*pair) for pair in zip(cells, escapes, strict=True)])
    return [*map(markdown_row, rows)]


def _cell(cell: TableCell, escape: Callable[[str], str]) -> str:
    mark = _MARKS[cell.tone] or (_NO_TONE if cell.mark else "")
    text = f"{mark}{NONE if cell.text == NONE else escape(cell.text)}"
    return f"[{text}]({cell.link})" if cell.link else text


def markdown_row(escaped: Sequence[str]) -> str:
    """Writes a row of a Markdown table from the texts of its cells, which must be escaped."""
    return f"| {' | '.join(escaped)} |"


def markdown_table(
    header: Sequence[str], align: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """Formats a Markdown table. `align` is "---" or "---:" for each column."""
    return "\n".join(map(markdown_row, (header, align, *rows)))


def replace_marked_table(document: str, marker: str, table: str) -> str:
    """Replaces the lines of a document between "<!-- MARKER: begin -->" and "<!-- MARKER: end -->"
    by a table.
    """
    first, last = (f"<!-- {marker}: {edge} -->" for edge in ("begin", "end"))
    head, begin, rest = document.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise UsageError(f"the document must contain the lines {first} and {last}")
    return f"{head}{first}\n{table}\n{last}{tail}"
