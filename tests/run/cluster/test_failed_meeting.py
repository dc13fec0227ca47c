"""A process that cannot meet the others ends with its line, and TensorFlow is never imported."""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from cnnbench.base.ports import ReservedPorts

SECONDS = 120.0
"""For a process that starts, waits for a second and ends; the stand-ins wait for ever."""

MODEL = ("--model=trivial", "--batch_size=2")
REDUCED = (*MODEL, "--variable_update=distributed_all_reduce", "--all_reduce_spec=xring")
COLLECTIVE = (*MODEL, "--variable_update=collective_all_reduce")


@pytest.fixture
def unimportable(tmp_path):
    """A folder for PYTHONPATH whose TensorFlow and Keras leave a file and never load."""
    folder = tmp_path / "stand-ins"
    folder.mkdir()
    for name in ("tensorflow", "keras"):
        code = f"import time\nopen({str(tmp_path / 'imported')!r}, 'w').close()\ntime.sleep(1e6)\n"
        (folder / f"{name}.py").write_text(code)
    return folder


CASES = (
    (REDUCED, 0),  # drives the others
    (REDUCED, 1),  # serves
    (COLLECTIVE, 0),
    (COLLECTIVE, 1),
    (("allreduce", "--sizes=64"), 0),
)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 30)
def test_nothing_is_loaded_before_the_processes_have_met(unimportable, tmp_path):
    """All of them wait at the same time, each for a job of its own."""
    with ReservedPorts(2 * len(CASES)) as ports, contextlib.ExitStack() as stack:
        started = []
        for number, (words, task) in enumerate(CASES):
            hosts = [f"localhost:{port}" for port in ports.numbers[2 * number : 2 * number + 2]]
            own = [f"--worker_hosts={','.join(hosts)}", "--job_name=worker", f"--task_index={task}"]
            record = tmp_path / f"record{number}.json"
            flags = ["--cluster_timeout=1", "--device=cpu", f"--result_json={record}"]
            process = subprocess.Popen(
                [sys.executable, "-m", "cnnbench", *words, *own, *flags],
                env={**os.environ, "PYTHONPATH": str(unimportable)},
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append((process, task, hosts[1 - task], record))
        for process, task, other, record in started:
            out, err = process.communicate(timeout=SECONDS)
            state = "nobody listens there" if task else "has not called"
            missing = f"worker:{1 - task} ({other}): {state}"
            error = f"worker:{task}: waited 1 s (--cluster_timeout) for {missing}"
            assert err == f"cnnbench: error: {error}\n"
            assert (process.returncode, out) == (4, "")
            if task == 0:
                assert json.loads(record.read_text())["error"]["message"] == error
    assert not (tmp_path / "imported").exists()
