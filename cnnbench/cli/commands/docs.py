"""``cnnbench docs``: print a page of the documentation."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from cnnbench.base.interrupts import handling_signals
from cnnbench.base.tables import fit_table
from cnnbench.base.terminal import is_terminal, line_width, print_result
from cnnbench.base.text import unknown_name_reason
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import parse_command

if TYPE_CHECKING:
    from importlib.abc import Traversable

KINDS = ("Tutorial", "How to", "Reference", "Explanation")
"""The kinds of pages. A page says its kind in the line below its title."""

_BEGINNING = re.compile(r"^# (.+)\n\n\*([\w ]+)\.\*", re.MULTILINE)

_PIECE = re.compile(
    r"^ *```.*?^ *```$"  # an example
    r"|^(?:[|#<!>]|    )[^\n]*$"  # a row of a table, a heading, a picture, a quotation
    r"|^(?P<beginning> *(?:- |\d+\. )?)"  # a list item or a paragraph
    r"(?P<text>\S[^\n]*(?:\n(?![|#<>]| *(?:- |\d+\. |```)) *\S[^\n]*)*)$",
    re.DOTALL | re.MULTILINE,
)
"""A block of a page in Markdown. The groups are parts of a block whose lines may be broken."""

_ABOUT = """\
Usage: cnnbench docs [PAGE]

Prints a page of the documentation in Markdown. Without PAGE, lists the pages by kind. On a
terminal, the program in the environment variable PAGER shows the page; by default, this program is
less. Files to which pages link, such as schemas/run.schema.json, are printed by the name in the
link.

  cnnbench docs
  cnnbench docs troubleshooting
  cnnbench docs schemas/run.schema.json > run.schema.json
"""

HELP = (_ABOUT, ())


def argument_completions() -> tuple[str, ...]:
    """The names of the pages, which a shell proposes as the argument of the command."""
    return tuple(_find_pages())


def main(argv: Sequence[str]) -> int:
    """Lists the pages, or prints a page or a file to which pages link."""
    _, names = parse_command(argv, ())
    if len(names) > 1:
        raise UsageError(f"cnnbench docs takes one PAGE, not {' '.join(names)!r}")
    pages = _find_pages()
    if not names:
        print_result(_format_page_list(pages))
        return ExitCode.OK
    # Links and messages name pages as files, such as docs/data.md or data.md#urls.
    path = names[0].partition("#")[0].removeprefix("docs/")
    name = path.removesuffix(".md")
    file = pages.get(name) or _linked_files().get(path)
    if file is None:
        raise UsageError(f"no page {names[0]!r}; {unknown_name_reason(name, pages, 'there are')}")
    text = file.read_text("utf-8")
    if not is_terminal(sys.stdout):
        print_result(text)
        return ExitCode.OK
    if name in pages:
        text = wrap_page(text, line_width())
    if not _show_in_pager(text):
        print_result(text)
    return ExitCode.OK


def _find_pages() -> dict[str, Traversable]:
    """The file of each page by the page's name, in alphabetical order."""
    files = sorted(resources.files("cnnbench.docs").iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".md"): file for file in files if file.name.endswith(".md")}


def _linked_files() -> Mapping[str, Traversable]:
    """The files to which pages link, by the paths in the links."""
    root = resources.files("cnnbench.docs")
    return {
        f"{folder}/{file.name}": file
        for folder in ("evidence", "examples", "schemas")
        for file in root.joinpath(folder).iterdir()
        if file.is_file()
    }


def _format_page_list(pages: Mapping[str, Traversable]) -> str:
    """Lists the names and titles of the pages below the kinds of pages."""
    rows: dict[str, list[tuple[str, str]]] = {kind: [] for kind in KINDS}
    for name, page in pages.items():
        title, kind = _BEGINNING.findall(page.read_text("utf-8"))[0]
        rows[kind].append((name, title))
    lines: list[str] = []
    for kind, of_kind in rows.items():
        table = fit_table(of_kind, left=(0, 1), indent=2, has_head=False)
        lines += ["", f"{kind}:", *(f"  {line}" for row in table for line in row)]
    return "\n".join(lines[1:])


def wrap_page(page: str, width: int) -> str:
    """Breaks the paragraphs and list items of a page in Markdown at a width in columns. Examples,
    tables and headings stay as they are.
    """

    def fit(piece: re.Match[str]) -> str:
        if piece["text"] is None:
            return piece[0]
        return textwrap.fill(
            re.sub(r"\n *", " ", piece["text"]),
            width,
            initial_indent=piece["beginning"],
            subsequent_indent=" " * len(piece["beginning"]),
            break_long_words=False,
            break_on_hyphens=False,
        )

    return _PIECE.sub(fit, page)


def _show_in_pager(text: str) -> bool:
    """Shows a text in a pager. Returns False if there is no pager.

    With the options FRX, which a variable LESS replaces, less ends at once if the text fits on the
    screen.
    """
    environment = {"LESS": "FRX", **os.environ}
    try:
        words = shlex.split(os.environ.get("PAGER", "less"))
        if not words:
            return False
        with handling_signals(lambda number, frame: None):  # Ctrl-C is for the pager.
            subprocess.run(words, input=text.encode(), env=environment, check=False)
    except (OSError, ValueError):
        return False
    return True
