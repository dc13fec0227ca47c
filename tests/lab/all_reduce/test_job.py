"""Reductions between processes of their own."""

from __future__ import annotations

import json

import pytest
from forked import cnnbench
from worker_runs import processes

from cnnbench.base.ports import ReservedPorts
from cnnbench.records.all_reduce import AllReduceRecord
from cnnbench.run.runtime.supervisor import GUARDED

pytestmark = pytest.mark.slow

SHORT = ("--device=cpu", "--sizes=64K", "--num_batches=2", "--num_warmup_batches=0")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("flags", "specs"),
    [
        (["--all_reduce_spec=psgpu,xring"], ["psgpu", "xring"]),
        (["--all_reduce_spec=collective,copy/collective"], ["collective", "copy/collective"]),
    ],
    ids=["one controller", "a step in every worker"],
)
def test_two_processes(tmp_path, flags, specs):
    path = tmp_path / "record.json"
    command = ["allreduce", *SHORT, "--num_gpus=1,2", f"--result_json={path}", *flags]
    with ReservedPorts(2) as ports:
        hosts = ",".join(f"localhost:{port}" for port in ports.numbers)
        job = ["--job_name=worker", f"--worker_hosts={hosts}"]
        programs = [(cnnbench, [*command, *job, f"--task_index={task}"]) for task in range(2)]
        with processes(programs, tmp_path, {GUARDED: "1"}) as started:
            for number, process in enumerate(started):
                assert process.wait(100) == 0, (tmp_path / f"err{number}").read_text()
    printed = (tmp_path / "out0").read_text()
    rows = [line.split() for line in printed.splitlines() if line[:1] == " "]
    sizes = [("65536", "2"), ("65536", "4")]
    assert [(row[0], row[4], row[5]) for row in rows] == [
        (*s, spec) for s in sizes for spec in specs
    ]
    record = AllReduceRecord.from_json(path.read_text())
    tasks = [name.split("/")[3] for name in record.placement.devices]
    assert tasks == ["task:0", "task:0", "task:1", "task:1"]
    assert all(len(point.seconds) == 2 and not point.failed for point in record.points)
    for point in record.points:
        assert point.checked == 2 * point.elements * point.devices
        factor = 2 * (point.devices - 1) / point.devices
        assert point.bus_bandwidth == pytest.approx(factor * point.bytes / point.median_seconds)
    assert record.config["job_name"] == "worker"
    assert json.loads(path.read_text())["status"] == "ok"


@pytest.mark.timeout(120)
def test_all_algorithms_of_a_job_of_one_worker(tmp_path):
    # The device names of the job would make a collective of the controller wait without end.
    with ReservedPorts(1) as ports:
        job = ["--job_name=worker", f"--worker_hosts=localhost:{ports.numbers[0]}"]
        with processes([(cnnbench, ["allreduce", *SHORT, *job])], tmp_path, {}) as (process,):
            assert process.wait(100) == 0, (tmp_path / "err0").read_text()
    printed = (tmp_path / "out0").read_text()
    assert "left out on 2 devices: collective: every worker runs it itself" in printed
    assert {"copy", "xring"} <= {
        line.split()[5] for line in printed.splitlines() if line[:1] == " "
    }
