"""Streams that take nothing, and text that a terminal or a build would obey."""

import errno
import io
import sys
import traceback

import pytest

from cnnbench import cli
from cnnbench.base.text.terminal import (
    LineWriter,
    is_terminal,
    print_error,
    print_notice,
    print_result,
    standard_streams,
)


class Faulty(io.StringIO):
    """A stream of which every write fails."""

    def __init__(self, error):
        super().__init__()
        self.error = error
        self.tried = 0

    def write(self, text):
        self.tried += 1
        raise self.error


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_closed_stream_takes_nothing_and_is_no_terminal():
    LineWriter(None).lines(["gone"])
    assert not is_terminal(None)


ERRORS = [
    (FULL, "No space left on device"),
    (ValueError("I/O operation on closed file"), "I/O operation on closed file"),
]


@pytest.mark.parametrize(("error", "reason"), [*ERRORS, (BrokenPipeError(), "")])
def test_the_loss_of_standard_output_is_told_once_and_ends_nothing(
    monkeypatch, capsys, error, reason
):
    stream = Faulty(error)
    monkeypatch.setattr(sys, "stdout", stream)
    with standard_streams() as out:
        assert out.lost is None
        writer = LineWriter(sys.stdout)
        writer.lines(["one"])
        writer.lines(["two"])
        print("of a plug-in")
        assert out.lost is error
    assert sys.stdout is stream
    said = f"cnnbench: error: cannot write to standard output: {reason}\n"
    assert capsys.readouterr().err == (said if reason else "")


@pytest.mark.parametrize("error", [FULL, BrokenPipeError(), ValueError("closed")])
def test_the_loss_of_standard_error_loses_nothing(monkeypatch, capsys, error):
    stream = Faulty(error)
    monkeypatch.setattr(sys, "stderr", stream)
    with standard_streams() as out:
        print_notice("something")
        print("of a plug-in", file=sys.stderr)
        try:
            raise RuntimeError("surprise")
        except RuntimeError:
            traceback.print_exc()
        print_result("text")
        assert out.lost is None
    assert sys.stderr is stream
    assert stream.tried
    assert capsys.readouterr().out == "text\n"


def test_a_reader_that_leaves_ends_what_only_prints(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Faulty(BrokenPipeError()))
    with standard_streams(), pytest.raises(BrokenPipeError):
        print_result("text")
    monkeypatch.setattr(sys, "stdout", None)
    with standard_streams() as out:
        print_result("text")
        assert out is None


def test_a_standard_stream_is_otherwise_the_stream(monkeypatch, tmp_path):
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with standard_streams():
            assert sys.stdout.fileno() == stream.fileno()
            assert not is_terminal(sys.stdout)
            print_result("caf\u00e9")  # which the encoding lacks
    assert (tmp_path / "out").read_text() == "caf\\xe9\n"


@pytest.mark.parametrize("text", ["text", "text\n"])
def test_a_product_ends_with_its_line(capsys, text):
    print_result(text)
    assert capsys.readouterr().out == "text\n"


def test_messages_stay_one_inert_line(capsys):
    print_error("a\n::error file=app.py::pwned\x1b[2J \udcff.json")
    assert capsys.readouterr().err == (
        "cnnbench: error: a ::error file=app.py::pwned [2J \\udcff.json\n"
    )


@pytest.mark.parametrize("status", [0, 1, 3])
@pytest.mark.parametrize(("error", "usually"), [(FULL, 4), (BrokenPipeError(), cli.BROKEN_PIPE)])
def test_a_verdict_outranks_output_that_is_lost_at_the_end(
    monkeypatch, capsys, status, error, usually
):
    class Late(io.StringIO):
        def flush(self):
            raise error

    monkeypatch.setattr(cli, "_dispatch", lambda argv: status)
    monkeypatch.setattr(sys, "stdout", Late())
    assert cli.main([]) == (status or usually)
