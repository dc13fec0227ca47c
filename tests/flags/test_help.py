"""The page of flags and the help texts; tests/cli/test_cli.py tests `--help`."""

from pathlib import Path

from cnnbench.flags import FLAGS
from cnnbench.flags.help import fit_text, flags_page_markdown
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
      --confirm
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
  cnnbench gate main --confirm
"""


def test_introductions_fit_the_width_and_examples_stay_commands():
    assert fit_text(TEXT, 40) == FITTED
    assert fit_text(FITTED, 40) == FITTED
    assert fit_text("", 40) == ""
