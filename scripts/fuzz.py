"""Tests cnnbench with invalid and hostile input; docs/evidence.md has the results.

Usage: scripts/fuzz [OPTIONS]

Runs the targets of tests/fuzz/targets.py in rotation, in processes that may crash or hang; a test
case that takes more than ten seconds is killed. A finding is printed with the command that repeats
it. The exit status is 0 without findings, 1 with findings, 2 for wrong use.

A test damages files of whole campaigns; this command does so 200 times for each campaign:
JOURNAL_EDITS=200 scripts/test tests/cli/commands/test_going_on.py -k damaged_journal
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from command_line import parse_options, run_script

from cnnbench.base.child import exit_sentence
from cnnbench.flags.declare import flag

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/fuzz"), str(ROOT / "tests/helpers")]

CASE_SECONDS = 10.0
START_SECONDS = 120.0  # The first case takes longer, because it loads TensorFlow.
ROUND = 200  # A worker process is replaced after this number of cases.
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Options:
    """Command-line options: targets and durations."""

    minutes: float = flag(1.0, "How long.", minimum=0.0)
    seed: int = flag(1, "Seed of the cases.")
    target: str | None = flag(None, "The only target.")
    case: int | None = flag(None, "The only case of --target, with its traceback.")


def worker(target: str, seed: int, first: int, link: Connection) -> None:
    """Runs cases one after the other; sends the number of each case, and then its problem."""
    attempt = importlib.import_module("targets").attempt
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)  # Hides libjpeg's warnings about damaged images.
    for number in range(first, first + ROUND):
        link.send((number, None))
        with tempfile.TemporaryDirectory() as folder:
            try:
                attempt(target, seed, number, Path(folder))
                problem = ""
            except BaseException as error:
                lines = traceback.format_exception_only(error)
                problem = ascii(" ".join(" ".join(lines).split())[:300])
        link.send((number, problem))


def run_fuzz_round(
    target: str, seed: int, first: int, until: float, *, again: bool = False
) -> tuple[int, list[str]]:
    """Runs fuzz cases of one target in a worker process until a point in time.

    Args:
      again: whether the first case has already been slow once.

    Returns:
      The number of the next case, and the findings, one line each.
    """
    link, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=worker, args=(target, seed, first, theirs))
    findings: list[str] = []
    number, running, patience = first, False, START_SECONDS
    process.start()
    theirs.close()
    try:
        while running or number == first or time.monotonic() < until:
            if not link.poll(patience):
                # A slow case is tried again, because the machine may have been busy.
                if not again:
                    number, more = run_fuzz_round(target, seed, number, until, again=True)
                    return number, findings + more
                findings.append(f"{target} {number}: no end after {patience:.0f} s, twice")
                return number + 1, findings
            try:
                number, problem = link.recv()
            except EOFError:
                break
            running = problem is None
            if not running:
                patience, again = CASE_SECONDS, False
                findings += [f"{target} {number}: {problem}"] if problem else []
                number += 1
    finally:
        process.kill()
        process.join()
    if running:
        findings.append(f"{target} {number}: {exit_sentence('the process', process.exitcode)}")
        number += 1
    return number, findings


def main(arguments: Sequence[str]) -> int:
    """Fuzzes all targets; prints findings, and the number of cases."""
    options = parse_options(Options, __doc__, arguments)
    targets = importlib.import_module("targets")
    seed = options.seed
    if options.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            targets.attempt(options.target, seed, options.case, Path(folder))
        return 0
    names = [options.target] if options.target else list(targets.TARGETS)
    end = time.monotonic() + 60 * options.minutes
    following = dict.fromkeys(names, 0)
    findings: Counter[str] = Counter()
    share = 60 * options.minutes / len(names) / 2
    while time.monotonic() < end:
        for name in names:
            until = min(end, time.monotonic() + share)
            while time.monotonic() < until:
                following[name], found = run_fuzz_round(name, seed, following[name], until)
                for line in found:
                    _, number, *_ = line.split(maxsplit=2)
                    again = f"scripts/fuzz --seed={seed} --target={name} --case={number[:-1]}"
                    print(f"{line}\n  {again}", flush=True)
                    findings[name] += 1
    for name in names:
        print(f"{name:12} {following[name]:8} cases {findings[name]:4} findings")
    return int(findings.total() > 0)


if __name__ == "__main__":
    run_script(main)
