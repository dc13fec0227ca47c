from pathlib import Path

from cnnbench.flags import FLAGS
from cnnbench.flags.help import MOST_USED, markdown, run_help
from cnnbench.flags.retired import OBSOLETE

DOCS = Path(__file__).parents[2] / "docs"


def test_flags_md_is_current():
    text = (DOCS / "flags.md").read_text(encoding="utf-8")
    assert text == markdown(), "run: python -m cnnbench.flags.help > docs/flags.md"


def test_help_has_every_flag_once():
    lines = run_help(80, obsolete=True).splitlines()
    heads = [line.split("=")[0] for line in lines if line.startswith("  --")]
    names = [head.removeprefix("  --").removeprefix("[no]") for head in heads]
    assert tuple(names[: len(MOST_USED)]) == MOST_USED
    assert sorted(names) == sorted(spec.name for spec in (*FLAGS, *OBSOLETE))
    lines = [line for line in lines if line.startswith("  ")]
    assert max(map(len, lines)) <= 80


def test_flags_without_meaning_are_left_to_migrating_md_and_helpfull():
    for text in (run_help(80), markdown()):
        assert [spec.name for spec in OBSOLETE if f"--{spec.name}" in text.split()] == []
        assert "Without meaning" not in text


def test_help_gives_type_default_and_range():
    text = " ".join(run_help(80).split())
    assert "(integer; default 1; at least 1)" in text
    assert "(string; default sgd; one of momentum, sgd, rmsprop, adam)" in text


def test_every_declaration_is_a_sentence():
    for spec in (*FLAGS, *OBSOLETE):
        assert spec.help.endswith("."), spec.name
        assert "\n" not in spec.help, spec.name


def test_migrating_md_names_what_is_obsolete():
    text = (DOCS / "migrating.md").read_text(encoding="utf-8")
    assert [spec.name for spec in OBSOLETE if f"`--{spec.name}`" not in text] == []
