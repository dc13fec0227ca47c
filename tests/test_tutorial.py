"""The commands of docs/tutorial.md run, and print what the page shows.

The run is real. The processes of the experiment are stand-ins, because 18 real processes would take
minutes. The installation is checked by .ci/run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from forked import finished

from cnnbench.campaigns.ab.side import AbSide
from cnnbench.cli import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # of CPU time it takes 15 s; a busy machine needs far longer
    pytest.mark.usefixtures("quick_processes", "quick_answers"),
]

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
REGRESSION = "\nexit code 1: a regression\n"
MACHINE = re.compile(r"cnnbench: (?:warning: .*|.*--quiet_conditions=.*)\n?")
"""Lines about the machine's state (load, pauses, clock, memory) and about unsteady step times."""


def examples():
    """Each example in the order of the page: a command line, and the lines that it prints; for
    lines of a shell that print nothing, the lines and None.
    """
    text = PAGE.read_text(encoding="utf-8")
    for block in re.findall(r"^```\n((?:\$|git) .*?)^```", text, re.S | re.M):
        if block.startswith("git"):
            yield block, None
        else:
            command, _, printed = re.sub(r" \\\n +", " ", block[2:]).partition("\n")
            yield command, printed


def masked(line):
    """A line without its numbers, folders and order of the sides, and with single spaces.

    The sides of a pair run in random order; a time has one unit or two.
    """
    line = re.sub(r"[+-]?\d+(?:[,.]\d+)*(?:e[+-]?\d+)?", "N", line)
    line = re.sub(r"(N (min|s|ms|h) ?)+", "TIME ", line)
    line = re.sub(r"(pair|burn-in) N [AB]:", r"\1 N SIDE:", line)
    line = re.sub(r"-{4,}", "----", line)
    line = re.sub(r"measured: (N x )?matmul NxNxN", "measured: matmul NxNxN", line)
    line = re.sub(r"N [MG]iB", "N MiB", line)
    # Only if it differs from the mean.
    line = re.sub(r"; paired change at the median step N %", "", line)
    return " ".join(re.sub(r"\S*/(?=\w+\.html)", "", line).split())


def shows(printed, actual):
    """Whether the lines of an example are those of one stream; `...` stands for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(masked(line)) + r"\n"
        for line in printed.splitlines()
    )
    return re.fullmatch(pattern, "".join(f"{masked(line)}\n" for line in actual.splitlines()))


@pytest.fixture
def folder(tmp_path, monkeypatch, fake_python):
    """The working directory; processes of an experiment have the speeds of the page.

    In a commit, the network is slower with GELU.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    speeds = {"speed": 160, "by_flag": {"--optimizer=adam": 0.6}}
    Path("fake.json").write_text(json.dumps(speeds))
    command = AbSide.command

    def stand_in(side, record):
        if side.checkout is not None:
            slow = "gelu" in (side.checkout / "nets.py").read_text()
            (side.checkout / "fake.json").write_text(json.dumps({"speed": 80 if slow else 160}))
        return (fake_python, *command(side, record)[1:])

    monkeypatch.setattr(AbSide, "command", stand_in)
    return tmp_path


def run_in_shell(lines):
    """Runs lines in a shell, and returns the folder in which they end."""
    people = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = finished(
        ["sh", "-ec", f"{lines}pwd"], environment={"PATH": path, **dict.fromkeys(people, "a@b")}
    )
    return done.stdout.splitlines()[-1]


def test_the_page_shows_what_its_commands_print(folder, capfd, monkeypatch):
    """In the order of the page: later commands read files of earlier ones."""
    commands = [shlex.split(command)[1] for command, printed in examples() if printed is not None]
    assert commands == ["env", "run", "ab", "compare", "report", "gate", "gate", "gate"]
    for command, printed in examples():
        if printed is None:
            monkeypatch.chdir(run_in_shell(command))
            continue
        capfd.readouterr()
        status = main(shlex.split(command)[1:])
        out, err = capfd.readouterr()
        assert status == (1 if REGRESSION in printed else 0), err
        for stream in (out, err):
            assert "Traceback" not in stream
        for stream, ours in ((out, False), (MACHINE.sub("", err), True)):
            shown = [
                line
                for line in printed.splitlines()
                if line == "..." or line.startswith("cnnbench: ") == ours
            ]
            assert shows("\n".join(shown), stream), f"{command}\n{stream}"
