"""Signals to every kind of command at every kind of moment; real processes only."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import interrupted
import pytest
from forked import finished
from interrupted import SignalCase

from cnnbench.base.interrupts import SIGNALS

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

# Of commands that import the same slow module, start processes in the same way or write a file in
# the same way, one is shown, and at the first line, where no command is known yet, one for each
# signal; commands/test_interrupts.py interrupts a job; scripts/kills --commands has all cells.
SHOWN = {
    "first line": ("run", "ab", "compare", "launch", "models", "data"),
    "import": ("run", "compare", "sweep --list", "launch", "models", "env"),
    "work": ("run", "ab", "compare", "sweep --list", "report", "models", "env"),
    "last file": ("compare",),
}
CELLS = [
    SignalCase(name, SIGNALS[(place + at) % len(SIGNALS)], moment)
    for at, (moment, names) in enumerate(SHOWN.items())
    for place, name in enumerate(names)
]
"""Each signal at each moment but the last."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    interrupted.make_inputs(folder)
    return folder


@pytest.mark.parametrize("case", CELLS, ids=str)
def test_every_command_obeys_every_signal(case: SignalCase, inputs: Path) -> None:
    assert interrupted.run_and_find_problems(case, inputs) == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_that_the_caller_ignores_stays_ignored(number: signal.Signals) -> None:
    """As nohup does."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        done = finished(SignalCase("env", number, "work").words)
    finally:
        signal.signal(number, before)
    assert json.loads(done.stdout)
    assert done.stderr == ""


OTHER = """
import signal
from cnnbench import __main__, cli

def entry_point():
    assert [*map(signal.getsignal, signal.valid_signals())] == before
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("saved")

entry_point()
"""


@pytest.mark.parametrize("way", ["-c", "-m"])
def test_a_program_that_imports_cnnbench_keeps_its_handlers(way: str, tmp_path: Path) -> None:
    """Also one that looks like a cnnbench command: a part of the package that -m imports first, and
    a text with the name of cnnbench's main function.
    """
    before = "import signal; before = [*map(signal.getsignal, signal.valid_signals())]\n"
    package = tmp_path / "own"
    package.mkdir()
    (package / "__init__.py").write_text(before + "import cnnbench")
    (package / "bench.py").write_text("from own import before\n" + OTHER)
    words = ["-m", "own.bench"] if way == "-m" else ["-c", before + OTHER]
    assert finished([sys.executable, *words], cwd=tmp_path).stdout == "saved\n"


IN_TEXT = """
from cnnbench import cli

cli._dispatch = lambda argv: exec("import os; os.kill(os.getpid(), 15); [*range(9)]")
cli.entry_point()
"""


def test_an_interrupt_in_code_that_python_compiles_is_one(tmp_path: Path) -> None:
    """After it Python would end the program of -m by SIGINT, whatever its exit code."""
    (tmp_path / "in_text.py").write_text(IN_TEXT)
    done = finished([sys.executable, "-m", "in_text"], 130, cwd=tmp_path)
    assert done.stderr == "cnnbench: error: interrupted\n"


METRIC = """
import atexit, os, threading, time
from cnnbench.records.metric import register_metric

@register_metric("three", "", section="memory")
def three(record):
    \"\"\"Three.\"\"\"
    return 3.0

"""
DEEDS = {
    "a thread": "threading.Thread(target=time.sleep, args=(600,)).start()",
    "an exit handler": "atexit.register(time.sleep, 600)",
    "a copy": "if not os.fork():\n    time.sleep(600)",
}


@pytest.mark.parametrize(
    ("deed", "command"),
    [("a thread", "compare"), ("an exit handler", "models"), ("a copy", "compare")],
)
def test_a_command_that_has_answered_ends(deed, command, tmp_path, inputs):
    """Also for who reads its standard output to the end."""
    (tmp_path / "own.py").write_text(METRIC + DEEDS[deed])
    words = {"compare": [inputs / "base", inputs / "base"], "models": ["--data_name=cifar10"]}
    line = [sys.executable, "-m", "cnnbench", command, "--plugin=own.py", *words[command]]
    began = time.monotonic()
    child = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True)
    out, _ = child.communicate(timeout=120)
    assert b"resnet20" in out if command == "models" else b"lenet" in out
    assert child.returncode == (0 if command == "models" else 3)
    assert time.monotonic() - began < 100
