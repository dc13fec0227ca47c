"""Real processes whose input hangs although they are alive."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from cifar10_writer import write_cifar10
from forked import Forked, cnnbench
from jobs import SECONDS, started

PLUGIN = Path(__file__).parents[2] / "plugins" / "gate_plugin.py"
WORKERS = ("worker:1", "worker:0")


@pytest.fixture
def flags(tmp_path):
    draw = np.random.default_rng(1)
    images = draw.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    write_cifar10(tmp_path / "data", images, draw.integers(0, 10, 40))
    return [
        *("--device=cpu", "--model=gate", f"--model_plugin={PLUGIN}", "--quiet_conditions=all"),
        *("--data_name=cifar10", f"--data_dir={tmp_path / 'data'}", "--batch_size=2"),
        *("--num_warmup_batches=1", "--num_batches=100000000", "--display_every=20"),
        "--stall_timeout=6",
    ]


def closed(folder):
    """Replaces the gate by one that nobody opens."""
    os.mkfifo(folder / "fifo")
    os.replace(folder / "fifo", folder / "gate")


def run(tmp_path, flags, order):
    """Starts a job whose worker 1 reads nothing any more after some steps."""
    path = tmp_path / "record.json"
    for name in order:
        (tmp_path / name).mkdir()
        (tmp_path / name / "gate").touch()
    job = started(tmp_path, flags, order, chief_flags=[f"--result_json={path}"])
    return job, path


@pytest.mark.timeout(2 * SECONDS)
def test_a_worker_whose_input_hangs_is_named_by_all(tmp_path, flags):
    job, path = run(tmp_path, [*flags, "--variable_update=collective_all_reduce"], WORKERS)
    with job as tasks:
        tasks.wait_for("worker:0", "\n20\t")
        closed(tmp_path / "worker:1")
        assert set(tasks.wait().values()) == {4}, tasks.errors()
        for name in WORKERS:
            assert "stuck: worker:1 (localhost:" in tasks.printed(name, "err")
    record = json.loads(path.read_text())
    assert record["status"] == "failed"
    assert record["error"]["message"].endswith("waits for its input (--stall_timeout=6)")
    steps = len(record["losses"])
    assert steps >= 20
    assert f"s after step {steps}, waits" in record["error"]["message"]


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("waits", [True, False])
def test_one_process_waits_for_the_input_of_a_worker(tmp_path, flags, waits):
    """Where workers wait for one another the job ends; else it goes on without that one."""
    # The first update of a worker, which may still be under way, may take ten times as long.
    mode = [] if waits else ["--nocross_replica_sync", "--stall_timeout=3"]
    job, path = run(tmp_path, [*flags, *mode], ("worker:1", "ps:0", "worker:0"))
    with job as tasks:
        tasks.wait_for("worker:0", "\n20\t")
        closed(tmp_path / "worker:1")
        if waits:
            assert set(tasks.wait().values()) == {4}, tasks.errors()
            assert "stuck: worker:1 (localhost:" in tasks.printed("ps:0", "err")
            message = json.loads(path.read_text())["error"]["message"]
            assert "stuck: worker:1 (localhost:" in message
            assert "waits for its input" in message
        else:
            tasks.wait_for("worker:0", "worker:1 is lost, the others continue: no progress", "err")
            tasks.wait_for("worker:0", "images/sec", seen=len(tasks.printed("worker:0")))


@pytest.mark.timeout(SECONDS)
def test_a_process_alone_ends_too(tmp_path, flags):
    (tmp_path / "gate").touch()
    path = tmp_path / "record.json"
    given = [*flags, f"--result_json={path}"]
    process = Forked(cnnbench, given, tmp_path / "out", tmp_path / "err", tmp_path)
    try:
        while "\n20\t" not in (tmp_path / "out").read_text():
            assert process.poll() is None, (tmp_path / "err").read_text()
        closed(tmp_path)
        assert process.wait(SECONDS) == 4
    finally:
        process.kill()
        process.wait()
    error = json.loads(path.read_text())["error"]["message"]
    assert error.startswith("stuck: the run: no progress for ")
    assert f"cnnbench: error: {error}\n" in (tmp_path / "err").read_text()
