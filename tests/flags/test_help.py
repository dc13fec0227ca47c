"""The page of flags and the help texts; tests/cli/test_cli.py tests `--help`."""

import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cnnbench.flags import FLAGS
from cnnbench.flags.declare import flag, specs_of
from cnnbench.flags.help import (
    command_help,
    flags_help,
    flags_page_markdown,
    run_help,
    wrap_help,
    xml_help,
)
from cnnbench.flags.obsolete import OBSOLETE

DOCS = Path(__file__).parents[2] / "docs"


def test_flags_md_is_current():
    text = (DOCS / "flags.md").read_text(encoding="utf-8")
    assert text == flags_page_markdown(), "run: python -m cnnbench.flags.help > docs/flags.md"


def test_every_declaration_is_a_sentence():
    for spec in (*FLAGS, *OBSOLETE):
        assert spec.help.endswith("."), spec.name
        assert "\n" not in spec.help, spec.name


TEXT = """\
Usage: cnnbench gate BASE [HEAD] [FLAGS] [-- FLAGS OF cnnbench run]
       cnnbench gate --init=github

Measures two commits in pairs of
processes (--pairs), and prints a verdict.

  cnnbench gate main -- --model=lenet --batch_size=8
  cnnbench gate main \\
      --burn_in=2
"""
FITTED = """\
Usage: cnnbench gate BASE [HEAD] [FLAGS]
           [-- FLAGS OF cnnbench run]
       cnnbench gate --init=github

Measures two commits in pairs of
processes (--pairs), and prints a
verdict.

  cnnbench gate main -- --model=lenet \\
      --batch_size=8
  cnnbench gate main --burn_in=2
"""


def test_introductions_fit_the_width_and_examples_stay_commands():
    assert wrap_help(TEXT, 40) == FITTED
    assert wrap_help(FITTED, 40) == FITTED
    assert wrap_help("", 40) == ""
    # Four words of 9 letters and an indentation are 41 columns wide.
    words = " ".join(letter * 9 for letter in "abcd")
    assert wrap_help(f"  {words}", 41) == f"  {words}\n"
    first, last = words[:29], words[30:]
    assert wrap_help(f"  {words}", 40) == f"  {first} \\\n      {last}\n"
    assert wrap_help(f"  {words} e", 42).splitlines()[0] == f"  {first} \\"
    assert wrap_help(f"  {words} e", 43).splitlines() == [f"  {words} e"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """A flag of each kind that the help treats differently."""

    quick: bool = flag(False, "Measure less.")
    rows: int = flag(25, "Rows to print.", minimum=0, maximum=99)
    share: float = flag(0.5, "Share.", above=0)
    output: str | None = flag(None, "Write the table to this file.", path="file or URL", short="o")
    prefix: str = flag("", "Text that comes before each of the names that are printed.")
    mode: str = flag("fast", "How.", choices=("fast", "exact"))
    steps: tuple[int, ...] = flag((1, 2), "Steps.")


OPTIONS = specs_of(Options)
HELP = """\
What:
  --[no]quick
      Measure less. (boolean; default false)
  --rows=N
      Rows to print. (integer; default 25; from 0 to
      99)
  --share=X
      Share. (number; default 0.5; greater than 0)

Where:
  -o, --output=TEXT
      Write the table to this file. (string; default
      not set; a path or a URL)
  --prefix=TEXT
      Text that comes before each of the names that
      are printed. (string; default empty)
"""


def test_the_help_of_flags_has_their_facts_and_fits_the_width():
    sections = [("What", OPTIONS[:3]), ("Where", OPTIONS[3:5])]
    assert flags_help(sections, 52) == HELP


@pytest.mark.parametrize(
    ("columns", "widest"), [("20", 40), ("60", 60), ("100", 100), ("300", 100)]
)
def test_the_help_is_as_wide_as_the_terminal_within_limits(columns, widest, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    text = "ab " * 99
    for fitted in (wrap_help(text), command_help(text, []), command_help("", [], text)):
        assert fitted == wrap_help(text, widest)
    assert max(map(len, wrap_help(text).splitlines())) == {40: 38, 60: 59, 100: 98}[widest]
    assert flags_help([("All", OPTIONS)]) == flags_help([("All", OPTIONS)], widest)
    parts = [wrap_help(TEXT), flags_help([("All", OPTIONS)]), wrap_help("The end.")]
    assert command_help(TEXT, [("All", OPTIONS)], "The end.") == "\n".join(parts)
    assert command_help("", [("All", OPTIONS)]) == parts[1]


def test_the_help_of_a_run_begins_with_what_is_used_most():
    usual, everything = run_help(80), run_help(80, obsolete=True)
    assert everything.startswith(usual)
    assert usual.startswith("Usage: cnnbench [run] [FLAGS]\n\nMeasures")
    titles = re.findall(r"^(\w.*):$", usual, re.MULTILINE)
    assert titles[:2] == ["Most used", "Repeated measurement"]
    first = usual.partition("\nRepeated measurement:\n")[0]
    names = re.findall(r"^  (?:-\w, )?--(?:\[no\])?(\w+)", first, re.MULTILINE)
    assert names[:3] == ["model", "batch_size", "num_gpus"]
    for text, specs in ((usual, FLAGS), (everything, (*FLAGS, *OBSOLETE))):
        found = re.findall(r"^  (?:-\w, )?--(?:\[no\])?(\w+)", text, re.MULTILINE)
        assert {spec.name for spec in specs} <= set(found)
        assert len(found) == len(set(found))
        assert ("trt_mode" in found) == (text is everything)
    assert max(map(len, usual.splitlines())) <= 80


def test_xml_help_has_what_absl_reads():
    root = ElementTree.fromstring(xml_help([("What", OPTIONS[:3]), ("Where", OPTIONS[3:])]))
    found = {
        flag.findtext("name"): (
            flag.findtext("file"),
            flag.findtext("type"),
            flag.findtext("default"),
            flag.findtext("short_name"),
        )
        for flag in root.iter("flag")
    }
    assert found == {
        "quick": ("What", "bool", "false", None),
        "rows": ("What", "int", "25", None),
        "share": ("What", "float", "0.5", None),
        "output": ("Where", "string", "", "o"),
        "prefix": ("Where", "string", "", None),
        "mode": ("Where", "string enum", "fast", None),
        "steps": ("Where", "comma separated list of strings", "1,2", None),
    }
    by_name = {flag.findtext("name"): flag for flag in root.iter("flag")}
    assert [item.text for item in by_name["mode"].iter("enum_value")] == ["fast", "exact"]
    assert by_name["rows"].findtext("meaning") == "Rows to print."
