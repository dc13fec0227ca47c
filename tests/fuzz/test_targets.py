"""A slice of the fuzzing of scripts/fuzz, and what it has found before."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import targets
from covering import slow_if
from forked import finished

CASES = {
    **{"flags": (20, 40), "specs": (300, 300), "pickles": (100, 100), "records": (1, 3)},
    **{"suites": (2, 3), "rules": (60, 120), "run_records": (12, 28), "imports": (12, 110)},
    **{"journals": (100, 100), "plug_ins": (12, 28)},
}
"""Numbers of cases: in the everyday suite, and in all."""
FOUND = [
    ("pickles", 1, 481),  # a place in the memo that takes gigabytes
    ("run_records", 1, 741),  # a text for --stop_at_top_1_accuracy
    ("pickles", 101, 28299),  # a state of an array that crashes NumPy
    ("flags", 1, 107),  # a null character in the name of a file
    ("flags", 101, 12717),  # a name of a folder that is too long for the system
]
"""Target, seed and number of cases that were findings once."""


def test_every_target_has_a_slice() -> None:
    assert CASES.keys() == targets.TARGETS.keys()


@pytest.mark.parametrize(
    ("target", "first", "end"),
    [
        *((target, 0, few) for target, (few, _) in CASES.items()),
        *slow_if(
            lambda _: True,
            [(target, few, every) for target, (few, every) in CASES.items() if few < every],
        ),
    ],
)
def test_a_slice(target: str, first: int, end: int, tmp_path: Path) -> None:
    for number in range(first, end):
        folder = tmp_path / str(number)
        folder.mkdir()
        targets.attempt(target, 0, number, folder)


@pytest.mark.parametrize(("target", "seed", "number"), FOUND)
def test_what_was_found_once(target: str, seed: int, number: int, tmp_path: Path) -> None:
    targets.attempt(target, seed, number, tmp_path)


BROKEN = """
import os, time

TARGETS = {"broken": None, "sound": None}

def attempt(target, seed, number, folder):
    time.sleep(0.05)  # few cases, so that the processors are free for other tests
    if target == "broken" and number == 0:
        raise KeyError("first")
    if target == "broken" and number == 1:
        os.abort()
"""


@pytest.mark.slow
def test_exceptions_and_deaths_are_findings(tmp_path: Path) -> None:
    """The script, in a checkout with one target that raises in its case 0 and aborts in case 1."""
    for folder in ("scripts", "tests/fuzz"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("command_line.py", "fuzz.py"):
        script = shutil.copy(targets.ROOT / "scripts" / name, tmp_path / "scripts" / name)
    (tmp_path / "tests" / "fuzz" / "targets.py").write_text(BROKEN)

    def fuzz(*flags: str) -> tuple[int, list[str]]:
        done = finished([sys.executable, script, "--seed=5", *flags], None)
        return done.returncode, done.stdout.splitlines()

    code, lines = fuzz("--minutes=0.2")
    again = "  scripts/fuzz --seed=5 --target=broken --case="
    assert lines[:2] == ["broken 0: \"KeyError: 'first'\"", f"{again}0"]
    assert lines[2:4] == ["broken 1: the process was ended by SIGABRT", f"{again}1"]
    assert (code, len(lines)) == (1, 6)
    assert [line.split()[0::2] for line in lines[4:]] == [
        ["broken", "cases", "findings"],
        ["sound", "cases", "findings"],
    ]
    assert [line.split()[3] for line in lines[4:]] == ["2", "0"]
    assert fuzz("--target=sound", "--minutes=0.001")[0] == 0
