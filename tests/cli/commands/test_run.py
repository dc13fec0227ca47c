"""`cnnbench` as a process: streams, exit codes, and what an interruption leaves behind.

Tests cnnbench/cli/running.py, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import sys

import pytest
from forked import finished

from cnnbench.cli import main
from cnnbench.errors import BenchmarkError

SECONDS = 240
BASE = (sys.executable, "-m", "cnnbench", "--device=cpu", "--model=lenet", "--batch_size=2")


@pytest.mark.slow
def test_a_run_prints_the_report_and_nothing_else():
    command = [*BASE, "-num_batches=10", "-num_warmup_batches=1", "-num_gpus", "2"]
    command.append("--peak_flops=1e12")
    done = finished(command, seconds=SECONDS)
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"TensorFlow:  2\.\d+", lines[0])
    assert lines[1] == "Model:       lenet"
    assert "Devices:     ['/cpu:0', '/cpu:1']" in lines
    row = re.compile(r"\d+\timages/sec: \d+\.\d \+/- \d+\.\d \(jitter = \d+\.\d\)\t\d+\.\d{3}")
    assert row.fullmatch(lines[-4])
    assert re.fullmatch(r"total images/sec: \d+\.\d\d", lines[-2])
    assert lines[-1] == "-" * 64
    # Whatever is said beside it is ours; TensorFlow's chatter is kept away.
    beside = [line for line in done.stderr.splitlines() if not line.startswith("cnnbench: ")]
    if lines[0] == "TensorFlow:  2.18":  # calls it an error that there is no GPU
        beside = [line for line in beside if not re.match(r"E\d{4} |[\d-]+ [\d:.]+: E ", line)]
    assert beside == []


def test_an_interrupted_run_keeps_what_it_measured(tmp_path, interrupt):
    path = tmp_path / "record.json"
    flags = ["--num_batches=1000000", "--num_warmup_batches=1", "--peak_flops=1e12"]
    flags += [f"--result_json={path}"]
    once = lambda line: line.startswith("20\t")  # noqa: E731
    out = interrupt([*BASE[3:], *flags], signal.SIGQUIT, once)
    assert "total images/sec" not in out
    record = json.loads(path.read_text())
    assert record["status"] == "interrupted"
    assert len(record["step_seconds"]) >= 20
    assert len(record["losses"]) == len(record["step_seconds"])


@pytest.mark.usefixtures("quick_start")
def test_a_diverging_run_exits_with_4_and_one_line(call):
    flags = ["--init_learning_rate=1e9", "--num_batches=30", "--quiet_conditions=all"]
    out, err = call(*BASE[3:], *flags, code=4)
    assert "total images/sec" not in out
    (line,) = err.splitlines()
    assert re.match(r"cnnbench: error: loss is (nan|inf|-inf) at (warm-up )?step \d+; ", line)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("argv", [[], ["--num_batches=7"]])
def test_without_flags_a_terminal_is_told_what_runs_and_how_long(argv, monkeypatch):
    def build(*args, **kwargs):
        raise BenchmarkError("built")

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("cnnbench.run.driver.benchmark_cnn.BenchmarkCNN", build)
    for stream, told in ((Terminal(), not argv), (io.StringIO(), False)):
        with contextlib.redirect_stderr(stream):
            assert main(argv) == 4
        text = stream.getvalue()
        assert ("no flags: trains trivial" in text) == told
        if told:
            assert re.search(r"10 warm-up and 100 timed steps of 32 images; about \d+ s", text)
            assert "--help" in text


# 3520 images of 618 kB each and 25.2 MFLOP: 4.35 s to read, and 4.44 s of one core.
@pytest.mark.parametrize(("cores", "seconds"), [(1, 19), (4, 15), (None, 19)])
def test_the_duration_of_the_default_run_is_estimated_from_its_work(cores, seconds, monkeypatch):
    def build(*args, **kwargs):
        raise BenchmarkError("built")

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("cnnbench.run.driver.benchmark_cnn.BenchmarkCNN", build)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    with contextlib.redirect_stderr(Terminal()) as stream:
        assert main([]) == 4
    assert f"about {seconds} s on idle CPUs" in stream.getvalue()


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (("--model=lenet", "--num_gpus=2"), ["Devices:     2", "--model=lenet", "--num_gpus=2"]),
        (
            ("--find_batch_size", "--batch_size=8"),
            ["Devices:     1", "--find_batch_size=true", "--batch_size=8"],
        ),
        # A ps task needs no network.
        (
            ("--ps_hosts=b:1", "--worker_hosts=a:1", "--job_name=ps"),
            ["--job_name=ps", "--ps_hosts=b:1", "--worker_hosts=a:1"],
        ),
    ],
)
def test_a_planned_run_is_described_with_the_flags_that_were_given(flags, lines, capsys):
    assert main(["--only_check_args", *flags]) == 0
    found = capsys.readouterr().out.splitlines()
    assert sorted(line for line in found if line.startswith("--")) == sorted(
        line for line in lines if line.startswith("--")
    )
    assert set(lines) <= set(found)
    assert (found[0] == "Model:       lenet") == ("--model=lenet" in flags)
    assert any(line.startswith("Model:") for line in found) == ("--job_name=ps" not in flags)
