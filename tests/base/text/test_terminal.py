"""Standard output of commands; tests/cli/test_cli.py has what happens when it is lost.

Tests cnnbench/base/terminal.py.
"""

import contextlib
import io
import os
import sys
from pathlib import Path

import pytest

from cnnbench.base.terminal import (
    ErrorStoringStream,
    LineWriter,
    is_terminal,
    print_result,
    tolerating_output_errors,
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
    kept.take_descriptor()
    kept.write("text")
    assert stream.getvalue() == "text"


def test_a_stream_with_a_copy_of_its_descriptor_ignores_later_redirections(tmp_path: Path) -> None:
    first, later = tmp_path / "first", tmp_path / "later"
    with open(first, "w") as stream, open(later, "w") as other:
        kept = ErrorStoringStream(stream)
        kept.take_descriptor()
        os.dup2(other.fileno(), stream.fileno())
        kept.write("text\n")
        kept.flush()
    assert (first.read_text(), later.read_text()) == ("text\n", "")
