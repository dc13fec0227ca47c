"""What is made of how a child ended (outcome.py)."""

from __future__ import annotations

import functools
import json
from datetime import datetime, timezone

import pytest

from cnnbench.base.log_lines import library_output_notices
from cnnbench.campaigns.processes.child import ProcessResult
from cnnbench.campaigns.processes.outcome import (
    BenchmarkCommand,
    add_record_and_status,
    blank_record,
)
from cnnbench.campaigns.processes.resolved import ResolvedRun
from cnnbench.flags import Params
from cnnbench.plan import make_plan
from cnnbench.records.run import RunRecord
from cnnbench.run.driver.benchmark_cnn import to_benchmark_error


@pytest.fixture
def make_record(lenet_runs):
    """Makes records of three steps."""
    return functools.partial(lenet_runs(), step_seconds=(0.1, 0.1, 0.2))


@pytest.fixture
def outcome(tmp_path):
    """The outcome of a child that ended so, wrote this and said that."""

    def outcome(ended, written=None, said="first\nlast words\n\n", kind="run"):
        record, log = tmp_path / "record", tmp_path / "log"
        record.unlink(missing_ok=True)
        if isinstance(written, RunRecord):
            written = written.to_json()
        if written is not None:
            record.write_text(written)
        log.write_text(said)
        command = ("cnnbench", "run", "--model=lenet")
        resolved = ResolvedRun(config={"model": "trivial"}, explicit_flags=("model",))
        blank = blank_record(kind, command, resolved)
        process = BenchmarkCommand(words=(), log=log, record=record, blank=blank)
        return add_record_and_status(process, ended, {"hostname": "here"})

    return outcome


def error_of(result):
    record = RunRecord.from_dict(result.document)
    assert record.status == "failed"
    assert result.message == record.error.message
    return record.error


def test_a_sound_record_is_kept_as_it_is(outcome, make_record):
    written = make_record().to_dict()
    result = outcome(ProcessResult(0, 1.0), json.dumps({**written, "later": 1}))
    assert (result.status, result.message) == ("ok", "")
    assert result.document == {**written, "later": 1}


def test_the_record_of_a_run_without_one_says_what_was_run(outcome):
    record = RunRecord.from_dict(outcome(ProcessResult(3, 1.0)).document)
    assert record.command == ("cnnbench", "run", "--model=lenet")
    assert record.explicit_flags == ("model",)
    assert record.config["model"] == "trivial"
    assert record.environment == {"hostname": "here"}
    started = datetime.fromisoformat(record.started_at)
    assert (datetime.now(timezone.utc) - started).total_seconds() < 60
    assert record.step_seconds == ()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (("MemoryError", ""), "MemoryError"),
        (("AssertionError", " \n\x1b"), "AssertionError"),
        (("", ""), "unknown error"),
        (("Error", "x\n::error::pwn"), "x ::error::pwn"),
    ],
)
def test_a_failure_is_always_told_in_one_line(outcome, make_record, error, message):
    record = make_record(error=error)
    result = outcome(ProcessResult(4, 1.0), record)
    assert (result.status != "ok", result.message) == (True, message)
    assert result.document == record.to_dict()


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda text: "[]", "expected an object"),
        (lambda text: text[:-20], ""),
        (lambda text: text[:-500], ""),
        (lambda text: "[" * 100_000, "nested too deeply"),
        (lambda text: json.dumps({**json.loads(text), "schema": 9}), "reads schema 1, not 9"),
    ],
)
def test_what_is_no_record_is_kept_aside(outcome, make_record, cut, message):
    text = cut(make_record().to_json())
    result = outcome(ProcessResult(0, 1.0), text)
    assert result.status == "failed"
    assert error_of(result).message.startswith("not a valid record: ")
    assert message in result.message
    assert result.unusable == text.encode()


LATE, STOPPED = ("timed_out", "TimedOut"), "ended by its time-out"
NAN = {"error": ("NonFiniteLossError", "loss is nan")}
OWN = {"error": ("Interrupted", "own")}
CUT = {"status": "interrupted"}
SIGNAL = "interrupted by a signal"


@pytest.mark.parametrize(
    ("ended", "written", "status", "message", "lost"),
    [
        (ProcessResult(4, 1.0), NAN, ("failed", "NonFiniteLossError"), "loss is nan", ""),
        (ProcessResult(4, 1.0), OWN, ("failed", "Interrupted"), "own", ""),
        (
            ProcessResult(4, 1.0),
            {},
            ("failed", "ExitStatus"),
            "ended with exit code 4; last log line: last",
            "",
        ),
        (ProcessResult(130, 1.0), {}, ("killed", "Interrupted"), "interrupted by", SIGNAL),
        (ProcessResult(130, 61.0, timed_out=True), CUT, LATE, "killed after 61 s", STOPPED),
        (
            ProcessResult(130, 1.0),
            CUT,
            ("killed", "Interrupted"),
            "interrupted by an external",
            SIGNAL,
        ),
    ],
)
def test_the_record_of_a_failed_child_keeps_what_was_measured(
    outcome, make_record, ended, written, status, message, lost
):
    result = outcome(ended, make_record(**written))
    error = error_of(result)
    assert ((result.status, error.type), result.lost) == (status, lost)
    assert error.message.startswith(message)
    assert result.document["step_seconds"] == [0.1, 0.1, 0.2]


ABORTED = "what():  std::bad_alloc"
FATAL = "F0000 00:00:1795490572.139305    7 x.cc:228] Check failed: a == b (1 vs. 2)\n  @  0x7 f()"
KILLED, LOST = ("killed", "Killed"), "killed by SIGKILL"
FULL = ("out_of_memory", "OutOfMemory")


@pytest.mark.parametrize(
    ("ended", "said", "status", "message", "lost"),
    [
        (ProcessResult(0, 1.0), "x", ("failed", "UnusableRecord"), "no record was written", ""),
        (
            ProcessResult(2, 1.0),
            "x\ny\n\n",
            ("failed", "ExitStatus"),
            "ended with exit code 2; last log line: y",
            "",
        ),
        (
            ProcessResult(2, 1.0),
            "y\ncnnbench: at /a.py:1: 1",
            ("failed", "ExitStatus"),
            "line: y",
            "",
        ),
        (ProcessResult(-9, 61.0, True), "", LATE, "killed after 61 s; no output", STOPPED),
        (ProcessResult(-9, 61.0, True, oom_kills=1), "", LATE, "killed after", STOPPED),
        (ProcessResult(-9, 1.0), "", KILLED, "ended by SIGKILL; no output", LOST),
        (
            ProcessResult(-9, 1.0, oom_kills=1),
            "",
            FULL,
            "OOM killer",
            "killed by the OOM killer (SIGKILL)",
        ),
        (ProcessResult(-15, 1.0), "", KILLED, "ended by SIGTERM", "ended by SIGTERM"),
        (ProcessResult(-64, 1.0), "", KILLED, "ended by SIGRTMAX", ""),
        (ProcessResult(130, 1.0), "", ("killed", "Interrupted"), "interrupted by", SIGNAL),
        (ProcessResult(-11, 1.0, oom_kills=1), "x", KILLED, "by SIGSEGV; last log line: x", ""),
        (ProcessResult(-11, 1.0), ABORTED, KILLED, "SIGSEGV", ""),
        (ProcessResult(-6, 1.0), ABORTED, FULL, "SIGABRT, std::bad_alloc", ""),
        (ProcessResult(-6, 1.0), FATAL, KILLED, "SIGABRT; Check failed: a == b (1 vs. 2)", ""),
        (
            ProcessResult(-6, 1.0),
            library_output_notices(FATAL),
            KILLED,
            "SIGABRT; Check failed: a == b (1",
            "",
        ),
        (
            ProcessResult(None, 1.0),
            "",
            KILLED,
            "was killed together with its guard",
            "killed together with its guard",
        ),
        (
            ProcessResult(None, 1.0, error="x: No such"),
            "",
            ("failed", "NotStarted"),
            "x: No such",
            "",
        ),
    ],
)
def test_without_a_record(outcome, ended, said, status, message, lost):
    result = outcome(ended, said=said)
    error = error_of(result)
    assert ((result.status, error.type), result.lost) == (status, lost)
    assert message in error.message


def test_the_driver_s_own_report_of_too_little_memory_is_one(outcome, make_record):
    import tensorflow as tf

    full = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9]")
    error = to_benchmark_error(make_plan(Params()), full)
    record = make_record(error=(type(error).__name__, str(error)))
    assert outcome(ProcessResult(4, 1.0), record).status == "out_of_memory"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("MemoryError", "", True),
        ("ResourceExhaustedError", "OOM", True),
        ("BenchmarkError", "TensorFlow: InternalError: CUDA_ERROR_OUT_OF_MEMORY: x", True),
        ("RuntimeError", "out of memory", False),
        ("BenchmarkError", "loss is nan; not out of memory: really", False),
        ("BenchmarkError", "TensorFlow: UnavailableError: peer is out of memory of us", False),
    ],
)
def test_the_allow_list(outcome, make_record, kind, message, expected):
    result = outcome(ProcessResult(4, 1.0), make_record(error=(kind, message)))
    assert result.status == ("out_of_memory" if expected else "failed")


def test_all_reduce_measurements(outcome, reductions):
    measured = reductions(6.0)
    assert outcome(ProcessResult(0, 1.0), measured.to_json(), kind="allreduce").status == "ok"
    result = outcome(ProcessResult(0, 1.0), measured.to_json(), kind="run")
    assert "of the kind 'allreduce'" in result.message
    unsound = json.dumps({**measured.to_dict(), "points": None})
    result = outcome(ProcessResult(0, 1.0), unsound, kind="allreduce")
    assert (result.document["kind"], result.document["points"]) == ("allreduce", [])
    assert result.document["error"]["type"] == "UnusableRecord"
