"""What a terminal shows while an experiment runs, on a pseudo-terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cnnbench.campaigns.ab.pairs import standing_text
from cnnbench.judge.compare import METRICS
from cnnbench.records.run import RunRecord

THROUGHPUT = METRICS["throughput"]


def test_the_change_so_far_is_the_median_of_the_pairs(runs: Callable[..., RunRecord]) -> None:
    base, new = ([runs(speed) for speed in speeds] for speeds in ((100, 100, 100), (101, 90, 102)))
    assert standing_text(4, 16, {"a": base, "b": new}, THROUGHPUT) == (
        "pair 4/16, throughput +1.0 % so far"
    )
    assert standing_text(1, 16, {"a": [], "b": []}, THROUGHPUT) == "pair 1/16"


def test_a_metric_that_was_not_measured_is_not_shown(runs: Callable[..., RunRecord]) -> None:
    records = {side: [runs(100)] for side in "ab"}
    assert standing_text(2, 6, records, METRICS["accuracy"]) == "pair 2/6"


PROGRAM = """
import signal, sys
from pathlib import Path
from cnnbench.base.terminal import ChildProcessReporter, print_result
from cnnbench.campaigns.processes.child import Command, execute

signal.signal(signal.SIGINT, signal.default_int_handler)  # The parent may ignore it.

reporter = ChildProcessReporter()
reporter.notice("begin")
try:
    reporter.show_started(1, 2, "pair 1", 30.0, "pair 1/2")
    execute(Command(words=sys.argv[2:], log=Path(sys.argv[1])), 60.0)
except KeyboardInterrupt:
    pass
finally:
    reporter.hide()
print_result("end")
"""


def on_terminal(words: Sequence[str], act: Callable[[int, str], None] | None = None) -> str:
    """Runs a program whose output is a terminal, and returns the output. `act` gets the process id
    and the output so far, whenever there is more.
    """
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        output = ""
        while True:
            try:
                part = os.read(ours, 4096).decode()
            except OSError:  # The program has ended.
                part = ""
            if not part:
                break
            output += part
            if act is not None:
                act(process.pid, output)
        assert process.wait(60) == 0
    os.close(ours)
    return output


def screen(output: str) -> list[str]:
    """The lines that a terminal shows at the end of an output."""
    lines = []
    for line in output.split("\n"):
        shown = line.rstrip("\r").rpartition("\r\x1b[K")[2]
        assert "\x1b" not in shown
        lines.append(shown)
    return lines


@pytest.mark.slow
def test_the_line_is_redrawn_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    sleep = f"{sys.executable} -c 'import time; time.sleep(2.5)'"
    output = on_terminal([str(tmp_path / "log"), "sh", "-c", sleep])
    drawn = re.findall(r"pair 1/2 \.\.\. (\d) s, (\d\d) s left", output)
    assert drawn[0] == ("0", "30")
    assert len({*drawn}) > 1
    assert all(29 <= int(passed) + int(left) <= 31 for passed, left in drawn)
    assert screen(output) == ["cnnbench: begin", "end", ""]


def test_an_interrupt_leaves_nothing_of_the_line(tmp_path: Path) -> None:
    interrupted = []

    def interrupt(pid: int, output: str) -> None:
        if "pair 1/2" in output and not interrupted:
            interrupted.append(pid)
            os.kill(pid, signal.SIGINT)

    output = on_terminal([str(tmp_path / "log"), "sleep", "60"], interrupt)
    assert interrupted
    assert screen(output) == ["cnnbench: begin", "end", ""]
