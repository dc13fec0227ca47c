"""A slice of the fuzzing of scripts/fuzz, and what it has found before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import targets

CASES = {
    "flags": 60,
    "specs": 300,
    "pickles": 100,
    "records": 6,
    "suites": 4,
    "run_records": 40,
    "plug_ins": 40,
}
FOUND = [
    ("pickles", 1, 481),  # a place in the memo that takes gigabytes
    ("run_records", 1, 741),  # a text for --stop_at_top_1_accuracy
    ("pickles", 101, 28299),  # a state of an array that crashes NumPy
    ("flags", 1, 107),  # a null character in the name of a file
    ("flags", 101, 12717),  # a name of a folder that is too long for the system
]
"""Target, seed and number of cases that were findings once."""

SCRIPT = targets.ROOT / "scripts/fuzz.py"


def test_every_target_has_a_slice() -> None:
    assert CASES.keys() == targets.TARGETS.keys()


@pytest.mark.parametrize("target", CASES)
def test_a_slice(target: str, tmp_path: Path) -> None:
    for number in range(CASES[target]):
        folder = tmp_path / str(number)
        folder.mkdir()
        targets.attempt(target, 0, number, folder)


@pytest.mark.parametrize(("target", "seed", "number"), FOUND)
def test_what_was_found_once(target: str, seed: int, number: int, tmp_path: Path) -> None:
    targets.attempt(target, seed, number, tmp_path)


BROKEN = """
import os, random, sys, time
sys.path[:0] = [{folder!r}]
import targets

def broken(generator, folder):
    number = int(generator.seeded.split()[-1])
    if number == 1:
        raise KeyError("one")
    if number == 2:
        os.abort()

class Named(random.Random):
    seeded = ""

def generator_of(target, seed, number):
    made = Named(0)
    made.seeded = f"{{number}}"
    return made

targets.generator_of = generator_of
targets.TARGETS = {{"broken": broken}}
sys.argv = [{script!r}, *sys.argv[1:]]
import runpy
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """scripts/fuzz.py with one target that raises in its case 1 and aborts in its case 2."""
    path = tmp_path / "fuzz.py"
    path.write_text(BROKEN.format(folder=str(Path(targets.__file__).parent), script=str(SCRIPT)))
    return path


def test_exceptions_and_deaths_are_findings(program: Path) -> None:
    worker = [sys.executable, str(program), "--worker", "broken", "5", "0"]
    finished = subprocess.run(worker, capture_output=True, text=True, timeout=60)
    assert finished.returncode == -6
    assert finished.stdout.splitlines() == [
        *("begun 0", "done 0 ''"),
        *("begun 1", "done 1 \"KeyError: 'one'\""),
        "begun 2",
    ]


def test_the_script_tells_what_it_tried() -> None:
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), "--minutes=0.02", "--seed=3", "--target=specs"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=SCRIPT.parents[1],
    )
    assert finished.returncode == 0, finished.stdout
    assert finished.stdout.startswith("specs")
    assert finished.stdout.endswith(" 0 findings\n")
