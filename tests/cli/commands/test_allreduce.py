"""`cnnbench allreduce` as a process: streams, exit codes, what an interruption leaves behind."""

import json
import signal
import subprocess
import sys

import pytest

from cnnbench.machine.repository import of_work
from cnnbench.records.codec import encode

SECONDS = 240
BASE = (sys.executable, "-m", "cnnbench", "allreduce", "--device=cpu")


def test_a_table_and_nothing_else(tmp_path):
    path, table = tmp_path / "r.json", tmp_path / "r.csv"
    command = (
        *BASE,
        "--num_gpus=3,2",
        "--sizes=1K:4K:x4",
        "--all_reduce_spec=copy,xring#2",
        "--gradient_repacking=0,2",
        "--num_batches=2",
        f"--result_json={path}",
        f"--result_csv={table}",
        "--verbose",
        "--quiet_conditions=all",
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [(row[4], row[0], row[5], row[6]) for row in rows] == [
        (devices, size, spec, packing)
        for devices in ("3", "2")
        for size in ("1024", "4096")
        for spec in ("copy", "xring#2")
        for packing in ("-", "packs2")
    ]
    assert {row[-2] for row in rows} == {"0"}
    # 2 data sets x 2 ways x 2 packings x (3 + 2) devices x (256 + 1024) elements
    assert "# Wrong values: 0 of 51200 OK" in lines
    assert sum(line.startswith("# build: ") for line in lines) == len(rows)
    document = json.loads(path.read_text())
    assert document["command"][:3] == ["cnnbench", "allreduce", "--device=cpu"]
    assert document["placement"]["devices"] == [
        f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)
    ]
    assert document["environment"]["tensorflow_version"]
    assert document.get("subject") == encode(of_work({}).labelled({}))
    assert len(table.read_text().splitlines()) == 1 + len(rows)


def test_an_interrupted_run_keeps_what_it_measured(tmp_path, interrupt):
    path = tmp_path / "r.json"
    flags = ["--all_reduce_spec=copy", "--sizes=1K:512M:x2", f"--result_json={path}"]
    once = lambda line: line.split()[:1] == ["2048"]  # noqa: E731
    out = interrupt([*BASE[3:], *flags], signal.SIGTERM, once)
    assert "Wrong values" not in out
    document = json.loads(path.read_text())
    assert document["status"] == "interrupted"
    assert [point["bytes"] for point in document["points"]][:2] == [1024, 2048]
    assert all(1 <= len(point["seconds"]) <= 20 for point in document["points"])


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--sizes=4Q"], "--sizes=4Q: '4Q': must be bytes"),
        (["--sizes=1K:4K"], "--sizes=1K:4K: '1K:4K': a range needs three parts"),
        (["--all_reduce_spec=xring,copy:4K"], "--all_reduce_spec=copy:4K: character 6, '4K'"),
        (["--all_reduce_spec=ring"], "--all_reduce_spec=ring: character 1, 'ring'"),
        (["--num_gpus=1"], "--num_gpus=1: must be at least 2"),
        (["--dtype=fp8"], "--dtype=fp8: must be one of float32, float16, bfloat16"),
        (["--size=4K"], "unknown flag --size; did you mean --sizes?"),
        (["4K"], "stray argument '4K'"),
    ],
)
def test_refused_before_tensorflow_is_loaded(flags, line, alone):
    done = alone("allreduce", *flags)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"cnnbench: error: {line}")
    assert len(done.err.splitlines()) == 1
    assert "tensorflow" not in done.loaded


def test_what_only_devices_can_tell_is_refused_in_one_line(refuse):
    flags = ("--device=cpu", "--all_reduce_spec=xring#3", "--num_gpus=3,2", "--sizes=1K")
    refuse("allreduce", *flags, message="--all_reduce_spec=xring#3: character 1, 'xring#3'")


def test_predictions_need_no_tensorflow(alone):
    flags = ["--predict", "--link=alpha=1e-5,bandwidth=1e10", "--devices=8", "--model=lenet"]
    done = alone("allreduce", *flags, "--all_reduce_spec=xring")
    assert (done.status, done.err) == (0, "")
    assert "xring" in done.out
    assert "tensorflow" not in done.loaded


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--link=hdr"], "--link=hdr: is for --predict; add that"),
        (["--predict", "--link=hdr", "--sizes=4K"], "--sizes=4K: is for measuring"),
        (["--predict", "--link=hdr", "--num_gpus=2,4"], "--num_gpus=2,4: is for measuring"),
    ],
)
def test_flags_of_the_other_kind_are_refused(flags, line, refuse):
    refuse("allreduce", *flags, message=f" error: {line}")
