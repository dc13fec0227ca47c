"""Documents name files that are there, and command lines that are valid."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from cnnbench.cli import main
from cnnbench.cli.commands.docs import KINDS
from cnnbench.cli.overview import COMMANDS
from cnnbench.errors import ExitCode
from cnnbench.flags import FLAGS, parse_command
from cnnbench.flags.declare import specs_of
from cnnbench.flags.groups.repeat import RepeatFlags
from cnnbench.flags.parse import split_at_double_dash
from cnnbench.plan import parse_run
from cnnbench.records.codec import parse_json
from cnnbench.records.load import record_from_json

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PATH = re.compile(r"`((?:cnnbench|models|variable_mgr|configs|scripts|tests|docs)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def test_files_that_are_named_are_there():
    missing = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        named = [ROOT / path for path in PATH.findall(text) if "NAME" not in path]
        linked = [document.parent / path for path in LINK.findall(text)]
        missing += [(document.name, path) for path in [*named, *linked] if not path.exists()]
    assert missing == []


def _lines(document):
    return document.read_text(encoding="utf-8").splitlines()


PAGES = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]


def _command_lines(page):
    """The words of the command lines of cnnbench in the examples of a page, and in its tables."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    examples = re.findall(r"^(?:\$ )?(?:cnnbench|scripts/run) (.*)$", blocks, re.MULTILINE)
    for line in [*examples, *re.findall(r"^\|.*? \| `cnnbench (.*?)`", text, re.MULTILINE)]:
        # Without commands within the command, comments, and programs that read the output.
        alone = re.sub(r"\s#.*| \| .*", "", re.sub(r"\$\(.*?\)", "X", line))
        words = shlex.split(alone)
        yield [word for word in words if word != "--help" and not word.startswith("--flagfile")]


def _parse(words):
    """Parses a command line of cnnbench; UsageError if a flag or a value is wrong."""
    command, *own = words if words[:1] and words[0] in COMMANDS else ("run", *words)
    own, of_runs = split_at_double_dash(own)
    specs = [*specs_of(RepeatFlags), *FLAGS]
    if command != "run":
        module = import_module(f"cnnbench.cli.commands.{command}")
        takes_run_flags = command == "allreduce" or getattr(module, "TAKES_RUN_FLAGS", False)
        specs = [*FLAGS] if takes_run_flags else []
        specs += [spec for _, section in module.HELP[1] for spec in section]
    parse_command(own, specs)
    if of_runs:
        _parse(of_runs)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_are_valid(page):
    for words in _command_lines(page):
        _parse(words)


def test_the_readme_and_the_pages_about_commands_have_examples():
    for name, least in (("README.md", 6), ("docs/run.md", 10), ("docs/commands.md", 20)):
        assert len([*_command_lines(ROOT / name)]) >= least, name


def test_the_runs_of_the_first_pages_have_a_plan():
    for words in (*_command_lines(ROOT / "README.md"), *_command_lines(ROOT / "docs" / "run.md")):
        if words and words[0].startswith("-"):
            parse_run(words)


def _flags_of_other_programs():
    text = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
    section = text.partition("## Flags of other programs\n")[2].partition("\n## ")[0]
    ours = [line.strip("| ").split(" | ")[-1] for line in section.splitlines() if "|" in line]
    return [word for cell in ours for word in re.findall("`(--[^`]+)`", cell)]


def test_flags_that_replace_those_of_other_programs_have_an_effect(capsys, tmp_path):
    for line in dict.fromkeys(_flags_of_other_programs()):
        words = line.replace("DIR", str(tmp_path)).split()
        assert main(["--only_check_args", *words]) == ExitCode.OK, line
        said = capsys.readouterr().err.splitlines()
        assert [one for one in said if "without --data_dir" not in one] == [], line


def test_text_is_wrapped():
    """Tables, examples and single long words, such as links, may be wider."""
    wide = []
    for page in PAGES:
        text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        prose = [line for line in text.splitlines() if line[:1] not in "|><" and line[:4] != "    "]
        long = [line for line in prose if len(line) > 120 and " " in line.strip("-* ")[:60]]
        wide += [(page.name, line) for line in long]
    assert wide == []


@cache
def _anchors(document):
    """Anchors of a page: GitHub's of its headings, and explicit ones, which keep moved headings."""
    headings = [line.lstrip("# ") for line in _lines(document) if line.startswith("#")]
    explicit = re.findall(r'<a id="([^"]+)"></a>', document.read_text(encoding="utf-8"))
    slugs = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
    return slugs.union(explicit)


def test_links_into_documents_lead_to_headings():
    links = re.compile(r"\]\(([\w./-]*\.md)?#([^)\s]+)\)")
    broken = [
        f"{document.name}: {path}#{anchor}"
        for document in DOCUMENTS
        for path, anchor in links.findall(document.read_text(encoding="utf-8"))
        if anchor not in _anchors(document.parent / path if path else document)
    ]
    assert broken == []


def test_messages_of_troubleshooting_are_those_of_the_program():
    """Each piece of a message, between the dots that stand for names and numbers."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(messages) >= 20
    sources = [path.read_text(encoding="utf-8").lower() for path in SOURCES]
    pieces = {piece.strip(" :;?()") for one in messages for piece in one.lower().split("...")}
    assert [
        piece for piece in sorted(pieces - {""}) if not any(piece in source for source in sources)
    ] == []


SOURCES = [
    path for top in ("cnnbench", "models", "variable_mgr") for path in (ROOT / top).rglob("*.py")
]


def _texts(source):
    """The texts of a source file, without docstrings."""
    nodes = [*ast.walk(ast.parse(source.read_text(encoding="utf-8")))]
    documentation = {node.value for node in nodes if isinstance(node, ast.Expr)}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and node not in documentation]
    return [node.value for node in texts if isinstance(node.value, str)]


def test_help_and_messages_name_pages_that_an_installation_has():
    named = set()
    for source in SOURCES:
        # Without the command itself, and files in which neither occurs.
        if source.name != "docs.py" and "docs" in source.read_text(encoding="utf-8"):
            for text in _texts(source):
                assert not re.search(r"\bdocs/\w+\.md", text), source
                named |= set(re.findall(r"cnnbench\s+docs\s+(\w+)", text))
    assert len(named) > 15
    assert named <= {page.stem for page in (ROOT / "docs").glob("*.md")}


def _exit_code_tables(document):
    """The codes of each table whose first column is `exit code`."""
    text = document.read_text(encoding="utf-8")
    tables = re.findall(r"^\| exit code \|.*\n\|[-:| ]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[int(code) for code in re.findall(r"^\| (\d+) \|", rows, re.M)] for rows in tables]


def test_the_page_of_commands_has_every_exit_code_once():
    assert _exit_code_tables(ROOT / "docs" / "commands.md") == [[code.value for code in ExitCode]]


def test_documents_name_only_exit_codes_that_exist():
    """In tables, lists and sentences; a table has a code once, in ascending order."""
    existing = {code.value for code in ExitCode}
    for page in PAGES:
        text = " ".join(page.read_text(encoding="utf-8").split())
        named = re.findall(r"[Ee]xit codes?:? (?:is |of )?(\d+)\b", text)
        assert {int(code) for code in named} <= existing, page.name
        for codes in _exit_code_tables(page):
            assert codes == sorted(set(codes)), page.name
            assert set(codes) <= existing, page.name


def _rows(page, heading):
    """The cells of each row of the first table below a heading, without the table's header."""
    text = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line[:2] == "| "][1:]


def test_the_architecture_names_classes_and_files_that_exist():
    page = ROOT / "docs" / "architecture.md"
    classes = [
        (name, path.parts)
        for path in SOURCES
        for name in re.findall(r"^class (\w+)[(:]", path.read_text(encoding="utf-8"), re.M)
    ]
    for name, package, _ in _rows(page, "Central types"):
        declaring = [parts for one, parts in classes if one == name.strip("`")]
        assert any(package in parts for parts in declaring), (name, package)
    behaviours = _rows(page, "Where to find behaviour")
    assert len(behaviours) >= 20
    assert [file for _, file in behaviours if not (ROOT / file.strip("`")).is_file()] == []
    packages = {name for row in _rows(page, "Packages") for name in PATH.findall(row[1])}
    wings = {f"cnnbench/{path.parent.name}/" for path in (ROOT / "cnnbench").glob("*/__init__.py")}
    assert packages == {*wings, "models/", "variable_mgr/"}


def test_the_values_of_the_dictionary_that_run_returned_are_in_a_record():
    text = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
    table = text.partition("| key | value of the record |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)`[^|]*\| `([^`]+)`", table, re.MULTILINE)
    record = record_from_json(parse_json((ROOT / "tests/frozen/runs/evaluation.json").read_bytes()))
    found = {key: eval(code, {"record": record, "len": len}) for key, code in rows}
    assert [*found] == [
        *("num_workers", "num_steps", "average_wall_time", "images_per_sec"),
        *("last_average_loss", "top_1_accuracy"),
    ]
    seconds = found["num_steps"] * found["average_wall_time"]
    assert seconds == pytest.approx(record.measured.loop_seconds)


def test_the_glossary_is_short_and_sorted():
    terms = [row[0] for row in _rows(ROOT / "docs" / "architecture.md", "Glossary")]
    assert terms == sorted(set(terms))
    assert 15 <= len(terms) <= 25


def test_the_site_has_the_kinds_that_the_pages_say():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = {kind: pages for section in site["nav"] for kind, pages in section.items()}
    kinds = {kind: set() for kind in KINDS}
    for page in (ROOT / "docs").glob("*.md"):
        (kind,) = re.findall(r"\A(?:<a .*\n\n)?# .+\n\n\*([\w ]+)\.\*", page.read_text("utf-8"))
        kinds[kind].add(page.name)
    assert {kind: set(named[kind]) for kind in KINDS} == kinds
