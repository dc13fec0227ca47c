"""Generated tables in Markdown documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cnnbench.errors import UsageError


def markdown_table(
    header: Sequence[str], align: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """A table; `align` is "---" or "---:" for each column."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, align, *rows))


def with_table(text: str, name: str, table: str) -> str:
    """Replaces a document's table between "<!-- NAME: begin -->" and "<!-- NAME: end -->"."""
    first, last = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise UsageError(f"the document needs the lines {first} and {last}")
    return f"{head}{first}\n{table}\n{last}{tail}"


def rewrite(files: Sequence[str], name: str, table: str) -> None:
    """Replaces a table in files; see `with_table`."""
    for path in map(Path, files):
        path.write_text(with_table(path.read_text(encoding="utf-8"), name, table), encoding="utf-8")
