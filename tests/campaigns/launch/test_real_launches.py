"""A launch of real processes: no process or port is left. Those that fail: test_session.py."""

from __future__ import annotations

import re
import socket
import uuid
from pathlib import Path

import pytest
from forked import Forked, cnnbench

JOB = ["--variable_update=distributed_all_reduce", "--all_reduce_spec=copy", "--device=cpu"]
SHORT = ["--model=trivial", "--batch_size=1", "--num_batches=1", "--num_warmup_batches=0"]


def commands_with(mark: str) -> list[str]:
    """Of the processes whose command line has a mark in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [command] if mark in command else []
    return found


@pytest.mark.timeout(250)
def test_nothing_is_left(tmp_path):
    mark = f"mark={uuid.uuid4().hex}"
    words = ["launch", "--workers=2", f"--log_dir={tmp_path / 'logs'}"]
    words += ["--", *JOB, *SHORT, f"--result_label={mark}"]
    out, err = tmp_path / "out", tmp_path / "err"
    code, errors = Forked(cnnbench, words, out, err).wait(200), err.read_text()
    assert code == 0, errors
    assert commands_with(mark) == []
    # Where the job has met, its ports are in the log of the worker that served.
    ports = re.findall(r"localhost:(\d+)", errors)
    assert ports
    for port in set(ports):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("localhost", int(port)))
