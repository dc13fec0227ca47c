"""What the command lines of both comparisons have in common."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence

HERE = "(default: the one running this)"


def positive(text: str) -> int:
    """A whole number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: 1 is the least")
    return value


def words(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(word for word in text.split(",") if word)


def words_of(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """A type of arguments: some of the choices, at least one."""

    def chosen(text: str) -> tuple[str, ...]:
        found = words(text)
        if not found or set(found) - set(choices):
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(choices)}")
        return found

    return chosen


def interpreter(text: str) -> str:
    """Path of a program."""
    # Absolute, because measurements run elsewhere, but not resolved: that would leave a venv.
    return os.path.abspath(shutil.which(text) or text)


def common(
    prog: str, description: str, scenarios: Sequence[str], batches: str
) -> argparse.ArgumentParser:
    """A parser with the arguments that every comparison has.

    Args:
      prog: name of the program.
      description: what it does.
      scenarios: what there is to choose from.
      batches: what --batches counts.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--scenarios",
        type=words_of(scenarios),
        default=tuple(scenarios),
        help=f"comma-separated, of {', '.join(scenarios)} (default: all)",
    )
    add("--rounds", type=positive, default=5, help="default: 5; the interval needs 2")
    add("--batches", type=positive, default=20, help=f"{batches} (default: 20)")
    add("--seed", type=int, default=1, help="of the orders (default: 1)")
    add("--timeout", type=float, default=1200.0, help="seconds until a process is killed")
    add(
        "--cnnbench_python",
        type=interpreter,
        default=sys.executable,
        help=f"interpreter with cnnbench {HERE}",
    )
    return parser
