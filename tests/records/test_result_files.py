"""--result_json: always a whole document, even when the writer is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from cnnbench.errors import BenchmarkError, FlagError, UsageError
from cnnbench.records.load import load_run
from cnnbench.records.measurements import Measurements
from cnnbench.records.result_files import ResultFiles, write_json
from cnnbench.records.tables import RUNS, run_row

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


def a_record(**config):
    run = Measurements(command=["cnnbench"], config=config)
    run.add_step(0.5, float("nan"))
    return run.record()


def files(json_path=None, csv_path=None, train_dir=None):
    return ResultFiles(json_path, csv_path, RUNS, train_dir)


def test_write_then_read(tmp_path):
    path = str(tmp_path / "r.json")
    files(path).prepare()
    record = a_record(x=1)
    files(path).write(record, list)
    assert load_run(path).to_json() == record.to_json()


def test_prepare_keeps_an_existing_file(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("old")
    files(str(path)).prepare()
    assert path.read_text() == "old"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"schema": 9}', b"\xff\xfe"])
def test_reading_what_is_no_record_names_the_file(content, tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"r\.json: not a run record"):
        load_run(str(path))
    with pytest.raises(UsageError, match=r"r\.txt: No such file"):
        load_run(str(tmp_path / "r.txt"))


def test_one_file_cannot_be_both(tmp_path):
    path = tmp_path / "r"
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(FlagError, match=r"^--result_csv=.*is the file of --result_json"):
        files(str(path), str(tmp_path / "link")).prepare()


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        (("/none/r.json",), "--result_json=.*there is no folder"),
        ((None, "/none/r.csv"), "--result_csv=.*there is no folder"),
        ((None, None, "/proc/none/ckpt"), "--train_dir=.*must be a directory"),
        ((None, None, "/tmp/model.ckpt-12"), "--train_dir=.*names one checkpoint"),
    ],
)
def test_paths_that_cannot_be_written_are_refused(paths, reason):
    with pytest.raises(FlagError, match=f"^{reason}"):
        files(*paths).prepare()


def test_each_file_is_written_also_when_the_other_cannot_be(tmp_path, monkeypatch):
    def full(path, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cnnbench.records.result_files.write_json", full)
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
    for trial in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout.readline() == "ready\n"
        # Different moments of the write, which takes a few milliseconds.
        time.sleep(0.003 + 0.0025 * trial)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        load_run(str(path))
