"""A process that cannot meet the others ends with its line, and TensorFlow is never imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cnnbench.base.jobs.ports import ReservedPorts

SECONDS = 120.0
"""For a process that starts, waits for a second and ends; the stand-ins wait for ever."""

MODEL = ("--model=trivial", "--batch_size=2")
REDUCED = (*MODEL, "--variable_update=distributed_all_reduce", "--all_reduce_spec=xring")
COLLECTIVE = (*MODEL, "--variable_update=collective_all_reduce")


@pytest.fixture
def unimportable(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH whose TensorFlow and Keras leave a file and never load."""
    folder = tmp_path / "stand-ins"
    folder.mkdir()
    for name in ("tensorflow", "keras"):
        code = f"import time\nopen({str(tmp_path / 'imported')!r}, 'w').close()\ntime.sleep(1e6)\n"
        (folder / f"{name}.py").write_text(code)
    return folder


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize(
    ("words", "task"),
    [
        (REDUCED, 0),  # drives the others
        (REDUCED, 1),  # serves
        (COLLECTIVE, 0),
        (COLLECTIVE, 1),
        (("allreduce", "--sizes=64"), 0),
    ],
)
def test_nothing_is_loaded_before_the_processes_have_met(
    words: tuple[str, ...], task: int, unimportable: Path, tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    with ReservedPorts(2) as ports:
        hosts = [f"localhost:{port}" for port in ports.numbers]
        own = [f"--worker_hosts={','.join(hosts)}", "--job_name=worker", f"--task_index={task}"]
        flags = ["--cluster_timeout=1", "--device=cpu", f"--result_json={record}"]
        done = subprocess.run(
            [sys.executable, "-m", "cnnbench", *words, *own, *flags],
            env={**os.environ, "PYTHONPATH": str(unimportable)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    missing = f"worker:{1 - task} ({hosts[1 - task]}): nobody listens there"
    error = f"worker:{task}: waited 1 s (--cluster_timeout) for {missing}"
    assert done.stderr == f"cnnbench: error: {error}\n"
    assert (done.returncode, done.stdout) == (4, "")
    assert not (tmp_path / "imported").exists()
    if task == 0:
        assert json.loads(record.read_text())["error"]["message"] == error
