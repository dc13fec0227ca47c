"""Stand-ins of the programs that the scripts of CI jobs call: ``cnnbench gate`` and ``python``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# Compares the numbers in the file `speed` of the merge base and of the head, as cnnbench gate
# compares measured speeds. Writes the words of the command line and both numbers into the
# comment, so that tests see what was compared.
_GATE = """#!{python} -IS
import json, pathlib, subprocess, sys

def git(*words):
    return subprocess.check_output(["git", *words], text=True).strip()

words = sys.argv[2:]
base, head = words[:2]
sides = [git("merge-base", base, head), git("rev-parse", head + "^{{commit}}")]
speeds = [float(git("show", side + ":speed")) for side in sides]
accepted = [word for word in words if word.startswith("--accept=")]
verdict = "same" if speeds[1] > 0.95 * speeds[0] else "accepted" if accepted else "slower"
(results,) = (word.partition("=")[2] for word in words if word.startswith("--results="))
pathlib.Path(results).mkdir()
answer = {{"words": words, "sides": sides, "verdict": verdict}}
pathlib.Path(results, "answer.json").write_text(json.dumps(answer))
pathlib.Path(results, "comment.md").write_text(f"### {{verdict}} {{sides[1]}}\\n")
sys.exit(verdict == "slower")
"""


class Answer(NamedTuple):
    """What a job did: its exit code, and the words, commits and verdict of the gate."""

    code: int
    words: list[str]
    sides: list[str]
    verdict: str


def install(folder: Path) -> None:
    """Writes the stand-ins into a folder, which then comes first in the PATH of jobs."""
    folder.mkdir(exist_ok=True)
    programs = {"cnnbench": _GATE.format(python=sys.executable), "python": "#!/bin/sh\n"}
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def run_script(script: str, programs: Path, place: Path, variables: dict[str, str]) -> int:
    """Runs the script of a job in a folder with the stand-ins. Returns its exit code."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment = {**kept, **variables, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, check=False)
    return done.returncode
