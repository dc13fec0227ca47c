"""Command lines shared by commands that measure in pairs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Sequence
from typing import Any

from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import FLAGS, parse_command
from cnnbench.flags.declare import FlagSpec

MOST_PAIRS = 1000
"""Of an experiment."""

RESERVED = ("result_json", "result_csv", "profile_json", "train_dir")
"""Flags of runs to refuse: a second process would resume or overwrite what the first left."""


def parse(
    words: Sequence[str], specs: Sequence[FlagSpec], command: str, hint: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Flags of a command, and other arguments; names the right place of run flags.

    `hint` says where else flags of runs can go; it completes a sentence.
    """
    try:
        return parse_command(words, specs)
    except UsageError:
        own = {spec.name for spec in specs}
        of_runs = {spec.name for spec in FLAGS} - own
        of_runs |= {f"no{name}" for name in of_runs}
        for word in words:
            name = word.lstrip("-").partition("=")[0]
            if word.startswith("-") and name in of_runs:
                raise UsageError(
                    f"--{name} is a flag of the sides, not of {command.split()[0]}: flags of both "
                    f"go behind --, as in cnnbench {command} -- {word}{hint}"
                ) from None
        raise


def without(argv: Sequence[str], names: Container[str], switches: Container[str] = ()) -> list[str]:
    """A command line without some of its flags, up to the dashes; `switches` have no value."""
    found: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return [*found, word, *words]
        name, equals, _ = word.lstrip("-").partition("=")
        if not word.startswith("-") or (name not in names and name not in switches):
            found.append(word)
        elif not equals and name in names:
            next(words, "")
    return found


def interpreter(flag: str, text: str) -> str:
    """An absolute path; links are not resolved, which would leave a virtual environment."""
    found = shutil.which(text)
    if found is None:
        raise FlagError(flag, text, "is no program that can be started")
    return os.path.abspath(found)
