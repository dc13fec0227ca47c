"""`cnnbench allreduce`: its table and files, and what an interruption leaves behind."""

import json
import re
import signal
from pathlib import Path

import pytest
from forked import Forked, cnnbench

from cnnbench.cli import main
from cnnbench.flags.params import ACCEPTED
from cnnbench.lab.all_reduce.session import AllReduceBenchmark
from cnnbench.machine.repository import measured_code
from cnnbench.records.codec import encode

COMMAND = ("allreduce", "--device=cpu")


@pytest.mark.slow
def test_a_record_that_cannot_be_written_ends_no_measurement(
    tmp_path, capfd, monkeypatch, transcript
):
    """Its folder is gone before the first of three sizes is measured."""
    path, table = tmp_path / "lost" / "r.json", tmp_path / "r.csv"
    path.parent.mkdir()
    measure = AllReduceBenchmark._measure_cases

    def losing(*arguments):
        path.parent.rmdir()
        measure(*arguments)

    monkeypatch.setattr(AllReduceBenchmark, "_measure_cases", losing)
    files = (f"--result_json={path}", f"--result_csv={table}", "--quiet_conditions=all")
    sizes = ("--num_gpus=2", "--sizes=1K,2K,4K", "--all_reduce_spec=copy", "--num_batches=2")
    assert main((*COMMAND, *sizes, *files)) == 4
    out, err = capfd.readouterr()
    assert err.startswith(f"cnnbench: error: --result_json={path}: ")
    transcript("lost", err)
    assert sum(not line.startswith("#") for line in out.splitlines()) == 3
    assert "# Wrong values: 0 of " in out
    assert len(table.read_text().splitlines()) == 4


def test_a_table_and_nothing_else(tmp_path, capfd):
    path, table = tmp_path / "r.json", tmp_path / "r.csv"
    command = (
        *COMMAND,
        "--num_gpus=3,2",
        "--sizes=4K",
        "--all_reduce_spec=copy,xring#2",
        "--num_batches=2",
        f"--result_json={path}",
        f"--result_csv={table}",
        "--verbose",
        "--quiet_conditions=all",
    )
    assert main(command) == 0
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [(row[4], row[0], row[5], row[6]) for row in rows] == [
        (devices, "4096", spec, "-") for devices in ("3", "2") for spec in ("copy", "xring#2")
    ]
    assert {row[-2] for row in rows} == {"0"}
    # 2 data sets x 2 ways x (3 + 2) devices x 1024 elements
    assert "# Wrong values: 0 of 20480 OK" in lines
    assert sum(line.startswith("# build: ") for line in lines) == len(rows)
    document = json.loads(path.read_text())
    assert document["command"][:3] == ["cnnbench", "allreduce", "--device=cpu"]
    assert document["placement"]["devices"] == [
        f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)
    ]
    assert document["environment"]["tensorflow_version"]
    assert document.get("subject") == encode(measured_code({}).with_labels({}))
    assert len(table.read_text().splitlines()) == 1 + len(rows)


ANCESTOR = json.loads((Path(__file__).parents[2] / "flags" / "ancestor_flags.json").read_text())
ANOTHER = {"boolean": True, "integer": 3, "float": 0.5, "string": "x", "list": "3,5"}
"""A value by type of flag."""
USABLE = {
    **{"num_gpus": 2, "device": "cpu", "model": "resnet20", "all_reduce_spec": "pscpu:32K:xring"},
    **{"data_name": "cifar10", "piecewise_learning_rate_schedule": "0.1;5;0.01"},
    **{"gpu_indices": "0,1", "worker_hosts": "", "task_index": 0, "trt_mode": "INT8"},
    **{"job_name": "", "controller_host": "''", "iters_per_step": 1, "num_batches": 1},
}
"""Values of flags of which any other, or the default, needs more."""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_start")
def test_every_flag_of_the_ancestor_is_accepted(call, tmp_path, monkeypatch):
    """Each at another value, before anything is measured; and all together, most at defaults."""
    monkeypatch.chdir(tmp_path)
    together = []
    for row in ANCESTOR:
        name = row["name"]
        another = [*ACCEPTED[name].choices, ANOTHER.get(row["type"])][0]
        values = [USABLE[name]] if name in USABLE else [another, row["default"]]
        texts = [json.dumps(one).strip('"') for one in values if one not in (None, [])]
        err = call(*COMMAND, f"--{name}={texts[0]}", "--result_json=no/r.json", code=2).err
        told = err.splitlines()
        assert "error: --result_json=no/r.json: there is no folder" in told.pop(), (name, texts[0])
        assert all(re.search("no (effect|meaning)|changes only", one) for one in told), told
        if name != "ml_perf_compliance_logging":  # of the other script
            together += [f"--{name}={texts[-1]}"]
    assert len(together) == 138
    out, err = Path("out"), Path("err")
    words = ["allreduce", *together, "--result_json=r.json"]
    with Forked(cnnbench, words, out, err) as process:
        assert process.wait(120) == 0, err.read_text()
    assert "# Wrong values: 0 of " in out.read_text()
    assert "--variable_update, " in err.read_text()
    assert json.loads(Path("r.json").read_text())["config"].keys() >= {"model", "all_reduce_spec"}


def test_an_interrupted_run_keeps_what_it_measured(tmp_path, interrupt):
    path = tmp_path / "r.json"
    flags = ["--all_reduce_spec=copy", "--num_gpus=2", "--sizes=1K:32M:x2"]
    flags += [f"--result_json={path}"]
    once = lambda line: line.split()[:1] == ["2048"]  # noqa: E731
    out = interrupt([*COMMAND, *flags], signal.SIGTERM, once)
    assert "Wrong values" not in out
    document = json.loads(path.read_text())
    assert document["status"] == "interrupted"
    assert [point["bytes"] for point in document["points"]][:2] == [1024, 2048]
    assert all(1 <= len(point["seconds"]) <= 20 for point in document["points"])
