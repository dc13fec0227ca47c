"""Lines of progress and the time left."""

from __future__ import annotations

import io

import pytest

from cnnbench.processes.reporter import Durations, Reporter, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (42.4, "42 s"), (99.4, "99 s"), (300, "5 min"), (7800, "2 h 10 min")],
)
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text


def test_time_left_is_of_what_was_measured():
    durations = Durations()
    assert durations.left([("a", False)]) is None
    assert durations.left([]) == 0
    durations.add("a", False, 10)
    durations.add("a", False, 20)
    assert durations.left([("a", False), ("a", False)]) == 30
    # What is not known yet takes as long as the others did.
    assert durations.left([("a", False), ("b", False)]) == 30
    durations.add("b", False, 1)
    assert durations.left([("b", False)]) == 1
    assert durations.left([("b", True)]) == pytest.approx(31 / 3)


def test_runs_of_other_sweeps_tell_nothing_about_unknown_ones():
    durations = Durations()
    durations.add("old", False, 1000, past=True)
    assert durations.left([("new", False)]) is None
    assert durations.left([("old", False)]) == 1000


def test_lines():
    stream = io.StringIO()
    reporter = Reporter(stream)
    reporter.line("a word")
    reporter.started(3, 24, "resnet50 #1")
    reporter.ended(3, 24, "resnet50 #1", "ok 12.3 images/sec", 42.1, 300.0)
    reporter.ended(24, 24, "lenet", "failed: no good", 3.0, 0.0)
    reporter.ended(1, 24, "x", "ok", 3.0, None)
    assert stream.getvalue() == (
        "cnnbench: a word\n"
        "[3/24] resnet50 #1: ok 12.3 images/sec (42 s) ETA 5 min\n"
        "[24/24] lenet: failed: no good (3 s)\n"
        "[1/24] x: ok (3 s)\n"
    )


def test_what_processes_say_stays_in_its_line():
    stream = io.StringIO()
    reporter = Reporter(stream)
    hostile = "x\n::error::pwn\x1b[2J\r\u2028"
    reporter.line(hostile)
    reporter.line("results-\udcff")
    reporter.ended(1, 2, hostile, hostile, 1.0, None)
    assert stream.getvalue() == (
        "cnnbench: x ::error::pwn [2J\n"
        "cnnbench: results-\\udcff\n"
        "[1/2] x ::error::pwn [2J  : x ::error::pwn [2J   (1 s)\n"
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_what_is_at_work(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    reporter = Reporter(stream)
    reporter.started(1, 2, "a")
    reporter.ended(1, 2, "a", "ok", 1.0, 1.0)
    assert stream.getvalue() == "\r\x1b[K[1/2] a ...\r\x1b[K[1/2] a: ok (1 s) ETA 1 s\n"
    reporter.started(2, 2, "b\x1b[2J\n")
    assert stream.getvalue().endswith("\r\x1b[K[2/2] b [2J  ...")
