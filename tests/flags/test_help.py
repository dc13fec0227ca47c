"""The page of flags and the help texts; tests/cli/test_cli.py tests `--help`."""

from pathlib import Path

from cnnbench.flags import FLAGS
from cnnbench.flags.help import flags_page_markdown
from cnnbench.flags.params import OBSOLETE

DOCS = Path(__file__).parents[2] / "docs"


def test_flags_md_is_current():
    text = (DOCS / "flags.md").read_text(encoding="utf-8")
    assert text == flags_page_markdown(), "run: python -m cnnbench.flags.help > docs/flags.md"


def test_every_declaration_is_a_sentence():
    for spec in (*FLAGS, *OBSOLETE):
        assert spec.help.endswith("."), spec.name
        assert "\n" not in spec.help, spec.name
