"""Scripts whose output is piped into a program that does not read all of it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run_script

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_output_that_nobody_reads_ends_a_script(monkeypatch, capsys):
    class Closed(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr("sys.argv", ["scripts/some.py"])
    with contextlib.redirect_stdout(Closed()), pytest.raises(SystemExit) as stopped:
        run_script(lambda words: 0)
    assert stopped.value.code == 141
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("script", "words", "status"), [("count_words", (), -13), ("fuzz", ("--help",), 141)]
)
def test_a_script_in_a_pipe_prints_no_traceback(script, words, status):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        command = [sys.executable, str(SCRIPTS / f"{script}.py"), *words]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (status, b"")


def test_every_script_may_be_piped():
    sources = {path.stem: path.read_text() for path in SCRIPTS.glob("*.py")}
    programs = {name: text for name, text in sources.items() if "__main__" in text}
    del programs["make_environment"]  # prints on standard error only
    assert len(programs) > 10
    for name, text in programs.items():
        assert "    run_script(main" in text or "signal.SIGPIPE" in text, name
