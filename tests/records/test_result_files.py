"""--result_json and --result_csv: whole documents and rows, whoever else appends or is killed."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import multiprocessing
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.records.files import report_failed_writes
from cnnbench.records.load import load_run
from cnnbench.records.measurements import Measurements
from cnnbench.records.metric import SUMMARY
from cnnbench.records.result_files import _RUN, REDUCTIONS, RUNS, ResultFiles, run_row
from cnnbench.records.run import Batch, Conditions, Evaluation, Measured, Placement, StartupSeconds
from cnnbench.records.subject import Subject


def a_run(**config):
    return Measurements(command=["cnnbench", "--a=b c"], config=config)


def a_record(**config):
    run = a_run(**config)
    run.timed.add_execution(0.5, float("nan"))
    return run.make_record()


def forked(work, *arguments):
    """A process that does this work, as another command would at the same time."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def overwrite(path):
    """Writes documents of different lengths until it is killed."""
    for number in itertools.count():
        run = a_run(padding="x" * 100_000)
        for _ in range(number % 50):
            run.timed.add_execution(1.0, 2.0)
        files(str(path)).write(run.make_record(), list)


def append_rows(path, name, count):
    for number in itertools.islice(itertools.count(), count):
        command = [name, str(number), "quoted, 'text' \"here\"" * 200]
        append(path, Measurements(command=command, config={}).make_record())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "r.csv"


def files(json_path=None, csv_path=None):
    return ResultFiles(json_path, csv_path, RUNS)


def test_documents_are_replaced_when_they_are_written(tmp_path):
    path = str(tmp_path / "r.json")
    for number in range(2):
        record = a_record(x=number)
        files(path).check_writable()
        assert number == 0 or load_run(path).config == {"x": 0}  # kept so far
        files(path).write(record, list)
        assert load_run(path).to_json() == record.to_json()


def test_each_file_is_written_also_when_the_other_cannot_be(tmp_path, little_disk):
    record, table = a_record(), tmp_path / "r.csv"
    both = files(str(tmp_path / "r.json"), str(table))
    assert both.is_requested
    longest = len(record.to_json()) - 1
    with little_disk(longest):
        both.write(record, lambda: [run_row(record, {})])
    with pytest.raises(BenchmarkError, match=r"--result_json=.*/r\.json: cannot be written: File"):
        report_failed_writes()
    assert len(table.read_text().splitlines()) == 2
    assert not files().is_requested


def test_of_runs_that_end_at_the_same_time_one_has_the_file(tmp_path):
    path = tmp_path / "r.json"
    ready = multiprocessing.get_context("fork").Barrier(4)

    def write(number):
        ready.wait(30)
        files(str(path)).write(a_record(x=number), list)
        report_failed_writes()

    for process in [forked(write, number) for number in range(4)]:
        process.join(60)
        assert process.exitcode == 0
    assert load_run(path).config["x"] in range(4)
    assert [*tmp_path.iterdir()] == [path]


def test_killed_writer_leaves_the_old_or_the_new_document(tmp_path):
    path = tmp_path / "r.json"
    files(str(path)).write(a_record(), list)
    for trial in range(2):
        writer = forked(overwrite, path)
        # Different moments of the write, which takes a few milliseconds.
        time.sleep(0.03 + 0.005 * trial)
        writer.kill()
        writer.join()
        load_run(str(path))


def table_in(path):
    """As pandas reads a file."""
    import pandas as pd  # here, as few tests need it

    return pd.read_csv(path)


def append(path, record):
    RUNS.append(str(path), [run_row(record, {})])


def rows(path):
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    header, *body = csv.reader(io.StringIO(text), strict=True)
    assert tuple(header) == RUNS.columns
    for cells in body:
        assert len(cells) == len(RUNS.columns)
        assert cells[-1] == "1"
    return [dict(zip(header, cells, strict=True)) for cells in body]


# Parts of a run of lenet, 8 images and 60 FLOPs each, and cells of its row.
CELLS = {
    "complete": (
        {
            "flags": {"precision": "bf16", "xla_compile": False},
            "placement": Placement(
                device="cpu",
                devices=("/cpu:0",),
                num_towers=2,
                num_workers=1,
                variable_update="replicated",
                all_reduce=("copy", "ring"),
            ),
            "warmup_step_seconds": (1.0,),
            "step_seconds": (0.5, 0.5),
            "step_cpu_seconds": (0.75, 1.25),
            "losses": (3.0, math.inf),
            "evaluations": (Evaluation(global_step=3, top_1=0.5, examples=8, images_per_sec=9.0),),
            "measured": Measured(
                loop_seconds=1.25, loop_images=16, loop_user_seconds=2.0, loop_system_seconds=0.5
            ),
            "environment": {"hostname": "böx", "gpu_names": ["A", "B"], "logical_cpus": 2},
            "command": ("cnnbench", "--a=b c"),
        },
        {
            "model": "lenet",
            "all_reduce": "copy;ring",
            "num_warmup_steps": "1",
            "num_steps": "2",
            "images_per_sec": "16.0",
            "mfu": "",
            "last_loss": "Infinity",
            "precision": "bf16",
            "xla_compile": "false",
            "hostname": "böx",
            "gpu_names": "A;B",
            "logical_cpus": "2",
            "other_cpus": "",
            "error": "",
            "command": "cnnbench '--a=b c'",
        },
    ),
    "mean and median": (
        {"step_seconds": (1.0, 1.0, 4.0)},
        {"images_per_sec": "4.0", "images_per_sec_median": "8.0"},
    ),
    "disturbance": (
        {"conditions": Conditions(before={"other_cpus": 0.5}, during={"other_cpus": 1.25})},
        {"other_cpus": "1.25"},
    ),
    "losses": ({"losses": (2.0, 1.0, 0.0)}, {"last_loss": "0.0"}),
    "no loss of a forward pass": (
        {"losses": (0.0,) * 3, "flags": {"forward_only": True}},
        {"last_loss": ""},
    ),
    "one line": (
        {"error": ("BenchmarkError", 'line 1\r\n"line" 2\u2028,\x00')},
        {"status": "failed", "error": 'BenchmarkError: line 1 "line" 2 ,'},
    ),
    "no Unicode": ({"command": (os.fsdecode(b"--x=\xff"),)}, {}),
    "subject": (
        {"subject": Subject(revision="abc"), "flags": {"result_label": "commit=abc,branch=dev"}},
        {"subject_revision": "abc", "result_label": "commit=abc,branch=dev"},
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_of_a_run(runs, path, name):
    parts, cells = CELLS[name]
    append(path, runs(**parts))
    (row,) = rows(path)
    assert {column: row[column] for column in cells} == cells
    assert path.read_bytes().count(b"\n") == 2


def test_a_column_is_the_value_of_its_key_in_the_document(runs):
    """Without a factor, and none is another column's: all numbers of the record differ."""
    parts, _ = CELLS["complete"]
    times = StartupSeconds(import_=1.5, build=0.625, first_step=2.25)
    during = Conditions(before={}, during={"other_cpus": 1.125})
    whole = replace(parts["measured"], input_wait_seconds=0.375, peak_flops_per_sec=3e12)
    whole = replace(whole, peak_memory_bytes=3 << 30, peak_flops_source="given")
    more = {"startup_seconds": times, "conditions": during, "measured": whole}
    record = runs(**{**parts, **more})
    document = json.loads(record.to_json())
    evaluation = document["evaluations"][-1]
    sources = {"record": document, "summary": document["summary"], "evaluation": evaluation}
    cells = RUNS.format_cells(run_row(record, {}))
    for column in (*_RUN, *SUMMARY):
        top, *path = _RUN.get(column, f"summary.{column}").split(".")
        assert path[-1].rstrip("_") in column  # the column of another key would have its name
        found = sources.get(top)
        for key in path:
            found = None if found is None else found.get(key.rstrip("_"))
        if isinstance(found, (int, float)) and not isinstance(found, bool):
            assert float(cells[column]) == pytest.approx(found, rel=1e-12), column
        elif isinstance(found, str):
            assert cells[column] == found, column
        elif top in sources and found is None and column != "last_loss":
            assert cells[column] == "", column


@pytest.mark.parametrize(
    ("table", "document"), [(RUNS, "record.md"), (REDUCTIONS, "all_reduce_benchmark.md")]
)
def test_every_column_is_documented_once(table, document):
    text = (Path(__file__).parents[2] / "docs" / document).read_text(encoding="utf-8")
    lines = text[text.index("| column | content |") :].partition("\n\n")[0].splitlines()
    documented = [name for line in lines for name in re.findall("`(\\w+)`", line.split("|")[1])]
    in_metrics_md = SUMMARY if table is RUNS else ()
    found = [*documented, *in_metrics_md]
    missing = {*table.columns} - {*found}
    assert not missing, f"the table of columns in docs/{document} needs rows: {missing}"
    assert sorted(found) == sorted(table.columns)


def test_header_once_and_readable_by_pandas(path):
    for _ in range(3):
        assert files(csv_path=str(path)).check_writable() is None
        run = a_run()
        run.update_record(batch=Batch(per_device=1, global_=1))
        run.timed.add_execution(0.25, float("nan"))
        append(path, run.make_record())
    table = table_in(path)
    assert list(table["images_per_sec"]) == [4.0, 4.0, 4.0]
    assert table["last_loss"].isna().all()
    assert table["run_id"].is_unique


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("name,value\n1,2\n", "its column 1 differs"),
        ("some notes", "its column 1 differs"),
        ("\n", "its column 1 differs"),
        (",".join(RUNS.columns[:-1]) + "\n", f"its column {len(RUNS.columns)} differs"),
        (",".join(RUNS.columns) + ",more\n", f"its column {len(RUNS.columns) + 1} differs"),
        ("\x00\x01\n", "its column 1 differs"),
    ],
)
def test_foreign_table_is_refused_before_the_run_and_kept(content, reason, path):
    path.write_text(content)
    with pytest.raises(FlagError) as caught:
        RUNS.find_missing_columns(str(path))
    assert str(caught.value).startswith("--result_csv=")
    assert reason in str(caught.value)
    with pytest.raises(FlagError):
        append(path, a_run().make_record())
    assert path.read_text() == content


def test_a_table_of_an_earlier_version_is_continued_with_its_columns(path):
    later = ("subject_repository", "subject_revision", "subject_dirty", "subject_side")
    later = (*later, "result_label", "step_p99_seconds")
    before = tuple(name for name in RUNS.columns if name not in later)
    path.write_text(",".join(before) + "\n" + ",".join("1" for _ in before) + "\n" + "torn,row")
    notice = files(csv_path=str(path)).check_writable()
    assert all(name in notice for name in ("--result_csv", *later))
    append(path, a_run(model="lenet", result_label="commit=abc").make_record())
    table = table_in(path)
    assert tuple(table.columns) == before
    assert list(table["model"]) == ["1", "lenet"]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_what_a_spreadsheet_saved_can_be_continued(path, quoting):
    append(path, a_run().make_record())
    cells = list(csv.reader(path.read_text().splitlines()))
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, quoting=quoting).writerows(cells)
    saved = path.read_bytes()
    RUNS.find_missing_columns(str(path))
    append(path, a_run().make_record())
    assert path.read_bytes().startswith(saved)
    assert len(table_in(path)) == 2


def test_a_header_whose_line_break_an_editor_removed(path):
    path.write_bytes(b"\xef\xbb\xbf" + ",".join(RUNS.columns).encode())
    append(path, a_run().make_record())
    assert len(table_in(path)) == 1


def test_torn_file_of_any_length_is_repaired(path):
    for _ in range(2):
        append(path, a_run(precision='"a,b"').make_record())
    whole = path.read_bytes()
    first_row_end = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    edges = [at + step for at, byte in enumerate(whole) if byte in b'\n"' for step in (0, 1, 2)]
    for length in sorted({*range(0, len(whole), 61), *edges, len(whole) - 1, len(whole)}):
        path.write_bytes(whole[:length])
        RUNS.find_missing_columns(str(path))
        append(path, a_run().make_record())
        survivors = (length >= first_row_end - 1) + (length >= len(whole) - 1)
        assert len(rows(path)) == survivors + 1, length


def test_a_torn_row_of_a_long_table_is_cut_off(path):
    append(path, a_run().make_record())
    header, row = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + row * 200 + row[: len(row) // 2])
    append(path, a_run().make_record())
    assert len(rows(path)) == 201


def test_a_new_table_obeys_the_umask(path):
    before = os.umask(0o026)
    try:
        append(path, a_run().make_record())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


def test_failed_write_leaves_the_file_as_it_was(path, little_disk):
    append(path, a_run().make_record())
    before = path.read_bytes()
    with little_disk(len(before) + 20), pytest.raises(OSError, match="File too large"):
        append(path, a_run().make_record())
    assert path.read_bytes() == before


def test_processes_that_append_at_once(path):
    processes = [forked(append_rows, path, f"writer{i}", 12) for i in range(3)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    commands = [row["command"].split()[:2] for row in rows(path)]
    assert len(commands) == 36
    for i in range(3):
        assert [n for w, n in commands if w == f"writer{i}"] == [str(n) for n in range(12)]


def test_killed_writers_spoil_nothing(path):
    seen = set()
    for trial in range(2):
        writer = forked(append_rows, path, f"writer{trial}", None)
        time.sleep(0.02 + 0.004 * trial)
        writer.kill()
        writer.join()
        append(path, a_record())
        ids = {row["run_id"] for row in rows(path)}
        assert ids > seen
        seen = ids
