"""Flags that define A and B of a comparison, and how A and B are made from them."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab.experiment import SIDES
from cnnbench.campaigns.ab.opening import opened_sides
from cnnbench.campaigns.ab.side import AbSide, check_flags_of_commit
from cnnbench.campaigns.ab.worktree import resolve_commit
from cnnbench.campaigns.launch import JobLayout
from cnnbench.cli.commands.command_lines import VARIABLES
from cnnbench.errors import FlagError
from cnnbench.flags import flag

_CHECKOUT = (
    "Run the processes of side A in this folder, or in a temporary worktree of this git "
    "revision. If the folder is a checkout of cnnbench, the code in the folder runs."
)


@dataclass(frozen=True, kw_only=True)
class SideFlags:
    """Flags that define A and B of a comparison, each with its flags and code."""

    a: str = flag("", "Flags for side A only, as one shell word.")
    b: str = flag("", "Flags for side B only, as one shell word.")
    a_python: str | None = flag(
        None, "Interpreter of side A that has cnnbench installed.", path="file"
    )
    b_python: str | None = flag(None, "Interpreter of side B, like --a_python.", path="file")
    a_checkout: str | None = flag(None, _CHECKOUT, path="folder")
    b_checkout: str | None = flag(None, "Code of side B, like --a_checkout.", path="folder")
    a_env: tuple[str, ...] | None = flag(
        None,
        "Environment variable of side A, NAME=VALUE; may be repeated.",
        repeated=True,
        separator="",
    )
    b_env: tuple[str, ...] | None = flag(
        None, "Environment variable of side B, like --a_env.", repeated=True, separator=""
    )

    @property
    def environment_variables(self) -> dict[str, dict[str, str]]:
        """The environment variables in --a_env and --b_env: values by "a" or "b", and by name."""
        by_side: dict[str, dict[str, str]] = {"a": {}, "b": {}}
        for name in VARIABLES:
            for text in getattr(self, name) or ():
                variable, equals, value = text.partition("=")
                if not equals or not variable:
                    raise FlagError(name, "...", "must be NAME=VALUE")
                by_side[name[0]][variable] = value
        return by_side


def interpreter_path(flag: str, text: str) -> str:
    """The absolute path of the Python interpreter in the value `text` of a flag.

    Links are not resolved, because the link may be in a virtual environment.
    """
    path = shutil.which(text)
    if path is None:
        raise FlagError(flag, text, "is not a program that can be started")
    return os.path.abspath(path)


def open_sides(
    options: SideFlags,
    layout: JobLayout | None,
    common: Sequence[str],
    reporter: ChildProcessReporter,
    refuse_equal: bool = False,
) -> AbstractContextManager[dict[str, AbSide]]:
    """Creates A and B from their flags. Returns the context manager that opens them; see
    `opened_sides`. `common` contains the flags of the runs of both.
    """
    values = options.environment_variables
    made = [
        _side_of_flags(options, common, name, layout=layout, variables=values[name])
        for name in SIDES
    ]
    return opened_sides(made, reporter, refuse_equal)


def _side_of_flags(options: SideFlags, common: Sequence[str], name: str, **more: Any) -> AbSide:
    """Creates A or B from the flags whose names begin with `name`, without a worktree. `more` are
    fields of `AbSide` that do not follow from these flags.
    """
    text, python, checkout = (
        getattr(options, flag) for flag in (name, f"{name}_python", f"{name}_checkout")
    )
    try:
        own = tuple(shlex.split(text))
    except ValueError as error:
        raise FlagError(name, text, f"is not a list of flags: {error}") from None
    if python is not None:
        python = interpreter_path(f"{name}_python", python)
    commit = None if checkout is None else resolve_commit(f"{name}_checkout", checkout)
    side = AbSide(
        flags=(*common, *own),
        own=own,
        python=python,
        checkout=None if checkout is None else Path(checkout).resolve(),
        revision=checkout,
        commit=commit,
        **more,
    )
    if commit is not None:
        check_flags_of_commit(side, commit)
    return side
