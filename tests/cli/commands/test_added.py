"""What is added is written in one place: a command is one module, whatever it writes; a format is
one file; and a result is one function, which knows no format.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cnnbench.base import plugins
from cnnbench.base.document import Items, Report, Section, make_table, numeric_cell
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.document.formats import FORMATS, render_report
from cnnbench.base.document.markdown import sections_to_comment
from cnnbench.cli import commands, documents
from cnnbench.cli.commands.completion import complete_last_word
from cnnbench.cli.overview import COMMANDS, find_commands
from cnnbench.records.codec import DOCUMENTS
from cnnbench.records.load import load_records

TOP = '''"""``cnnbench top``: list the fastest runs."""

from dataclasses import dataclass
from typing import ClassVar

from cnnbench.base.tables import dataclasses_to_csv
from cnnbench.cli.commands import choose_format, declare_output_flag, write_or_print_output
from cnnbench.errors import ExitCode
from cnnbench.flags import flag, parse_flags
from cnnbench.flags.declare import specs_of
from cnnbench.records.codec import Document, json_document
from cnnbench.records.files import OutputFile, check_outputs


@json_document("cnnbench top --format=json")
@dataclass(frozen=True)
class TopDocument(Document):
    """The fastest run."""

    kind: ClassVar[str] = "top"
    schema: ClassVar[int] = 1

    fastest: str
    speed: float


@dataclass(frozen=True, kw_only=True)
class TopFlags:
    """Flags of the command."""

    format: str = flag("table", "What to print.", choices=("table", "csv", "json"))
    output: str | None = declare_output_flag("Write the output to this file.")


SPECS = specs_of(TopFlags)
HELP = ("Usage: cnnbench top [FLAGS]", [("Flags", SPECS)])


def main(argv):
    options = TopFlags(**choose_format(parse_flags(argv, SPECS), SPECS))
    check_outputs([OutputFile("output", options.output)])
    document = TopDocument("a", 2.0)
    texts = {
        "table": lambda: "fastest: a",
        "csv": lambda: dataclasses_to_csv(TopDocument, [document]),
        "json": document.to_json,
    }
    write_or_print_output(options.output, texts[options.format]())
    return ExitCode.OK
'''


@pytest.fixture
def add(tmp_path, monkeypatch):
    """add(): adds a command."""
    folder = tmp_path / "commands"
    folder.mkdir()

    def add():
        (folder / "top.py").write_text(TOP)
        monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(folder)])
        monkeypatch.setitem(COMMANDS, "top", find_commands([str(folder)])["top"])

    yield add
    sys.modules.pop("cnnbench.cli.commands.top", None)
    vars(commands).pop("top", None)
    DOCUMENTS.pop("top", None)


def test_the_docstring_of_a_module_makes_it_a_command(add, call):
    add()
    assert "\n  top         list the fastest runs\n" in call("help").out
    assert call("top", "--help").out.startswith("Usage: cnnbench top [FLAGS]\n")
    assert list(complete_last_word(["to"])) == [("top", "list the fastest runs")]
    assert "did you mean top?" in call("topp", code=2).err


def test_every_module_of_a_command_is_found():
    folder = Path(commands.__file__).parent
    modules = [path for path in folder.glob("*.py") if "\ndef main(" in path.read_text()]
    hint = "the first line of a command's module is: ``cnnbench NAME``: and a line of help"
    assert {path.stem for path in modules} == {*find_commands([str(folder)])}, hint
    first, *others = COMMANDS
    assert [first, *others] == ["run", *sorted(others)]


@pytest.mark.parametrize(
    ("format", "file", "begins"),
    [
        ("table", "top", "fastest: a"),
        ("csv", "top.csv", "fastest,speed\na,2.0\n"),
        ("json", "top.json", '{\n"schema": 1,\n"kind": "top",\n"fastest": "a",\n"speed": 2.0'),
    ],
)
def test_each_format_replaces_a_file(add, call, tmp_path, format, file, begins):
    add()
    path = tmp_path / file
    path.write_text("import this\n")
    call("top", "-o", path)
    assert path.read_text().startswith(begins)
    call("top", f"--format={format}", "-o", path)
    assert path.read_text().startswith(begins)


def test_a_command_that_draws_nothing_has_no_flag_for_a_plot(add, call, tmp_path):
    add()
    plot = tmp_path / "top.svg"
    assert "--plot" not in call("top", "--help").out
    out, err = call("top", f"--plot={plot}", code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert "--plot" in err
    assert not plot.exists()


def test_its_document_has_a_schema_and_is_no_defective_record(add, call, tmp_path):
    add()
    call("top", "-o", tmp_path / "top.json")
    schema = json.loads(documents.schema_files()["top.schema.json"])
    assert schema["title"] == "cnnbench top --format=json"
    assert schema["required"] == ["schema", "kind", "fastest", "speed"]
    (skipped,) = load_records([tmp_path / "top.json"]).skipped
    assert not skipped.defect


MEDIANS = '''"""Writes the medians of the speed."""

from cnnbench.records.exports import register_export


@register_export("medians")
def medians(metrics):
    speeds = [one for one in metrics if one.metric.name == "throughput"]
    lines = ["medians", *(f"{one.role or one.point} {one.value:.6g}" for one in speeds)]
    return "\\n".join(lines) + "\\n", ""
'''


def test_a_format_is_one_file(call, save, tmp_path):
    path = tmp_path / "medians.py"
    path.write_text(MEDIANS)
    compare = ("compare", save(tmp_path / "base"), save(tmp_path / "new", 0.9))
    history = ("history", tmp_path / "base")
    for words in (compare, history):
        assert "--format=medians" in call(*words, "--format=medians", code=2).err
    own = ("--format=medians", f"--plugin={path}")
    assert call(*compare, *own, code=1).out.split() == ["medians", "base", "100", "new", "90"]
    assert call(*history, *own).out.startswith("medians\n")
    plugins.forget_plugin(path.resolve())
    for words in (compare, history):
        assert "--format=medians" in call(*words, "--format=medians", code=2).err


def fastest(speeds):
    """A result as sections: the fastest of some networks."""
    name = max(speeds, key=speeds.get)
    rows = ({"network": one, "images/sec": numeric_cell(speed)} for one, speed in speeds.items())
    contents = (f"{name} is the fastest", make_table(rows), Items(texts=("one process each",)))
    return [Section.of(contents, "fastest", "Fastest")]


def test_a_result_is_one_function(monkeypatch):
    monkeypatch.setitem(FORMATS, "lines", lambda report: sections_to_text(report.sections))
    sections = fastest({"lenet": 123.4, "vgg16": 5.678})
    report = Report(title="networks", subtitle="", sections=tuple(sections))
    outputs = {
        "terminal": sections_to_text(sections),
        "comment": sections_to_comment(sections, "networks"),
        **{format: render_report(report, format) for format in FORMATS},
    }
    assert outputs["lines"] == outputs["terminal"]
    monkeypatch.undo()
    with pytest.raises(KeyError):
        render_report(report, "lines")
    for medium, text in outputs.items():
        for words in ("lenet is the fastest", "images/sec", "123.4", "5.678", "one process each"):
            assert words in text, medium
