"""cnnbench docs: the pages, the files to which they link, and the pager."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cnnbench.cli.commands.docs import wrap_page

DOCS = Path(__file__).parents[3] / "docs"


def test_every_page_is_listed_below_its_kind_and_printed(call):
    kinds = {}
    for section in call("docs").out.split("\n\n"):
        kind, _, rows = section.partition(":\n")
        for name, title in re.findall(r"^  (\w+) +(.+)", rows, re.MULTILINE):
            page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
            assert call("docs", name).out == page
            assert f"# {title}" in page
            assert f"\n*{kind}.*" in page
            kinds.setdefault(kind, []).append(name)
    assert [*kinds] == ["Tutorial", "How to", "Reference", "Explanation"]
    assert all(names == sorted(names) for names in kinds.values())
    listed = sorted(itertools.chain(*kinds.values()))
    assert listed == sorted(path.stem for path in DOCS.glob("*.md"))


@pytest.mark.parametrize("name", ["data.md", "docs/data.md", "data.md#urls"])
def test_pages_have_the_names_in_links_and_messages(call, name):
    assert call("docs", name).out == (DOCS / "data.md").read_text(encoding="utf-8")


def test_files_to_which_pages_link_are_printed(call):
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    linked = set(re.findall(r"\]\(((?:evidence|examples|schemas)/[^)#]+)", text))
    assert len(linked) > 15
    for name in linked:
        assert call("docs", name).out == (DOCS / name).read_text(encoding="utf-8")


def on_terminal(*words: str, pager: str) -> str:
    """What a command prints on a terminal."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "PAGER": pager}
    command = [sys.executable, "-m", "cnnbench", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, env=environment) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # The program has ended.
                break
            output += part
        assert process.wait(60) == 0
    os.close(ours)
    return output.decode().replace("\r\n", "\n")


def test_a_terminal_shows_a_page_in_the_pager():
    assert on_terminal("docs", "ab", pager="head -n 1").splitlines() == [
        (DOCS / "ab.md").read_text(encoding="utf-8").partition("\n")[0]
    ]


def test_a_pager_that_fails_costs_no_page():
    assert on_terminal("docs", "ab", pager="sh -c 'head -n 1; exit 3'").startswith("# ")


TEXT = """\
# A heading that is longer than the width of this terminal

A paragraph with `two  spaces` in its
middle.

- An item that is too long for the line,
  with a second line.
- Another item.

  ```
  an example   that is wider than the terminal
  ```

1. One.
| a row of a table that is wider than the terminal |

> A quotation that is wider than the terminal
>
> - with a list
"""
FITTED = """\
# A heading that is longer than the width of this terminal

A paragraph with `two  spaces`
in its middle.

- An item that is too long for
  the line, with a second line.
- Another item.

  ```
  an example   that is wider than the terminal
  ```

1. One.
| a row of a table that is wider than the terminal |

> A quotation that is wider than the terminal
>
> - with a list
"""


def test_prose_fits_the_terminal_and_nothing_is_lost():
    assert wrap_page(TEXT, 32) == FITTED
    for path in DOCS.glob("*.md"):
        page = path.read_text(encoding="utf-8")
        assert wrap_page(page, 80).split() == page.split()


@pytest.mark.parametrize("pager", ["", "/no/such/pager", "'"])
def test_without_a_pager_a_terminal_shows_the_page(pager):
    page = (DOCS / "ab.md").read_text(encoding="utf-8")
    assert on_terminal("docs", "ab", pager=pager).split() == page.split()


def test_nothing_else_uses_the_pager(call, monkeypatch):
    monkeypatch.setenv("PAGER", "head -n 1")
    assert call("docs", "ab").out.count("\n") > 9
