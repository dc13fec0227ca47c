"""Standard output of commands; tests/cli/test_cli.py has what happens when it is lost.

Tests cnnbench/base/terminal.py.
"""

import contextlib
import fcntl
import io
import os
import struct
import sys
import termios
from pathlib import Path

import pytest

from cnnbench.base.terminal import (
    ErrorStoringStream,
    LineWriter,
    is_terminal,
    line_width,
    print_result,
    tolerating_output_errors,
    wrap_text,
)


class Left(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError


def test_a_reader_that_leaves_ends_what_only_prints():
    with (
        contextlib.redirect_stdout(Left()),
        tolerating_output_errors(),
        pytest.raises(BrokenPipeError),
    ):
        print_result("text")
    with contextlib.redirect_stdout(None), tolerating_output_errors() as out:
        print_result("text")
        LineWriter(None).write_lines(["gone"])
        assert out is None
    assert not is_terminal(None)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_a_plugin_closed_is_lost_once(capsys, name):
    closed = io.StringIO()
    closed.close()
    with getattr(contextlib, f"redirect_{name}")(closed):
        with tolerating_output_errors() as out:
            for _ in range(2):
                print("of a plug-in", file=getattr(sys, name))
            assert isinstance(out.lost, ValueError) == (name == "stdout")
        assert getattr(sys, name) is closed
    said = "cnnbench: error: cannot write to standard output: I/O operation on closed file\n"
    assert capsys.readouterr().err == (said if name == "stdout" else "")


def test_a_standard_stream_is_otherwise_the_stream(tmp_path):
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        with contextlib.redirect_stdout(stream), tolerating_output_errors():
            assert sys.stdout.fileno() == stream.fileno()
            assert not is_terminal(sys.stdout)
            print_result("caf\u00e9")  # which the encoding lacks
    assert (tmp_path / "out").read_text() == "caf\\xe9\n"


@pytest.mark.parametrize("text", ["text", "text\n"])
def test_a_product_ends_with_its_line(capsys, text):
    print_result(text)
    assert capsys.readouterr().out == "text\n"


def test_a_stream_without_a_descriptor_stays_as_it_is() -> None:
    stream = io.StringIO()
    kept = ErrorStoringStream(stream)
    kept.duplicate_descriptor()
    kept.write("text")
    assert stream.getvalue() == "text"


def test_a_stream_with_a_copy_of_its_descriptor_ignores_later_redirections(tmp_path: Path) -> None:
    first, later = tmp_path / "first", tmp_path / "later"
    with open(first, "w") as stream, open(later, "w") as other:
        kept = ErrorStoringStream(stream)
        kept.duplicate_descriptor()
        os.dup2(other.fileno(), stream.fileno())
        kept.write("text\n")
        kept.flush()
    assert (first.read_text(), later.read_text()) == ("text\n", "")


def test_what_was_written_before_a_copy_of_the_descriptor_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with open(path, "w", encoding="latin-1", errors="replace") as stream:
        stream.write("before\n")
        kept = ErrorStoringStream(stream)
        kept.duplicate_descriptor()
        assert path.read_bytes() == b"before\n"
        kept.write("\xe9 \u20ac\n")  # a line is written at once
        assert path.read_bytes() == b"before\n\xe9 ?\n"


class Narrow(io.StringIO):
    """A stream that does not know its encoding and takes only ASCII."""

    def write(self, text):
        text.encode("ascii")
        return super().write(text)


def test_characters_that_an_encoding_lacks_are_escaped_and_the_others_are_not(tmp_path):
    with open(tmp_path / "out", "w", encoding="latin-1") as stream:
        with contextlib.redirect_stdout(stream):
            print_result("\xe9 \u20ac")
    assert (tmp_path / "out").read_bytes() == b"\xe9 \\u20ac\n"
    stream = Narrow()
    LineWriter(stream).write_lines(["\xe9 a"])
    assert stream.getvalue() == "\\xe9 a\n"


def test_after_a_failure_no_line_is_written():
    class Full(io.StringIO):
        calls = 0

        def write(self, text):
            self.calls += 1
            raise OSError(28, "No space left on device")

    stream = Full()
    writer = LineWriter(stream)
    for _ in range(2):
        writer.write_lines(["a", "b"])
    assert stream.calls == 1


def test_only_the_first_error_of_a_stream_is_kept_and_told():
    errors, told = [OSError(28, "full"), OSError(5, "lost")], []

    class Failing(io.StringIO):
        def write(self, text):
            raise errors[len(told)]

        def flush(self):
            raise errors[1]

    kept = ErrorStoringStream(Failing(), told.append)
    assert kept.write("text") == 4
    kept.flush()
    kept.write("more")
    assert (kept.lost, told) == (errors[0], errors[:1])


@pytest.mark.parametrize(
    ("columns", "width"),
    [("120", 120), ("41", 41), ("39", 40), ("0", 100), ("", 100), ("x", 100), ("\u00b2", 100)],
)
def test_widths_of_lines_without_a_terminal(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    with contextlib.redirect_stdout(io.StringIO()):
        assert line_width() == width


@pytest.mark.parametrize(("columns", "width"), [(61, 61), (20, 40), (0, 100)])
def test_the_width_of_a_line_is_that_of_the_terminal(columns, width, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(theirs, "w") as stream, contextlib.redirect_stdout(stream):
        assert line_width() == width
        monkeypatch.setenv("COLUMNS", "70")
        assert line_width() == 70
    os.close(ours)


def test_text_is_broken_between_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    words = "a-b " * 12 + "x" * 45
    lines = ["a-b a-b a-b a-b a-b a-b a-b a-b a-b", "a-b a-b a-b", "x" * 45]
    assert wrap_text(words) == [lines[0] + " a-b", "a-b a-b", lines[2]]
    assert wrap_text(words, "  ") == [f"  {line}" for line in lines]
    assert wrap_text(words, "  ", "") == [f"  {lines[0]}", *lines[1:]]
    assert wrap_text(f"{'x' * 34} ab-cdef") == ["x" * 34, "ab-cdef"]
    assert wrap_text("", "  ") == [""]


def test_a_stream_whose_device_is_full_goes_to_the_null_device():
    with open("/dev/full", "w") as stream:
        LineWriter(stream).write_lines(["lost"])
        there = os.fstat(stream.fileno())
        assert os.path.samestat(there, os.stat(os.devnull))
        print("which no longer fails", file=stream, flush=True)
