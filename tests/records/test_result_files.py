"""--result_json and --result_csv: whole documents and rows, whoever else appends or is killed."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.judge.metrics.registry import HISTORY
from cnnbench.records import csv_table, result_files
from cnnbench.records.load import load_run
from cnnbench.records.measurements import Measurements
from cnnbench.records.parts import Batch, Conditions, Evaluation, ModelInfo, Placement
from cnnbench.records.result_files import ResultFiles, write_json
from cnnbench.records.tables import REDUCTIONS, RUNS, run_row

WRITER = """
import sys
from cnnbench.records.measurements import Measurements
from cnnbench.records.result_files import write_json
path, number = sys.argv[1], 0
print("ready", flush=True)
while True:
    run = Measurements(command=[str(number)], config={"padding": "x" * 100_000})
    for _ in range(number % 50):
        run.add_step(1.0, 2.0)
    write_json(path, run.record())
    number += 1
"""
APPENDER = """
import sys
from cnnbench.records.measurements import Measurements
from cnnbench.records.tables import RUNS, run_row
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
RUNS.prepare(path)
print("ready", flush=True)
sys.stdin.readline()
number = 0
while number != count:
    run = Measurements(command=[name, str(number), "quoted, 'text' \\"here\\"" * 200], config={})
    RUNS.append(path, [run_row(run.record())])
    number += 1
"""


def a_record(**config):
    run = Measurements(command=["cnnbench"], config=config)
    run.add_step(0.5, float("nan"))
    return run.record()


def files(json_path=None, csv_path=None):
    return ResultFiles(json_path, csv_path, RUNS)


def test_write_then_read(tmp_path):
    path = str(tmp_path / "r.json")
    files(path).prepare()
    record = a_record(x=1)
    files(path).write(record, list)
    assert load_run(path).to_json() == record.to_json()


def test_prepare_keeps_an_existing_file(tmp_path):
    path = tmp_path / "r.json"
    path.write_text('{"schema": 1}')
    files(str(path)).prepare()
    assert path.read_text() == '{"schema": 1}'


@pytest.mark.parametrize("content", ["run_id,status\n", "import cnnbench\n", "[1]", '{"a": 1}'])
def test_a_file_of_another_kind_is_not_replaced_by_a_record(tmp_path, content):
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(FlagError, match=r"^--result_json=.*of another kind"):
        files(str(path)).prepare()
    path.write_text("")
    files(str(path)).prepare()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"schema": 9}', b"\xff\xfe"])
def test_reading_what_is_no_record_names_the_file(content, tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"r\.json: (empty|cut off|not )"):
        load_run(str(path))
    with pytest.raises(UsageError, match=r"r\.txt: cannot be read: No such file"):
        load_run(str(tmp_path / "r.txt"))


def test_one_file_cannot_be_both(tmp_path):
    path = tmp_path / "r"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(FlagError, match=r"^--result_csv=.*is the file of --result_json"):
        files(str(path), str(tmp_path / "link")).prepare()
    path.touch()
    os.link(path, tmp_path / "hard")
    with pytest.raises(FlagError, match=r"^--result_csv=.*is the file of --result_json"):
        files(str(path), str(tmp_path / "hard")).prepare()


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (("/none/r.json",), "--result_json=.*there is no folder"),
        ((None, "/none/r.csv"), "--result_csv=.*there is no folder"),
    ],
)
def test_paths_that_cannot_be_written_are_refused(paths, reason):
    with pytest.raises(FlagError, match=f"^{reason}"):
        files(*paths).prepare()


def test_each_file_is_written_also_when_the_other_cannot_be(tmp_path, monkeypatch):
    def full(path, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(result_files, "write_json", full)
    record, table = a_record(), tmp_path / "r.csv"
    both = files(str(tmp_path / "r.json"), str(table))
    assert both.wanted
    with pytest.raises(BenchmarkError, match=r"r\.json: No space left on device$"):
        both.write(record, lambda: [run_row(record)])
    assert len(table.read_text().splitlines()) == 2
    assert not files().wanted


def test_killed_writer_leaves_the_old_or_the_new_document(tmp_path):
    path = tmp_path / "r.json"
    write_json(str(path), a_record())
    for trial in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout.readline() == "ready\n"
        # Different moments of the write, which takes a few milliseconds.
        time.sleep(0.003 + 0.005 * trial)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        load_run(str(path))


def a_run(**config):
    return Measurements(command=["cnnbench", "--a=b c"], config=config)


def append(path, record):
    RUNS.append(str(path), [run_row(record)])


def rows(path):
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    header, *body = csv.reader(io.StringIO(text), strict=True)
    assert tuple(header) == RUNS.columns
    for cells in body:
        assert len(cells) == len(RUNS.columns)
        assert cells[-1] == "1"
    return [dict(zip(header, cells, strict=True)) for cells in body]


def appender(path, name, count):
    process = subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(path), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def go(process):
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.parametrize("table", [RUNS, REDUCTIONS])
def test_columns_are_unique_and_need_no_quotes(table):
    assert len(set(table.columns)) == len(table.columns)
    assert all(name.replace("_", "").isalnum() for name in table.columns)


def test_row_of_a_complete_run(tmp_path):
    run = a_run(model="resnet50", precision="bf16", xla_compile=False)
    run.model = ModelInfo(
        name="resnet50",
        parameters=25,
        trainable_parameters=24,
        forward_flops_per_image=10,
        training_flops_per_image=30,
    )
    run.placement = Placement(
        device="cpu",
        devices=("/cpu:0",),
        num_towers=2,
        num_workers=1,
        variable_update="replicated",
        all_reduce=("copy", "ring"),
    )
    run.batch = Batch(per_device=4, global_=8)
    run.add_warmup_step(1.0, 4.0)
    run.add_step(0.5, 3.0, cpu_seconds=0.75)
    run.add_step(0.5, float("inf"), cpu_seconds=1.25)
    run.add_evaluation(
        Evaluation(global_step=3, top_1=0.5, top_5=0.75, examples=8, images_per_sec=9.0)
    )
    run.set_loop_time(1.25, 2.0, 0.5)
    run.environment = {"hostname": "böx", "gpu_names": ["A", "B"], "logical_cpus": 2}
    path = tmp_path / "r.csv"
    append(path, run.record())
    (row,) = rows(path)
    expected = {
        "status": "ok",
        "model": "resnet50",
        "device": "cpu",
        "num_towers": "2",
        "variable_update": "replicated",
        "all_reduce": "copy;ring",
        "batch_per_device": "4",
        "batch_global": "8",
        "num_warmup_steps": "1",
        "num_steps": "2",
        "images_per_sec": "16.0",
        "total_images_per_sec": "12.8",
        "achieved_flops_per_sec": "480.0",
        "mfu": "",
        "last_loss": "Infinity",
        "eval_top_1": "0.5",
        "precision": "bf16",
        "xla_compile": "false",
        "hostname": "böx",
        "gpu_names": "A;B",
        "logical_cpus": "2",
        "loop_user_seconds": "2.0",
        "loop_system_seconds": "0.5",
        "cpu_seconds_per_step": "1.0",
        "busy_cpus": "2.0",
        "error": "",
        "command": "cnnbench '--a=b c'",
    }
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("table", "document"), [(RUNS, "record.md"), (REDUCTIONS, "all_reduce_benchmark.md")]
)
def test_every_column_is_documented_once(table, document):
    text = (Path(__file__).parents[2] / "docs" / document).read_text(encoding="utf-8")
    lines = text[text.index("| column | content |") :].partition("\n\n")[0].splitlines()
    documented = [name for line in lines for name in re.findall("`(\\w+)`", line.split("|")[1])]
    assert sorted(documented) == sorted(table.columns)


def test_mean_and_median_of_images_per_sec_are_columns_of_their_own(tmp_path):
    run = Measurements(command=[], config={})
    run.batch = Batch(per_device=6, global_=6)
    for seconds in (1.0, 1.0, 4.0):
        run.add_step(seconds, 0.0)
    append(tmp_path / "r.csv", run.record())
    (row,) = rows(tmp_path / "r.csv")
    assert (row["images_per_sec"], row["images_per_sec_median"]) == ("3.0", "6.0")


def test_disturbance_is_a_column(tmp_path):
    run = a_run()
    append(tmp_path / "r.csv", run.record())
    run.conditions = Conditions(before={"other_cpus": 0.5}, during={"other_cpus": 1.25})
    append(tmp_path / "r.csv", run.record())
    assert [row["other_cpus"] for row in rows(tmp_path / "r.csv")] == ["", "1.25"]


@pytest.mark.parametrize(("forward_only", "cell"), [(False, "0.0"), (True, "")])
def test_a_forward_pass_has_no_loss(forward_only, cell, tmp_path):
    run = Measurements(command=[], config={"forward_only": forward_only})
    run.add_step(0.5, 0.0)
    append(tmp_path / "r.csv", run.record())
    assert rows(tmp_path / "r.csv")[0]["last_loss"] == cell
    assert HISTORY["final_loss"].value(run.record()) == (None if forward_only else 0.0)


def test_failed_run_has_a_row_on_one_line(tmp_path):
    path = tmp_path / "r.csv"
    record = a_run(model="vgg16").record("failed", BenchmarkError('line 1\r\n"line" 2\u2028,\x00'))
    append(path, record)
    (row,) = rows(path)
    assert row["model"] == "vgg16"
    assert row["error"] == 'BenchmarkError: line 1 "line" 2 ,'
    assert path.read_bytes().count(b"\n") == 2


def test_command_that_is_not_unicode(tmp_path):
    path = tmp_path / "r.csv"
    record = Measurements(command=[os.fsdecode(b"--x=\xff")], config={}).record()
    append(path, record)
    assert len(rows(path)) == 1


def test_header_once_and_readable_by_pandas(tmp_path):
    path = tmp_path / "r.csv"
    for _ in range(3):
        RUNS.prepare(str(path))
        run = a_run()
        run.batch = Batch(per_device=1, global_=1)
        run.add_step(0.25, float("nan"))
        append(path, run.record())
    table = pd.read_csv(path)
    assert list(table["images_per_sec"]) == [4.0, 4.0, 4.0]
    assert table["last_loss"].isna().all()
    assert table["run_id"].is_unique


def test_prepare_leaves_no_file(tmp_path):
    RUNS.prepare(str(tmp_path / "r.csv"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("name,value\n1,2\n", "column 1 is not"),
        ("some notes", "column 1 is not"),
        ("\n", "column 1 is not"),
        (",".join(RUNS.columns[:-1]) + "\n", f"column {len(RUNS.columns)} is not"),
        (",".join(RUNS.columns) + ",more\n", f"column {len(RUNS.columns) + 1} is not"),
        ("\x00\x01\n", "column 1 is not"),
    ],
)
def test_foreign_table_is_refused_before_the_run_and_kept(content, reason, tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(content)
    with pytest.raises(FlagError) as caught:
        RUNS.prepare(str(path))
    assert str(caught.value).startswith("--result_csv=")
    assert reason in str(caught.value)
    with pytest.raises(FlagError):
        append(path, a_run().record())
    assert path.read_text() == content


def test_a_table_of_an_earlier_version_is_continued_with_its_columns(tmp_path):
    path = tmp_path / "r.csv"
    later = ("subject_repository", "subject_revision", "subject_dirty", "subject_side")
    later = (*later, "result_label")
    before = tuple(name for name in RUNS.columns if name not in later)
    path.write_text(",".join(before) + "\n" + ",".join("1" for _ in before) + "\n" + "torn,row")
    notice = files(csv_path=str(path)).prepare()
    assert all(name in notice for name in ("--result_csv", *later))
    append(path, a_run(model="lenet", result_label="commit=abc").record())
    table = pd.read_csv(path)
    assert tuple(table.columns) == before
    assert list(table["model"]) == ["1", "lenet"]


def test_columns_name_what_was_measured(tmp_path):
    path = tmp_path / "r.csv"
    assert files(csv_path=str(path)).prepare() is None
    append(path, a_run(model="lenet", result_label="commit=abc,branch=dev").record())
    (row,) = rows(path)
    assert (row["subject_revision"], row["result_label"]) == ("abc", "commit=abc,branch=dev")


def test_what_a_spreadsheet_saved_can_be_continued(tmp_path):
    path = tmp_path / "r.csv"
    append(path, a_run().record())
    saved = b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(saved)
    RUNS.prepare(str(path))
    append(path, a_run().record())
    assert path.read_bytes().startswith(saved)
    assert len(pd.read_csv(path)) == 2


def test_a_header_whose_line_break_an_editor_removed(tmp_path):
    path = tmp_path / "r.csv"
    path.write_bytes(b"\xef\xbb\xbf" + ",".join(RUNS.columns).encode())
    append(path, a_run().record())
    assert len(pd.read_csv(path)) == 1


def test_torn_file_of_any_length_is_repaired(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # hundreds of them take long
    path = tmp_path / "r.csv"
    for _ in range(2):
        append(path, a_run(precision='"a,b"').record())
    whole = path.read_bytes()
    first_row_end = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    edges = [at + step for at, byte in enumerate(whole) if byte in b'\n"' for step in (0, 1, 2)]
    for length in sorted({*range(0, len(whole), 11), *edges, len(whole) - 1, len(whole)}):
        path.write_bytes(whole[:length])
        RUNS.prepare(str(path))
        append(path, a_run().record())
        survivors = (length >= first_row_end - 1) + (length >= len(whole) - 1)
        assert len(rows(path)) == survivors + 1, length


def test_a_torn_row_of_a_long_table_is_cut_off(tmp_path):
    path = tmp_path / "r.csv"
    append(path, a_run().record())
    header, row = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + row * 200 + row[: len(row) // 2])
    append(path, a_run().record())
    assert len(rows(path)) == 201


def test_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "r.csv"
    append(path, a_run().record())
    before = path.read_bytes()

    def full_disk(descriptor, data):
        os.write(descriptor, data[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(csv_table, "write_all", full_disk)
    with pytest.raises(OSError, match="No space"):
        append(path, a_run().record())
    assert path.read_bytes() == before


def test_processes_that_append_at_once(tmp_path):
    path = tmp_path / "r.csv"
    processes = [appender(path, f"writer{i}", 25) for i in range(4)]
    for process in processes:
        go(process)
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    commands = [row["command"].split()[:2] for row in rows(path)]
    assert sorted(commands) == sorted([f"writer{i}", str(n)] for i in range(4) for n in range(25))
    for i in range(4):
        assert [n for w, n in commands if w == f"writer{i}"] == [str(n) for n in range(25)]


def test_killed_writers_spoil_nothing(tmp_path):
    path = tmp_path / "r.csv"
    seen = set()
    for trial in range(4):
        process = appender(path, f"writer{trial}", -1)
        go(process)
        time.sleep(0.004 + 0.004 * trial)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        append(path, a_run().record())
        ids = {row["run_id"] for row in rows(path)}
        assert ids > seen
        seen = ids
