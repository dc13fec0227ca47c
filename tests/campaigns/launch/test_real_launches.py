"""Six launches of real processes, most of which are refused: no process or port is left."""

from __future__ import annotations

import re
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forked import Forked, cnnbench

LAUNCHES, AT_ONCE = 6, 2
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


@pytest.mark.timeout(400)
def test_nothing_is_left(tmp_path):
    mark = f"mark={uuid.uuid4().hex}"

    def launch(number: int) -> tuple[int, str]:
        logs = tmp_path / str(number)
        # The last one trains; the others find in every process that there are no files.
        flags = SHORT if number == LAUNCHES - 1 else [f"--data_dir={tmp_path / 'none'}"]
        words = ["launch", "--workers=2", f"--log_dir={logs}"]
        words += ["--", *JOB, *flags, f"--result_label={mark}"]
        out, err = (tmp_path / f"{number}.{stream}" for stream in ("out", "err"))
        return Forked(cnnbench, words, out, err).wait(200), err.read_text()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(launch, range(LAUNCHES)))
    assert [code for code, _ in results] == [2] * (LAUNCHES - 1) + [0], results[-1]
    assert commands_with(mark) == []
    # Where the job has met, its ports are in the log of the worker that served.
    ports = re.findall(r"localhost:(\d+)", results[-1][1])
    assert ports
    for port in set(ports):
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("localhost", int(port)))
