"""`cnnbench report`: what it writes, where, and how it ends."""

import csv
import json
import sys

import pytest

from cnnbench.cli.commands import report
from cnnbench.records.subject import Subject


@pytest.fixture
def records(save, tmp_path):
    return save(tmp_path / "new")


def test_writes_a_page(call, records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("report", records).out == "wrote report.html\n"
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    call("report", records, f"--output={tmp_path}/my.html", "--title=Nightly <1>")
    assert "<title>Nightly &lt;1&gt;</title>" in (tmp_path / "my.html").read_text()


def test_other_formats_go_to_stdout_unless_told_otherwise(call, records, tmp_path):
    assert "| configuration |" in call("report", records, "--format=markdown").out
    assert call("report", records, "--format=csv", "--table=runs").out.count("\n") == 6
    call("report", records, "--format=csv", "-o", tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().count("\n") == 2


@pytest.mark.parametrize("table", ["configurations", "runs", "comparison"])
def test_cells_of_csv_files_have_one_form(call, save, tmp_path, table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # not imported for it
    subject = Subject(repository="r", revision="a" * 40, dirty=True)
    folder = save(tmp_path / "new", subject=subject, flags={"xla": False})
    file = tmp_path / "t.csv"
    words = ("report", folder, f"--baseline={folder}", "--format=csv", f"--table={table}")
    text = call(*words).out
    cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
    assert not {"True", "False", "None", "nan"} & set(cells)
    assert table == "comparison" or "true" in cells
    # Another program may have saved it with all cells in quotes.
    with file.open("w", newline="") as saved:
        csv.writer(saved, quoting=csv.QUOTE_ALL).writerows(csv.reader(text.splitlines()))
    call(*words, f"--output={file}")
    assert file.read_text() == text


def test_a_regression_is_shown_and_is_no_failure(call, save, records, tmp_path):
    base = save(tmp_path / "base", 1.2)
    assert "- slower" in call("report", records, f"--baseline={base}", "--format=markdown").out
    out = call("report", records, f"--baseline={base}", "--format=csv", "--table=comparison").out
    assert ",slower," in out
    many = ["--format=markdown", f"--baseline={base}", "--threshold=30"]
    assert "- slower" not in call("report", records, *many).out


def test_what_may_differ_is_not_held_against_the_baseline(call, save, records, tmp_path):
    baseline = f"--baseline={save(tmp_path / 'base', 1.2, flags={'xla': True})}"
    assert "x not comparable" in call("report", records, baseline, "--format=markdown").out
    out = call("report", records, baseline, "--format=markdown", "--allow_different=xla,cpu_*").out
    assert "- slower" in out


def odd_steps(document):
    document["step_seconds"][1] = 1e308


def odd_names(document):
    document["config"]["model"] = document["environment"]["hostname"] = "odd \udce9"
    document["command"][-1] = "--data_dir=\udce9"


@pytest.mark.parametrize(("change", "left_out"), [(odd_steps, True), (odd_names, False)])
def test_an_odd_record_stops_nothing(call, records, tmp_path, change, left_out):
    path, page, graph = (tmp_path / name for name in ("new/9.json", "page.html", "graph.html"))
    document = json.loads((tmp_path / "new" / "new0.json").read_text())
    change(document)
    path.write_text(json.dumps({**document, "run_id": "odd"}))
    code = 3 if left_out else 0
    for arguments in (
        ("report", records, f"--output={page}"),
        ("report", records, "--format=csv"),
        ("history", records, "--format=openmetrics", f"--plot={graph}"),
    ):
        err = call(*arguments, code=code).err
        assert (f"skipped {path}: not a run record: step_seconds[1]: 1e+308" in err) == left_out
    assert "lenet" in page.read_text()
    assert "lenet" in graph.read_text()
    assert ("9.json" in page.read_text()) == left_out


def test_more_files_than_a_page_can_be_about(call, records, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_MOST_FILES", 3)
    output = tmp_path / "x.html"
    found = call("report", records, f"--output={output}", code=2)
    assert "files, and a report is about at most 3; cnnbench history follows them" in found.err
    assert not output.exists()
    call("report", records, "--format=csv")
