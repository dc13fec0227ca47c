"""Files that commands write: they replace any file but an input, and are refused before the work.

Tests cnnbench/cli/commands/__init__.py.
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil

import pytest
from covering import slow_if

from cnnbench.cli.overview import COMMANDS


@pytest.fixture
def sides(save, tmp_path):
    """Folders of records."""
    return [save(tmp_path / name) for name in ("base", "new")]


@pytest.mark.parametrize(
    ("command", "flag", "forms"),
    slow_if(
        lambda case: case[0] == "compare" or case[1] == "plot",
        [
            ("report", "output", ()),
            ("report --table=runs", "output", ("csv",)),
            ("compare", "output", ()),
            ("history", "output", ()),
            ("history", "plot", (".html", ".md", ".svg", ".png", ".pdf")),
        ],
    ),
)
def test_any_file_is_replaced(command, flag, forms, sides, tmp_path, call):
    if not forms:
        text = " ".join(call(command, "--help").out.split())
        forms = re.search(r"--format=TEXT .*?; one of (.*?)\)", text)[1].split(", ")
    for form in forms:
        suffix = form if form.startswith(".") else ""
        output = tmp_path / f"out{suffix}"
        words = [*command.split(), *(sides if command == "compare" else sides[:1])]
        words += [f"--{flag}={output}", *([] if suffix else [f"--format={form}"])]
        output.write_text("import this\n")
        call(*words)
        content = output.read_bytes()
        assert len(content) > 100
        call(*words)
        assert output.read_bytes()[:20] == content[:20] != b"import this\n"


INPUTS = {
    "record": ("compare {base} {new} --output={base}/base0.json", "output"),
    "pattern": ("report {base}/*.json --format=csv --output={base}/base0.json", "output"),
    "baseline": (
        "report {new} --baseline={base} --output={base}/base0.json --format=csv",
        "output",
    ),
    "profile": ("explain {profiles} {profiles} --output={profiles}/a.profile", "output"),
    "rules": ("compare {base} {new} --rules={file} --output={file}", "output"),
    "plug-in": ("history {base} --plugin={plugin} --format=csv --output={plugin}", "output"),
    "plug-in of a run": ("--model=trivial --plugin={plugin} --result_json={plugin}", "result_json"),
    "flag file": ("compare {base} {new} --flagfile={file} --output={file}", "output"),
    "flag file of a run": ("--flagfile={file} --result_json {file}", "result_json"),
    "flag file of a search": ("tune --flagfile={file} --write_flagfile={file}", "write_flagfile"),
    "plug-in of reductions": (
        "allreduce --device=cpu --num_gpus=2 --plugin={plugin} --result_json={plugin}",
        "result_json",
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_no_input_is_replaced(name, sides, tmp_path, call):
    file, plugin = tmp_path / "file", tmp_path / "plugin.py"
    file.write_text("")
    plugin.write_text("INITIALISES_ONLY = True\n")
    words, flag = INPUTS[name]
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "a.profile").write_text("{}")
    places = {"base": sides[0], "new": sides[1], "file": file, "plugin": plugin}
    places["profiles"] = tmp_path / "profiles"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    out, err = call(*words.format(**places).split(), code=2)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"cnnbench: error: --{flag}={tmp_path}")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_ending_of_a_file_names_its_format(sides, tmp_path, call):
    begins = {"html": "<!DOCTYPE html>", "md": "### cnnbench", "json": "{", "xml": "<?xml"}
    for ending, begin in begins.items():
        file = tmp_path / f"x.{ending}"
        call("compare", *sides, f"--output={file}")
        assert file.read_text().startswith(begin), ending
    page = (tmp_path / "x.html").read_text()
    assert "Against the baseline" in page
    repeated = shlex.join(("cnnbench", "compare", *map(str, sides), f"--output={tmp_path}/x.html"))
    assert f">{repeated}</code>" in page
    call("compare", *sides, "--format=json", f"--output={tmp_path / 'y.html'}")
    assert (tmp_path / "y.html").read_text().startswith("{")
    call("report", sides[0], f"--output={tmp_path / 'z.md'}")
    assert (tmp_path / "z.md").read_text().startswith("# Speed of")
    call("history", sides[0], "--format=table", f"--output={tmp_path / 'y.csv'}")
    assert (tmp_path / "y.csv").read_text().startswith("throughput, ")


@pytest.mark.parametrize(
    ("command", "file", "formats", "hint"),
    [
        ("history", "z.html", "table, csv, json", "; --plot=FILE writes pages"),
        ("history", "z.md", "table, csv, json", "; --plot=FILE writes pages"),
        ("history", "z.xml", "table, csv, json", ""),
        ("compare", "z.csv", "table, markdown, json, junit, github, html", ""),
        ("report", "z.json", "html, markdown, csv", ""),
        ("report", "z.png", "html, markdown, csv", ""),
        ("compare", "z.svg", "table, markdown, json, junit, github, html", ""),
    ],
)
def test_the_ending_of_a_format_that_a_command_lacks_is_refused(
    command, file, formats, hint, sides, tmp_path, call
):
    words = sides if command == "compare" else sides[:1]
    err = call(command, *words, f"--output={tmp_path / file}", code=2).err
    assert f"{file}: the formats are {formats}" in err
    assert err.endswith(f"{hint}\n")
    assert not (tmp_path / file).exists()


NEEDED = {
    "ab": ["--", "--model=trivial"],
    "compare": ["base", "new"],
    "explain": [],
    "history": ["base"],
    "report": ["base"],
    "tune": ["--model=trivial"],
}
"""Further words of the commands that have --format and --output; gate passes them to ab."""

ENDINGS = {"html": ".html", "markdown": ".md", "json": ".json", "csv": ".csv", "junit": ".xml"}


def formats_of_commands():
    for command in (name for name in COMMANDS if name != "run"):
        sections = importlib.import_module(f"cnnbench.cli.commands.{command}").HELP[1]
        flags = {spec.name: spec for _, specs in sections for spec in specs}
        if {"format", "output"} <= flags.keys():
            yield command, {*flags["format"].choices}


def test_every_command_refuses_the_endings_of_formats_that_it_lacks(tmp_path, call):
    found = dict(formats_of_commands())
    assert found.keys() == {*NEEDED, "gate"}
    for command, words in NEEDED.items():
        for format in ENDINGS.keys() - found[command]:
            file = tmp_path / f"x{ENDINGS[format]}"
            err = call(command, f"--output={file}", *words, code=2).err
            assert f"--output={file}: the formats are " in err, command


@pytest.mark.parametrize(
    ("command", "work"),
    [("compare", "compare_records"), ("history", "all_series"), ("report", "gather")],
)
def test_a_file_that_is_lost_takes_nothing_else_along(
    command, work, sides, tmp_path, call, monkeypatch
):
    """Its folder is gone when the work is done."""
    module = importlib.import_module(f"cnnbench.cli.commands.{command}")
    done = getattr(module, work)
    (tmp_path / "lost").mkdir()

    def losing(*arguments, **options):
        shutil.rmtree(tmp_path / "lost", ignore_errors=True)
        return done(*arguments, **options)

    monkeypatch.setattr(module, work, losing)
    lost, plot = tmp_path / "lost" / "out", tmp_path / "plot.svg"
    words = [*(sides if command == "compare" else sides[:1]), f"--output={lost}"]
    words += [f"--plot={plot}"] if command == "history" else []
    out, err = call(command, *words, code=4)
    assert err == f"cnnbench: error: --output={lost}: there is no folder {lost.parent}\n"
    assert plot.exists() == (command == "history")
    assert "= same" in out if command == "compare" else out == ""


@pytest.mark.parametrize("command", ["compare", "history", "report"])
def test_faulty_files_are_named_and_make_the_answer_incomplete(command, sides, tmp_path, call):
    faulty = tmp_path / "new" / "9.json"
    faulty.write_text('{"schema": 1, "run_id"')
    arguments = sides if command == "compare" else [sides[1]]
    shown = ["--format=markdown"] if command == "report" else []
    out, err = call(command, *arguments, *shown, code=3)
    warning = f"cnnbench: warning: skipped {faulty}: cut off after 22 characters"
    assert err == f"{warning} (--quiet_conditions=skipped silences this)\n"
    assert call(command, *arguments, *shown, "--quiet_conditions=skipped", code=3).err == ""
    assert ("lenet" if command == "history" else "9.json") in out
    faulty.write_text('{"schema": 1, "kind": "comparison"}')  # not meant to be a record
    call(command, *arguments, *shown)


@pytest.mark.parametrize(
    "flag",
    ["result_json", "result_csv", "graph_file", "profile_json", "trace_file", "export_dir"],
)
def test_a_run_refuses_a_link_to_itself_and_a_folder_with_files(flag, tmp_path, call):
    loop, folder = tmp_path / "loop", tmp_path / "folder"
    loop.symlink_to(loop)
    folder.mkdir()
    (folder / "mine").write_text("import this\n")
    for path, reason in (
        (loop, "is a symbolic link that leads back to itself"),
        (
            folder,
            "contains files, but no saved_model.pb" if flag == "export_dir" else "is a folder",
        ),
    ):
        out, err = call("--model=trivial", "--device=cpu", f"--{flag}={path}", code=2)
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"cnnbench: error: --{flag}={path}: {reason}")
    assert (folder / "mine").read_text() == "import this\n"


def test_a_run_appends_to_no_other_table_and_exports_to_no_file(tmp_path, call):
    mine = tmp_path / "mine"
    mine.write_text("import this\n")
    for flag, reason in (("result_csv", "its column 1 differs"), ("export_dir", "is not a folder")):
        out, err = call("--model=trivial", "--device=cpu", f"--{flag}={mine}", code=2)
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"cnnbench: error: --{flag}={mine}: {reason}")
    assert mine.read_text() == "import this\n"


def test_relative_files_in_a_folder_that_is_gone(tmp_path, monkeypatch, call):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for command in (["--model=trivial"], ["allreduce", "--device=cpu", "--num_gpus=2"]):
        err = call(*command, "--result_json=r.json", code=2).err
        assert err.startswith("cnnbench: error: --result_json=r.json: cannot")


@pytest.mark.parametrize(
    "argv",
    [["history", "{}"], ["ab", "--a_checkout={}", "--", "--model=lenet"], ["report", "{}"]],
)
def test_names_longer_than_any_path_are_one_line(argv, call):
    words = [word.format("x" * 5000) for word in argv]
    assert call(*words, code=2).err.count("\n") == 1
