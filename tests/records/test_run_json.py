"""--result_json: always a whole document, even when the writer is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from cnnbench.errors import FlagError, UsageError
from cnnbench.records import run_json
from cnnbench.records.measurements import Measurements

WRITER = """
import sys
from cnnbench.records import run_json
from cnnbench.records.measurements import Measurements
path, number = sys.argv[1], 0
print("ready", flush=True)
while True:
    run = Measurements(command=[str(number)], config={"padding": "x" * 100_000})
    for _ in range(number % 50):
        run.add_step(1.0, 2.0)
    run_json.write(path, run.record())
    number += 1
"""


def a_record(**config):
    run = Measurements(command=["cnnbench"], config=config)
    run.add_step(0.5, float("nan"))
    return run.record()


def test_write_then_read(tmp_path):
    path = str(tmp_path / "r.json")
    run_json.prepare(path)
    record = a_record(x=1)
    run_json.write(path, record)
    assert run_json.read(path).to_json() == record.to_json()


def test_prepare_keeps_an_existing_file(tmp_path):
    path = tmp_path / "r.json"
    path.write_text("old")
    run_json.prepare(str(path))
    assert path.read_text() == "old"


def test_prepare_names_the_flag(tmp_path):
    with pytest.raises(FlagError, match=r"^--result_json=.*there is no folder"):
        run_json.prepare(str(tmp_path / "a" / "r.json"))


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"schema": 9}', b"\xff\xfe"])
def test_reading_what_is_no_record_names_the_file(content, tmp_path):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"r\.json: not a run record"):
        run_json.read(str(path))


def test_reading_a_missing_file_names_it(tmp_path):
    with pytest.raises(UsageError, match=r"r\.json: No such file"):
        run_json.read(str(tmp_path / "r.json"))


def test_killed_writer_leaves_the_old_or_the_new_document(tmp_path):
    path = tmp_path / "r.json"
    run_json.write(str(path), a_record())
    for trial in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout.readline() == "ready\n"
        # Different moments of the write, which takes a few milliseconds.
        time.sleep(0.003 + 0.0017 * trial)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        run_json.read(str(path))
