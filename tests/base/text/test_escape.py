"""Text from records means nothing to Markdown or a spreadsheet.

Tests cnnbench/base/escapes.py, cnnbench/base/tables.py and cnnbench/base/terminal.py.
"""

import html
import io
import itertools
import json
import re

import pytest

from cnnbench.base.escapes import (
    dump_json,
    escape_formula,
    escape_markdown,
    markdown_code,
    to_plain_line,
    to_terminal_line,
)
from cnnbench.base.tables import align_table, fit_table
from cnnbench.base.terminal import LineWriter, wrap_text

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "]]><svg/onload=alert(1)>",
    "--><b>",
    "a|b`c``\n## head\r\n* item",
    "[x](javascript:alert(1)) ![y](http://z) <http://w>",
    "@everyone #1 GH-2 www.example.com https://example.com :boom:",
    "**bold** _it_ ~~no~~ $x$ \\| &lt; &#60;",
    "\u202egnp.exe \x1b[31m \x00 \u2028",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_is_one_line_of_entities(text):
    line = escape_markdown(text)
    assert "\n" not in line
    bare = re.sub(r"^<code>|</code>$", "", line)
    assert not re.search(r"[<>|`\[\]*\\~$@]|&(?!#\d+;)|#(?!\d+;)|://|www\.|:[a-z]", bare)
    assert html.unescape(bare) == to_plain_line(text)


COMMANDS = {
    "##vso[task.complete result=Failed;]": "# #vso[task.complete result=Failed;]",
    "x ##[error]y": "x # #[error]y",
    "###teamcity[buildStop]": "## #teamcity[buildStop]",
    "\t::error file=a.py,line=1::no": ": :error file=a.py,line=1::no",
}
IN_THE_MIDDLE = ("net/::set-output name=x::y", "a_::stop-commands::b", "x ::error::y")
HARMLESS = ("## title [1]", "#12", "absl::InitializeLog()", "[::1]:2222", "::x", ":::MLLOG {}")


@pytest.mark.parametrize("text", [*COMMANDS, *IN_THE_MIDDLE, *HARMLESS])
def test_no_line_begins_with_a_command_of_a_ci_service(text, monkeypatch):
    wanted = COMMANDS.get(text, text)
    assert (to_plain_line(text), to_plain_line(to_plain_line(text))) == (wanted, wanted)
    monkeypatch.setenv("COLUMNS", "40")
    stream = io.StringIO()
    LineWriter(stream).write_lines([text])
    lines = stream.getvalue().splitlines()
    for before in ("", "m" * 35 + " ", "m" * 35 + "/"):  # where the line or the cell is broken
        rows = [[before + text, "1"], ["m" * 90, "2"]]
        lines += [
            *align_table(rows),
            *itertools.chain(*fit_table(rows)),
            *wrap_text(before + text, "  "),
        ]
    assert not [one for one in lines if re.search(r"##[\w.]*\[|^\s*::[\w-]+( .*)?::", one)]


@pytest.mark.parametrize(
    "text", ["=1+1", "+A1", "-2+3", "@SUM(A1)", "\t=1", "\r\n=1", "＝1", " =1"]
)
def test_no_cell_is_a_formula(text):
    assert escape_formula(text).startswith("'")


@pytest.mark.parametrize("number", ["-1", "-0.25", "+3", "-1.5e-07", "-2E+3", "-Infinity"])
def test_a_number_is_no_formula(number):
    assert (escape_formula(number), escape_formula("lenet 0.5")) == (number, "lenet 0.5")
    assert escape_formula(f"{number}+A1") == f"'{number}+A1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b _c d_ _", "a_b &#95;c d&#95; &#95;"),
        ("12:05, a: b, a:b", "12:05, a: b, a&#58;b"),
        ("2*3 <b> #x ~y", "2&#42;3 &#60;b&#62; &#35;x &#126;y"),
        ("#12", "<code>&#35;12</code>"),
        ("gh-2", "<code>gh-2</code>"),
        ("x@y", "<code>x&#64;y</code>"),
        ("awww.x.y", "<code>awww&#46;x.y</code>"),
        ("a://b", "<code>a&#58;//b</code>"),
        (":+1:", "<code>&#58;+1:</code>"),
        ("a\nb\x1b", "a b"),
        2 * ("2026-11-20 12:05 (UTC), 96 %, parameter_server",),
    ],
)
def test_text_in_markdown(text, shown):
    assert escape_markdown(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--model=a (b), c+d; e.f/g", "--model=a (b), c+d; e.f/g"),
        ("a_b|`c`:d", "a&#95;b&#124;&#96;c&#96;&#58;d"),
        ("www.x WWW.y", "www&#46;x WWW&#46;y"),
        ("  caf\xe9\n", "caf\xe9"),
    ],
)
def test_code_in_markdown(text, shown):
    assert markdown_code(text) == f"<code>{shown}</code>"


def test_bytes_that_are_no_text_become_escapes_in_a_terminal():
    assert to_terminal_line("a\udcffb\x1b[2J\n") == "a\\udcffb [2J"


def test_json_contains_no_command_of_a_ci_service_and_the_same_texts():
    value = {"##vso[a]": ["##[b]", "\\##vso[c]", "##", "# #", "###x.y-z[", {"d": "é\n"}, 0.5, None]}
    for indent in (None, 1):
        text = dump_json(value, indent)
        assert json.loads(text) == value
        assert not re.search(r"##[\w.-]*\[", text)
    assert dump_json("## heading") == '"## heading"'
    with pytest.raises(ValueError, match="JSON"):
        dump_json(float("nan"))
