"""`cnnbench import`: logs become records that history and compare show."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil

import pytest
from imports import GOLDEN, TRAINING, edited

from cnnbench.records.files import ensure_writable
from cnnbench.records.load import load_records


def into(folder):
    return f"--results={folder}"


@pytest.fixture
def imported(call, tmp_path):
    """imported(text, code=0): records of one log, and what import said on stderr."""

    def imported(text, *words, code=0):
        (tmp_path / "run.log").write_text(text)
        results = tmp_path / "results"
        err = call("import", tmp_path / "run.log", *words, into(results), code=code).err
        return load_records([results]).records, err

    return imported


def test_lines_that_do_not_fit_are_named_and_refused(imported, call, tmp_path, transcript):
    # A fork's own line, and what the ancestor prints of a job that was finished before.
    text = edited(
        TRAINING, {"706.17": "-734214.37", "Done warm up\n": "Done warm up\nGPU at 80 C\n"}
    )
    (record,), err = imported(text, code=3)
    transcript("left out", err)
    assert record.imported.skipped_lines == (20, 26)
    assert record.status == "interrupted"
    err = call("import", tmp_path / "run.log", "--strict", into(tmp_path / "none"), code=2).err
    transcript("strict", err)
    assert not (tmp_path / "none").exists()


LIBRARIES = """\
2026-11-29 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:182] optimized
To enable the following instructions: AVX2 FMA, rebuild TensorFlow.
WARNING:tensorflow:
The TensorFlow contrib module will not be included in TensorFlow 2.0.
For more information, please see:
"""


def test_lines_of_libraries_are_ignored_if_the_run_is_complete(
    imported, call, tmp_path, transcript
):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.log").write_text(LIBRARIES + TRAINING.replace("706", "707"))
    records, err = imported(LIBRARIES + TRAINING, tmp_path / "more")
    assert [one.imported.skipped_lines for one in records] == [(), ()]
    # One notice for all files.
    transcript("complete", "\n".join(line for line in err.splitlines() if "To enable" in line))
    # They may say why a run has no end.
    (tmp_path / "killed.log").write_text(LIBRARIES + TRAINING.partition("20\timages")[0])
    err = call("import", tmp_path / "killed.log", into(tmp_path / "killed"), code=3).err
    assert "killed.log: line 2: 'To enable" in err
    text = edited(TRAINING, {"Done warm up": "GPU at 80 C\nDone warm up"})
    (tmp_path / "run.log").write_text(text)
    err = call("import", tmp_path / "run.log", "--strict", into(tmp_path / "none"), code=2).err
    assert "run.log: line 19: 'GPU at 80 C' " in err


def test_a_report_of_imported_runs_has_only_tables_with_content(imported, call, tmp_path):
    imported(edited(TRAINING, {"trivial": "lenet5"}))
    call("report", tmp_path / "results", f"--output={tmp_path}/r.md", "--format=markdown")
    text = (tmp_path / "r.md").read_text()
    assert "# Speed of lenet\n" in text
    assert "None" not in text
    assert "| lenet, batch 8, 1 cpu, from tf_cnn_benchmarks | unknown | 706.2 | 1 |" in text
    assert "How to reproduce it" not in text
    assert "| configuration |\n" not in text


def test_importing_twice_changes_nothing(imported, call, tmp_path, transcript):
    imported(TRAINING)
    (file,) = (tmp_path / "results").rglob("*.json")
    before = file.read_bytes(), os.stat(file)
    os.utime(tmp_path / "run.log", (1, 1))
    err = call("import", tmp_path / "run.log", into(tmp_path / "results")).err
    transcript("again", err.splitlines()[-1])
    assert (file.read_bytes(), os.stat(file)) == before


def test_a_stored_record_that_is_damaged_or_another_is_replaced(imported, call, tmp_path):
    imported(TRAINING)
    (file,) = (tmp_path / "results").rglob("*.json")
    stored = json.loads(file.read_text())
    for damaged in ("{", json.dumps({**stored, "status": "failed"})):
        file.write_text(damaged)
        err = call("import", tmp_path / "run.log", into(tmp_path / "results")).err
        assert "1 replaced" in err
        assert json.loads(file.read_text()) == stored


def test_copies_are_counted(call, tmp_path, transcript):
    for name in "abc":
        (tmp_path / f"{name}.log").write_text(TRAINING)
    err = call("import", tmp_path, into(tmp_path / "r")).err
    transcript("copies", err)


def test_a_dry_run_lists(call, tmp_path):
    out = call("import", GOLDEN / "training.txt", "--dry_run", into(tmp_path / "none")).out
    assert re.search(r"training.txt +trivial, batch 8, .* +ok +706.2 images/sec", out)
    assert not (tmp_path / "none").exists()


def test_other_files_are_named(call, tmp_path, transcript):
    (tmp_path / "a.txt").write_text("hello\n")
    os.symlink("nowhere", tmp_path / "b.txt")
    err = call("import", tmp_path, into(tmp_path / "results"), code=3).err
    assert all(f"/{name}: " in err for name in ("a.txt", "b.txt"))
    transcript("left out", err)


@pytest.fixture
def sides(call, tmp_path):
    """Folders of imported records: 5 runs each, those of b slower."""
    for side, total in (("a", 700), ("b", 600)):
        (tmp_path / side).mkdir()
        for number in range(5):
            text = TRAINING.replace("706.17", f"{total + number}.17")
            (tmp_path / side / f"{number}.log").write_text(text)
        call("import", tmp_path / side, f"--label=commit={side}", into(tmp_path / "r" / side))
    return tmp_path / "r" / "a", tmp_path / "r" / "b"


def test_imported_records_are_compared_with_what_cannot_be_judged(
    sides, call, runs, tmp_path, transcript
):
    document = json.loads(call("compare", *sides, "--format=json", code=3).out)
    notes = [note for note in document["notes"] if "tf_cnn_benchmarks" in note]
    transcript("unknown facts", "\n".join([document["answer"], *notes]))
    call("compare", *sides, "--allow_different=precision", code=1)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "0.json").write_text(runs(flags={"model": "trivial"}).to_json())
    out = call("compare", sides[0], tmp_path / "own", code=3).out
    assert "imported_from" in out
    assert "num_warmup_batches" not in out
    # A property that is unknown on one side is not equal to a known one.
    permitted = "--allow_different=imported_from,tensorflow_version,num_batches"
    words = ("compare", sides[0], tmp_path / "own", permitted, "--format=json")
    (found,) = json.loads(call(*words, code=3).out)["configurations"]
    assert "precision" in [one["fact"] for one in found["differences"] if one["blocks"]]


def test_a_history_and_a_report_show_imported_and_new_records(sides, call, runs):
    folder = sides[0].parent
    (folder / "0.json").write_text(runs(flags={"model": "trivial"}).to_json())
    out = call("history", folder).out
    assert "trivial, batch 8, 1 cpu, from tf_cnn_benchmarks on unknown machine" in out
    assert re.search(r"^a +\S+ \S+ +702.2 +700.2 to 704.2 +5$", out, re.MULTILINE)
    call("report", folder, f"--output={folder}/r.md")
    assert "from tf_cnn_benchmarks" in (folder / "r.md").read_text()


LOGGED = """\
{"name": "current_examples_per_sec", "value": 5.0, "global_step": 1, "timestamp": "2024-01-02"}
"""
BROKEN = {  # as a file, as a value, as a record, and as a line
    "cut.json": '{"results": [',
    "digits.log": LOGGED.replace("5.0", "1" + 400 * "0"),
    "batch.txt": TRAINING.replace("8 per device", f"{'9' * 25} per device"),
    "date.log": LOGGED.replace("2024-01-02", "yesterday"),
}


def test_no_file_of_a_folder_ends_the_import_of_the_others(call, tmp_path, transcript):
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, text in BROKEN.items():
        (folder / name).write_text(text)
    (folder / "sound.txt").write_text(TRAINING)
    done = call("import", folder, into(tmp_path / "results"), code=3)
    for name in BROKEN:
        (line,) = (line for line in done.err.splitlines() if f"/{name}: " in line)
        transcript(name, line)
    found = load_records([tmp_path / "results"])
    assert not found.skipped
    assert {record.imported.file for record in found.records} >= {"sound.txt", "date.log"}


def test_folders_that_are_not_read_are_named(call, tmp_path, monkeypatch, transcript):
    folder, shut = tmp_path / "logs", tmp_path / "logs" / "shut"
    shut.mkdir(parents=True)
    (folder / "sound.txt").write_text(TRAINING)
    (folder / "link").symlink_to(tmp_path)
    scan = os.scandir

    def scandir(path):
        if os.fspath(path) == str(shut):
            raise PermissionError(13, "Permission denied", str(shut))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    err = call("import", folder, into(tmp_path / "results"), code=3).err
    transcript("folders", err)
    err = call("import", folder, into(tmp_path / "none"), "--strict", code=2).err
    assert f"{folder}/link: " in err
    assert "--strict" in err


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("removed", shutil.rmtree),
        ("a file", lambda folder: (shutil.rmtree(folder), folder.touch())),
    ],
)
def test_a_folder_that_vanishes_is_one_line(call, tmp_path, monkeypatch, transcript, name, change):
    results = tmp_path / "results"
    command = importlib.import_module("cnnbench.cli.commands.import")

    def check_and_change(flag, path):
        ensure_writable(flag, path)
        change(results)

    monkeypatch.setattr(command, "ensure_writable", check_and_change)
    err = call("import", GOLDEN / "training.txt", into(results), code=4).err
    *_, line = err.splitlines()
    assert line.startswith(f"cnnbench: error: --results={results}: ")
    transcript(name, line)


@pytest.mark.parametrize("run_id", ["../../outside", "a\0b", "x" * 300])
def test_a_run_id_of_a_file_is_no_path(call, tmp_path, run_id):
    header = "run_id,started_at,status,model,throughput,flags"
    row = f"{run_id},2024-01-01T00:00:00+00:00,ok,lenet,100.0,{{}}"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "runs.csv").write_text(f"{header}\n{row}\n")
    call("import", tmp_path / "logs", into(tmp_path / "results"))
    (file,) = tmp_path.rglob("*.json")
    assert file.is_relative_to(tmp_path / "results")
    (record,) = load_records([file]).records
    assert record.run_id == run_id


def test_reports_do_not_advise_to_repeat_a_process_of_another_program(
    imported, call, tmp_path, transcript
):
    imported(TRAINING)
    page = call("report", tmp_path / "results", "--format=markdown").out
    (answer,) = re.findall(r"^- Speed of .*\n  - (.*)$", page, re.M)
    transcript("one process", answer)
    assert "--repeats" not in page
