"""``cnnbench docs``: print a page of the documentation."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from cnnbench.base.interrupts import handling_signals
from cnnbench.base.terminal import fit_table, is_terminal, print_result
from cnnbench.base.text import unknown_name_reason
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags import parse_command

if TYPE_CHECKING:
    from importlib.abc import Traversable

_ABOUT = """\
Usage: cnnbench docs [PAGE]

Prints a page of the documentation in Markdown. Without PAGE, lists the pages. On a terminal, the
program in the environment variable PAGER shows the page; by default, this program is less. Files to
which pages link, such as schemas/run.schema.json, are printed by the name in the link.

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
        rows = [(name, _title(page.read_text("utf-8"))) for name, page in pages.items()]
        lines = fit_table(rows, left=(0, 1), has_head=False)
        print_result("\n".join(line for row in lines for line in row))
        return ExitCode.OK
    # Links and messages name pages as files, such as docs/data.md or data.md#urls.
    name = names[0].partition("#")[0].removeprefix("docs/").removesuffix(".md")
    file = {**pages, **_find_linked_files()}.get(name)
    if file is None:
        raise UsageError(f"no page {names[0]!r}; {unknown_name_reason(name, pages, 'there are')}")
    _show(file.read_text("utf-8"))
    return ExitCode.OK


def _find_pages() -> dict[str, Traversable]:
    """The file of each page by the page's name, in alphabetical order."""
    files = sorted(resources.files("cnnbench.docs").iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".md"): file for file in files if file.name.endswith(".md")}


def _find_linked_files() -> Mapping[str, Traversable]:
    """The files to which pages link, by the paths in the links."""
    root = resources.files("cnnbench.docs")
    return {
        f"{folder}/{file.name}": file
        for folder in ("examples", "schemas")
        for file in root.joinpath(folder).iterdir()
        if file.is_file()
    }


def _title(page: str) -> str:
    return next(line.removeprefix("# ") for line in page.splitlines() if line.startswith("# "))


def _show(text: str) -> None:
    """Prints a text. If standard output is a terminal, a pager shows the text, as git does it."""
    if not (is_terminal(sys.stdout) and _show_in_pager(text)):
        print_result(text)


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
