"""`cnnbench report`: what it writes, where, and how it ends."""

import csv
import html
import json
import re
import shlex
import sys

import pytest

from cnnbench.cli.commands import report
from cnnbench.records.run import Conditions
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
    assert "🔴 slower" in call("report", records, f"--baseline={base}", "--format=markdown").out
    out = call("report", records, f"--baseline={base}", "--format=csv", "--table=comparison").out
    assert ",slower," in out
    many = ["--format=markdown", f"--baseline={base}", "--threshold=30"]
    assert "🔴 slower" not in call("report", records, *many).out


def test_the_command_that_compares_again_comes_to_the_same_verdict(call, save, records, tmp_path):
    base = save(tmp_path / "base", 1.2)
    words = ["report", records, f"--baseline={base}", "--threshold=30", "--format=markdown"]
    page = html.unescape(call(*words).out)
    (command,) = re.findall(r"Repeat: <code>cnnbench (.*)</code>", page)
    assert shlex.split(command) == ["compare", base, records, "--threshold=30.0"]
    answer, *_ = call(*shlex.split(command), code=None).out.splitlines()
    assert answer.rstrip(".") in page
    # Two folders are no argument of compare.
    both = ["report", records, save(tmp_path / "other"), f"--baseline={base}", "--format=markdown"]
    assert "Repeat: " not in call(*both).out


def test_fail_on_makes_a_report_a_gate(call, save, records, over_commits, tmp_path):
    against = ["report", records, f"--baseline={save(tmp_path / 'base', 1.2)}", "--format=csv"]
    for words, code in {"slower": 1, "faster": 0, "changed,step": 0, "never": 0}.items():
        call(*against, f"--fail_on={words}", code=code)
    assert "needs --baseline" in call("report", records, "--fail_on=slower", code=2).err
    call("report", over_commits, "--format=csv", "--fail_on=step", code=1)
    call("report", over_commits, "--format=csv", "--fail_on=never")


def test_what_may_differ_is_not_held_against_the_baseline(call, save, records, tmp_path):
    baseline = f"--baseline={save(tmp_path / 'base', 1.2, flags={'xla': True})}"
    assert "not comparable" in call("report", records, baseline, "--format=markdown").out
    out = call("report", records, baseline, "--format=markdown", "--allow_different=xla,cpu_*").out
    assert "🔴 slower" in out


def odd_steps(document):
    document["step_seconds"][1] = 1e308


def odd_names(document):
    document["config"]["model"] = document["environment"]["hostname"] = "odd \udce9"
    document["command"][-1] = "--data_dir=\udce9"


@pytest.mark.parametrize(
    ("change", "left_out", "ending"), [(odd_steps, True, "md"), (odd_names, False, "html")]
)
def test_an_odd_record_stops_nothing(call, records, tmp_path, change, left_out, ending):
    names = ("new/9.json", f"page.{ending}", f"graph.{ending}")
    path, page, graph = (tmp_path / name for name in names)
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
    assert "files, and a report covers at most 3; cnnbench history follows them" in found.err
    assert not output.exists()
    call("report", records, "--format=csv")


REVISIONS = [digit * 40 for digit in "2a65b0f3d7"]
"""In the order in which they were measured, which is not that of their digits."""


@pytest.fixture
def over_commits(lenet_runs, saved, tmp_path):
    """Two configurations over ten commits of a repository; from the eighth on both are slower."""
    run = lenet_runs()
    records = [
        run(
            (100.0 if place < 7 else 77.0) * batch / 8,
            flags={"batch_size": batch},
            subject=Subject(repository="nets", revision=revision),
            conditions=Conditions(before={}, during={}, notes=()),
        )
        for place, revision in enumerate(REVISIONS)
        for batch in (8, 16)
    ]
    return saved(tmp_path / "commits", records)


def _rows(markdown, section):
    """Names in the first column of the first table of a section."""
    (_, text) = markdown.split(f"## {section}\n")
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    names = [line.split("|")[1].strip() for line in lines[2:]]
    return names[: names.index("configuration")] if "configuration" in names else names


def test_records_of_several_commits_are_judged_as_a_history(call, over_commits):
    text = call("report", over_commits, "--format=markdown").out
    head = text.partition("\n## ")[0]
    assert "Not compared" not in text
    answers = [line for line in head.splitlines() if line.lstrip().startswith("- ")]
    assert answers[:4] == [
        "- 🔴 Steps: 1 regression has not been undone",
        f"  - worse in both series at {'3' * 12}: -23.0 %; last good {'f' * 12}",
        "- 🟢 Conditions: Nothing disturbed the measurements",
        "- measured: 2 configurations, 10 commits, 20 processes",
    ]
    order = [f"lenet, batch 8, 1 cpu, {revision[:12]}" for revision in REVISIONS]
    assert _rows(text, "Throughput")[:10] == order
    reached = [name.rpartition(" ")[2] for name in _rows(text, "What the machine reaches")]
    assert reached == [revision[:12] for revision in REVISIONS]
    rows = csv.DictReader(call("report", over_commits, "--format=csv").out.splitlines())
    assert [row["revision"] for row in rows] == REVISIONS * 2


def test_commits_lead_to_the_address_that_is_given(call, over_commits):
    address = "https://example.org/c/{commit}?a=1"
    text = call("report", over_commits, "--format=markdown", f"--commit_url={address}").out
    found = set(re.findall(r"\]\((https:[^)]*)\)", text))
    assert found == {address.replace("{commit}", digit * 40) for digit in "f3"}


def test_a_few_commits_are_not_compared(call, over_commits):
    for file in sorted(over_commits.iterdir())[4:]:
        file.unlink()
    text = call("report", over_commits, "--format=markdown").out
    assert "- Speed of 4 configurations: " in text
    assert "Too few points for steps" in text
    assert "2 commits, 4 processes" in text


def test_a_report_has_the_order_of_a_repository(call, lenet_runs, saved, tmp_path, nets):
    repository, made = nets
    names = ["m8", "m1", "squash", "m4", "m2", "n1", "m7"]
    run = lenet_runs()
    records = [run(100.0, flags={"result_label": f"commit={made[name]}"}) for name in names]
    folder = saved(tmp_path / "records", records)
    text = call("report", folder, f"--git={repository}", "--format=markdown").out
    in_order = ["m1", "m2", "m4", "n1", "squash", "m7", "m8"]
    assert [name.rpartition(" ")[2] for name in _rows(text, "Throughput")] == [
        made[name][:12] for name in in_order
    ]
    assert "--git=" in call("report", folder, f"--git={tmp_path}/gone", code=2).err


def test_all_reduces_over_commits_are_judged(call, make_reductions, saved, tmp_path):
    reductions = make_reductions()
    records = [
        reductions(
            reductions.point(2.0 if place < 6 else 1.0, devices=2),
            subject=Subject(repository="nets", revision=revision),
        )
        for place, revision in enumerate(REVISIONS)
    ]
    text = call("report", saved(tmp_path / "reduced", records), "--format=markdown").out
    assert "- 🔴 Steps: 1 regression has not been undone" in text
    assert "## Over commits: bus_bandwidth" in text
