"""Streams that take nothing, and text that a terminal or a build would obey."""

import errno
import io
import sys

import pytest

from cnnbench import cli
from cnnbench.errors import BenchmarkError
from cnnbench.text.terminal import LineWriter, is_terminal, print_message, print_result


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
SAID = "cannot write to standard output: No space left on device"


def test_a_closed_stream_takes_nothing_and_is_no_terminal():
    LineWriter(None).lines(["gone"])
    assert not is_terminal(None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FULL, f"cnnbench: error: {SAID}\n"),
        (BrokenPipeError(), ""),
        (ValueError("I/O operation on closed file"), None),
    ],
)
def test_output_that_cannot_be_written_is_told_once_and_ends_nothing(
    monkeypatch, capsys, error, said
):
    stream = Faulty(error)
    monkeypatch.setattr(sys, "stdout", stream)
    writer = LineWriter(stream)
    writer.lines(["one"])
    writer.lines(["two"])
    assert stream.tried == 1
    expected = f"cnnbench: error: cannot write to standard output: {error}\n"
    assert capsys.readouterr().err == (expected if said is None else said)


def test_what_a_command_is_for_must_be_written(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Faulty(FULL))
    with pytest.raises(BenchmarkError, match=SAID):
        print_result("text")
    monkeypatch.setattr(sys, "stdout", Faulty(BrokenPipeError()))
    with pytest.raises(BrokenPipeError):
        print_result("text")
    monkeypatch.setattr(sys, "stdout", None)
    print_result("text")


@pytest.mark.parametrize("text", ["text", "text\n"])
def test_a_product_ends_with_its_line(capsys, text):
    print_result(text)
    assert capsys.readouterr().out == "text\n"


def test_messages_stay_one_inert_line(capsys):
    print_message("notice: a\n::error file=app.py::pwned\x1b[2J \udcff.json")
    assert capsys.readouterr().err == (
        "cnnbench: notice: a ::error file=app.py::pwned [2J \\udcff.json\n"
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
