"""The progress line with a clock of our own, and messages that keep clear of it.

Tests cnnbench/base/terminal.py.
"""

from __future__ import annotations

import io

import pytest

from cnnbench.base import terminal
from cnnbench.base.terminal import (
    ChildProcessReporter,
    MessageWriter,
    ProgressLine,
    print_notice,
    redraw_running_process,
)

ERASE = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def _ordinary_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


def started(stream, style="auto", label="training"):
    """A line that was drawn at the first of ten steps."""
    bar = ProgressLine(stream, style, clock=Clock())
    bar.start(label, 10)
    bar.update(1)
    return bar


def drawn(stream):
    return [line for line in stream.getvalue().split(ERASE) if line]


def test_draws_at_most_ten_times_a_second():
    stream, clock = Terminal(), Clock()
    bar = ProgressLine(stream, clock=clock)
    bar.start("training", 1000)
    for step in range(1, 1001):
        clock.now += 0.001
        bar.update(step)
    assert 9 <= len(drawn(stream)) <= 10


def test_line_is_cut_to_the_terminal():
    stream = Terminal()
    started(stream, label="x" * 200)
    assert len(drawn(stream)[0]) == 79


def test_finish_leaves_nothing_on_the_line_and_an_update_draws_it_again():
    stream = Terminal()
    bar = started(stream)
    bar.finish()
    bar.finish()
    assert stream.getvalue().endswith("1/10 [##..................]  10%" + ERASE)
    bar.update(2)
    assert "2/10" in drawn(stream)[-1]


@pytest.mark.parametrize(
    ("stream", "style", "term", "visible"),
    [
        (Terminal(), "auto", "xterm", True),
        (Terminal(), "auto", "dumb", False),
        (io.StringIO(), "auto", "xterm", False),
        (io.StringIO(), "on", "dumb", True),
        (Terminal(), "off", "xterm", False),
    ],
)
def test_where_it_shows(stream, style, term, visible, monkeypatch):
    monkeypatch.setenv("TERM", term)
    started(stream, style)
    assert bool(stream.getvalue()) == visible


def test_terminal_that_goes_away_does_not_end_the_run():
    class Gone(Terminal):
        def write(self, text):
            raise OSError(5, "Input/output error")

    bar = started(Gone())
    bar.update(2)
    bar.finish()
    closed = Terminal()
    closed.close()
    ProgressLine(closed, "on", clock=Clock()).update(1)


def test_messages_clear_the_progress_line_first():
    stream = Terminal()
    started(stream)
    messages = MessageWriter(stream)
    before = stream.getvalue()
    terminal.silence_warnings([])
    messages.notice("two\nlines::error::pwn\x1b[2J \udcff")
    messages.warning("noisy machine", "load")
    terminal.silence_warnings(["steal"])
    messages.warning("a busy hypervisor", "steal")
    terminal.silence_warnings([])
    messages.error("no\x1b memory")
    assert stream.getvalue() == (
        before + ERASE + "cnnbench: two lines::error::pwn [2J \\udcff\n"
        "cnnbench: warning: noisy machine (--quiet_conditions=load silences this)\n"
        "cnnbench: error: no  memory\n"
    )


def test_lines_of_processes():
    stream = io.StringIO()
    reporter = ChildProcessReporter(stream)
    reporter.show_started(3, 24, "resnet50 #1")
    reporter.report_ended(3, 24, "resnet50 #1", "ok 12.3 images/sec", 42.1, 300.0)
    reporter.report_ended(24, 24, "lenet", "failed: no good", 3.0, 0.0)
    reporter.report_ended(1, 24, "x", "ok", 3.0, None)
    assert stream.getvalue() == (
        "cnnbench: [3/24] resnet50 #1: ok 12.3 images/sec (42 s) ETA 5 min\n"
        "cnnbench: [24/24] lenet: failed: no good (3 s)\n"
        "cnnbench: [1/24] x: ok (3 s)\n"
    )


def test_a_terminal_shows_what_is_at_work():
    stream, clock = Terminal(), Clock()
    reporter = ChildProcessReporter(stream, clock)
    reporter.show_started(1, 2, "a")
    reporter.report_ended(1, 2, "a", "ok", 1.0, 1.0)
    assert drawn(stream) == ["[1/2] a ... 0 s", "cnnbench: [1/2] a: ok (1 s) ETA 1 s\n"]
    reporter.show_started(2, 2, "b\x1b[2J\n")
    assert drawn(stream)[-1] == "[2/2] b [2J  ... 0 s"
    reporter.hide()


def test_the_line_of_a_process_is_drawn_once_a_second_until_it_is_hidden():
    stream, clock = Terminal(), Clock()
    reporter = ChildProcessReporter(stream, clock)
    reporter.show_started(15, 32, "pair 8", 60.0, "pair 8/16, throughput +1.2 % so far")
    for _ in range(7):
        clock.now += 0.25
        redraw_running_process()
    head = "pair 8/16, throughput +1.2 % so far ..."
    assert drawn(stream) == [f"{head} 0 s, 60 s left", f"{head} 1 s, 59 s left"]
    # Whatever this process prints begins on an empty line, and the line comes back.
    print_notice("interrupted")
    assert stream.getvalue().endswith(f"59 s left{ERASE}")
    clock.now += 60
    redraw_running_process()
    assert drawn(stream)[-1] == f"{head} 62 s"
    reporter.hide()
    clock.now += 60
    redraw_running_process()
    assert stream.getvalue().endswith(f"62 s{ERASE}")


def test_wide_characters_do_not_make_the_line_longer_than_the_terminal():
    stream = Terminal()
    started(stream, label="訓練" * 50)
    assert drawn(stream)[0] == "訓練" * 19 + "訓"  # 39 characters of two columns


@pytest.mark.parametrize(
    ("total", "first", "done", "seconds", "images", "line"),
    [
        (4, 1, 1, 0.0, 8, "x 1/4 [#####...............]  25%"),
        (4, 1, 1, 2.0, 8, "x 1/4 [#####...............]  25%"),
        # 24 steps in 12 s: 2 steps/s, 16 images/s, 75 steps left.
        (100, 1, 25, 12.0, 8, "x 25/100 [#####...............]  25%  16.0 images/sec  ETA 0:00:38"),
        # One step in 2 s, and 2 further steps.
        (4, 1, 2, 2.0, None, "x 2/4 [##########..........]  50%  ETA 0:00:04"),
        (4, 1, 2, 2.0, 0, "x 2/4 [##########..........]  50%  0.0 images/sec  ETA 0:00:04"),
        # 2 steps in 1,000 s, and 13 further steps take 6,500 s.
        (16, 1, 3, 1e3, 8, "x 3/16 [###.................]  19%  0.0 images/sec  ETA 1:48:20"),
        # 2 steps in 1,200 s, and 12 further steps take two hours.
        (15, 1, 3, 1200.0, None, "x 3/15 [####................]  20%  ETA 2:00:00"),
        (2, 1, 3, 1.0, None, "x 3/2 [####################] 100%  ETA 0:00:00"),
        (0, 1, 2, 1.0, None, "x 2/0 [####################] 100%  ETA 0:00:00"),
    ],
)
def test_lines_by_hand(total, first, done, seconds, images, line):
    stream, clock = Terminal(), Clock()
    bar = ProgressLine(stream, clock=clock)
    bar.start("x", total, images)
    clock.now += 1000  # the first step, which spoils no estimate
    bar.update(first)
    bar.finish()
    clock.now += seconds
    assert bar.update(done) is True
    assert drawn(stream)[-1] == line


def test_silent_lines_and_messages():
    assert ProgressLine.silent().update(1) is False
    MessageWriter.silent().notice("x")
    stream = io.StringIO()
    messages = MessageWriter(stream)
    messages.write_unprefixed("file:1: x\n y")
    messages.error("x", "more", "and more")
    assert stream.getvalue() == (
        "file:1: x  y\ncnnbench: error: x\ncnnbench: more\ncnnbench: and more\n"
    )
