"""What is made of how a child ended."""

from __future__ import annotations

import functools
import json
import signal
from datetime import datetime, timezone

import pytest
import tensorflow as tf

from cnnbench.driver.benchmark_cnn import _as_benchmark_error
from cnnbench.processes.child import Finished
from cnnbench.processes.outcome import Attempt, is_out_of_memory, judge
from cnnbench.records.run import ErrorInfo, RunRecord


@pytest.fixture
def make_record(lenet_runs):
    """Makes records of three steps."""
    return functools.partial(lenet_runs(), step_seconds=(0.1, 0.1, 0.2))


@pytest.fixture
def outcome(tmp_path):
    """The outcome of a child that ended so, wrote this and said that."""

    def outcome(finished, written=None, said="first\nlast words\n\n", kind="run"):
        record, log = tmp_path / "record", tmp_path / "log"
        record.unlink(missing_ok=True)
        if isinstance(written, RunRecord):
            written = written.to_json()
        if written is not None:
            record.write_text(written)
        log.write_text(said)
        config = {"model": "trivial"}
        start = datetime(2026, 1, 2, tzinfo=timezone.utc)
        command = ("cnnbench", "run", "--model=lenet")
        facts = {"hostname": "here"}
        return judge(
            Attempt(kind, command, config, ("model",), facts, start, record, log, finished)
        )

    return outcome


def error_of(result):
    record = RunRecord.from_dict(result.document)
    assert record.status == "failed"
    assert result.message == record.error.message
    return record.error


def test_a_sound_record_is_kept_as_it_is(outcome, make_record):
    written = make_record().to_dict()
    result = outcome(Finished(0, 1.0, max_rss_bytes=7), json.dumps({**written, "later": 1}))
    assert (result.status, result.message, result.max_rss_bytes) == ("ok", "", 7)
    assert result.document == {**written, "later": 1}


def test_no_record(outcome):
    result = outcome(Finished(0, 1.0))
    assert result.status == "failed"
    assert error_of(result) == ErrorInfo(type="UnusableRecord", message="no record was written")


def test_the_record_of_a_run_without_one_says_what_was_run(outcome):
    record = RunRecord.from_dict(outcome(Finished(3, 1.0)).document)
    assert record.command == ("cnnbench", "run", "--model=lenet")
    assert record.explicit_flags == ("model",)
    assert record.config["model"] == "trivial"
    assert record.environment == {"hostname": "here"}
    assert record.started_at == "2026-01-02T00:00:00+00:00"
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
    result = outcome(Finished(4, 1.0), record)
    assert (result.status != "ok", result.message) == (True, message)
    assert result.document == record.to_dict()


def test_a_record_nested_without_end(outcome):
    assert "nested too deeply" in outcome(Finished(0, 1.0), "[" * 100_000).message


@pytest.mark.parametrize("cut", [1, 20, 500])
def test_a_truncated_record(outcome, make_record, cut):
    text = make_record().to_json()[:-cut] if cut > 1 else "[]"
    result = outcome(Finished(0, 1.0), text)
    assert result.status == "failed"
    assert error_of(result).message.startswith("not a valid record: ")
    assert result.unusable == text.encode()


def test_a_foreign_schema(outcome, make_record):
    result = outcome(Finished(0, 1.0), json.dumps({**make_record().to_dict(), "schema": 9}))
    assert "schema: 9 is not known" in error_of(result).message


def test_an_exit_status_without_a_record(outcome):
    result = outcome(Finished(2, 1.0))
    assert result.status == "failed"
    assert error_of(result) == ErrorInfo(
        type="ExitStatus", message="exit status 2; last log line: last words"
    )


def test_a_failed_record_speaks_for_itself(outcome, make_record):
    error = ErrorInfo(type="NonFiniteLossError", message="loss is nan")
    result = outcome(Finished(4, 1.0), make_record(error=(error.type, error.message)))
    assert (result.status, error_of(result)) == ("failed", error)


def test_a_good_record_of_a_child_that_failed_afterwards(outcome, make_record):
    result = outcome(Finished(4, 1.0), make_record())
    assert result.status == "failed"
    assert error_of(result).type == "ExitStatus"
    assert result.document["step_seconds"] == [0.1, 0.1, 0.2]


def test_time_out_keeps_what_was_measured(outcome, make_record):
    result = outcome(Finished(130, 61.0, timed_out=True), make_record(status="interrupted"))
    assert result.status == "timed_out"
    assert error_of(result) == ErrorInfo(
        type="TimedOut", message="killed after 61 s; last log line: last words"
    )
    assert result.document["step_seconds"] == [0.1, 0.1, 0.2]


def test_time_out_without_a_record(outcome):
    result = outcome(Finished(-9, 61.0, timed_out=True), said="")
    assert error_of(result).message == "killed after 61 s; no output"


def test_a_time_out_is_no_lack_of_memory(outcome):
    result = outcome(Finished(-9, 61.0, timed_out=True, oom_kills=1))
    assert result.status == "timed_out"


def test_interrupted_by_somebody_else(outcome, make_record):
    result = outcome(Finished(130, 1.0), make_record(status="interrupted"))
    assert (result.status, error_of(result).type) == ("killed", "Interrupted")


@pytest.mark.parametrize(
    ("finished", "said", "status", "kind"),
    [
        (Finished(-signal.SIGKILL, 1.0), "", "killed", "Killed"),
        (Finished(-signal.SIGKILL, 1.0, oom_kills=1), "", "out_of_memory", "OutOfMemory"),
        (Finished(-signal.SIGSEGV, 1.0, oom_kills=1), "", "killed", "Killed"),
        (Finished(-signal.SIGABRT, 1.0), "what():  std::bad_alloc", "out_of_memory", "OutOfMemory"),
        (Finished(-signal.SIGABRT, 1.0), "Check failed", "killed", "Killed"),
        (Finished(-signal.SIGSEGV, 1.0), "what():  std::bad_alloc", "killed", "Killed"),
        (Finished(None, 1.0), "", "killed", "Killed"),
        (Finished(None, 1.0, error="x: No such file"), "", "failed", "NotStarted"),
    ],
)
def test_signals(outcome, finished, said, status, kind):
    result = outcome(finished, said=said)
    assert (result.status, error_of(result).type) == (status, kind)


def test_signals_are_named(outcome):
    assert error_of(outcome(Finished(-11, 1.0))).message == (
        "ended by SIGSEGV; last log line: last words"
    )


def test_the_driver_s_own_report_of_too_little_memory_is_one():
    error = _as_benchmark_error(
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9]")
    )
    assert is_out_of_memory(ErrorInfo(type=type(error).__name__, message=str(error)))


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.InvalidArgumentError(None, None, "shapes [9,3] and [7] do not fit"),
        tf.errors.InternalError(None, None, "Failed to launch: memory looked odd"),
        tf.errors.UnimplementedError(None, None, "out of luck"),
        tf.errors.UnavailableError(None, None, "peer is out of memory of us"),
    ],
)
def test_other_errors_of_tensorflow_are_none(error):
    failure = _as_benchmark_error(error)
    assert not is_out_of_memory(ErrorInfo(type=type(failure).__name__, message=str(failure)))


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("MemoryError", "", True),
        ("ResourceExhaustedError", "OOM", True),
        ("BenchmarkError", "TensorFlow: InternalError: CUDA_ERROR_OUT_OF_MEMORY: x", True),
        ("RuntimeError", "out of memory", False),
        ("RuntimeError", "shape mismatch", False),
        ("BenchmarkError", "loss is nan; not out of memory: really", False),
    ],
)
def test_the_allow_list(kind, message, expected):
    assert is_out_of_memory(ErrorInfo(type=kind, message=message)) is expected


ALLREDUCE = {
    "schema": 1,
    "kind": "allreduce",
    "run_id": "x",
    "status": "ok",
    "error": None,
    "started_at": "2026-01-02T00:00:00+00:00",
    "command": [],
    "config": {},
    "explicit_flags": [],
    "placement": None,
    "copies": [],
    "points": [],
    "environment": {},
}


def test_all_reduce_measurements(outcome):
    assert outcome(Finished(0, 1.0), json.dumps(ALLREDUCE), kind="allreduce").status == "ok"
    result = outcome(Finished(0, 1.0), json.dumps(ALLREDUCE), kind="run")
    assert "of the kind 'allreduce'" in result.message


@pytest.mark.parametrize(
    "change", [{"schema": 2}, {"status": "well"}, {"status": "failed"}, {"points": None}]
)
def test_unsound_all_reduce_measurements(outcome, change):
    result = outcome(Finished(0, 1.0), json.dumps({**ALLREDUCE, **change}), kind="allreduce")
    assert result.status == "failed"
    assert (result.document["kind"], result.document["points"]) == ("allreduce", [])
    assert result.document["error"]["type"] == "UnusableRecord"
