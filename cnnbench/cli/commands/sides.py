"""Command lines of the commands that measure sides A and B, each with flags of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.ab.checkout import revision_of, worktree
from cnnbench.campaigns.ab.flags import RESERVED, check, check_early, refuse
from cnnbench.campaigns.ab.side import Side, has_module
from cnnbench.campaigns.launch.tasks import JobLayout, command_words
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags import FLAGS, parse_command
from cnnbench.flags.declare import FlagSpec, flag
from cnnbench.flags.parse import split, split_at_dashes
from cnnbench.flags.retired import RENAMED
from cnnbench.machine.repository import commit_of
from cnnbench.machine.software import may_be_shown

MOST_PAIRS = 1000
"""Largest number of pairs of an experiment."""

VARIABLES = ("a_env", "b_env")
"""Flags whose values may be secrets."""

# A cnnbench that has one of them runs jobs; the latter in earlier versions.
_LAUNCHES = ("campaigns/launch/tasks.py", "launch/tasks.py")

_CHECKOUT = (
    "Work in this folder, or in a temporary worktree of this git revision; if it is a checkout of "
    "cnnbench, its code runs."
)


@dataclass(frozen=True, kw_only=True)
class SideFlags:
    """Flags that define a side."""

    a: str = flag("", "Flags of side A alone, as one shell word.")
    b: str = flag("", "Flags of side B alone.")
    a_python: str | None = flag(
        None, "Interpreter of side A that has cnnbench installed.", path="file"
    )
    b_python: str | None = flag(None, "Interpreter of side B.", path="file")
    a_checkout: str | None = flag(None, _CHECKOUT, path="folder")
    b_checkout: str | None = flag(None, "The same for side B.", path="folder")
    a_env: tuple[str, ...] | None = flag(
        None,
        "Environment variable of side A, NAME=VALUE; may be repeated.",
        repeated=True,
        separator="",
    )
    b_env: tuple[str, ...] | None = flag(
        None, "Environment variable of side B.", repeated=True, separator=""
    )

    @property
    def variables(self) -> dict[str, dict[str, str]]:
        """The environment variables of both sides."""
        found: dict[str, dict[str, str]] = {"a": {}, "b": {}}
        for name in VARIABLES:
            for text in getattr(self, name) or ():
                variable, equals, value = text.partition("=")
                if not equals or not variable:
                    raise FlagError(name, "...", "must be NAME=VALUE")
                found[name[0]][variable] = value
        return found


def parse(
    argv: Sequence[str], specs: Sequence[FlagSpec], usage: str
) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
    """Flags of a command, other arguments, and the flags of runs of all sides.

    An error about a flag of runs names the place where it belongs: after `usage`, which begins
    with the command, or in the flags of a side.
    """
    words, common = split_at_dashes(argv)
    try:
        given, arguments = parse_command(words, specs)
    except UsageError:
        own = {spec.name for spec in specs}
        of_runs = {spec.name for spec in FLAGS} - own
        for word in words:
            name = word.lstrip("-").partition("=")[0]
            if word.startswith("-") and (name in of_runs or name.removeprefix("no") in of_runs):
                hint = "; those of one side into --a or --b" if "a" in own else ""
                raise UsageError(
                    f"--{name} is a flag of the sides, not of {usage.split()[0]}: flags of both "
                    f"go behind --, as in cnnbench {usage} -- {word}{hint}"
                ) from None
        raise
    if common and common[0] == "run":
        common = common[1:]
    return given, arguments, tuple(common)


def shown(text: str) -> str:
    """NAME=VALUE for a message; the value is "..." unless records list that variable."""
    name, equals, _ = text.partition("=")
    return text if not equals or may_be_shown(name) else f"{name}=..."


def without(
    argv: Sequence[str],
    specs: Sequence[FlagSpec],
    names: Collection[str],
    added: Sequence[str] = (),
) -> list[str]:
    """A command line without some of its flags before the dashes, and with others added there.

    Flag files are replaced by their flags; those of environment variables are as by `shown`.
    """
    texts, rest = split(argv, {spec.name: spec for spec in specs})
    arguments, behind = split_at_dashes(rest)
    before = [
        f"--{name}={shown(text) if name in VARIABLES else text}"
        for name, given in texts.items()
        if name not in names and name not in RENAMED
        for text in given
    ]
    return [*arguments, *before, *added, *(("--", *behind) if behind else ())]


def again(command: str, argv: Sequence[str], specs: Sequence[FlagSpec], **flags: object) -> str:
    """The command line with other values of some flags; True stands for a flag without a value.

    These come after the other flags, because the last value counts and a flag file may set them.
    """
    words = without(argv, specs, flags, command_words(flags))
    return shlex.join(["cnnbench", command, *words])


@contextlib.contextmanager
def telling_how_to_go_on(reporter: Reporter, line: str) -> Iterator[None]:
    """Prints the command line that goes on where the block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        reporter.notice(f"to go on: {line}")
        raise


def interpreter(flag: str, text: str) -> str:
    """An absolute path; links are not resolved, which would leave a virtual environment."""
    found = shutil.which(text)
    if found is None:
        raise FlagError(flag, text, "is no program that can be started")
    return os.path.abspath(found)


def checked(both: Mapping[str, Side], command: str, reporter: Reporter) -> dict[str, Side]:
    """The sides with resolved flags; refuses wrong flags that this version of cnnbench knows."""
    for name, side in both.items():
        reason = f"cannot go with {command}; it keeps a record of each process"
        refuse(side, RESERVED, reason)
        if side.layout and not side.is_this_cnnbench and not has_module(side, *_LAUNCHES):
            reason = f"the cnnbench of side {name.upper()} has no launch, or cannot be started"
            raise FlagError("workers", side.layout.workers, reason)
    first = check(both["a"])
    found = {"a": first, "b": first if both["a"] == both["b"] else check(both["b"])}
    for notice in dict.fromkeys(n for flags in found.values() for n in flags.notices):
        reporter.notice(notice)
    return {name: replace(side, resolved=found[name]) for name, side in both.items()}


def refuse_equal_sides(both: Mapping[str, Side], instead: str) -> None:
    """Refuses two sides that are the same; `instead` is what else could be done."""
    a, b = both.values()
    configs = [side.resolved.identity for side in (a, b)]
    code = _code(a)
    same_flags = a.flags == b.flags or (bool(configs[0]) and configs[0] == configs[1])
    if (same_flags, a.python, a.variables, code) != (True, b.python, b.variables, _code(b)):
        return
    what = "" if a.checkout is None else f": {a.revision} and {b.revision} are both {code}"
    raise UsageError(
        f"the two sides are the same{what}; say with --a and --b, --a_python, --a_checkout or "
        f"--a_env what makes them differ{instead}"
    )


def _code(side: Side) -> str:
    """The folder, or the commit of the temporary worktree, that a side works in."""
    if side.checkout is None or side.revision is None or Path(side.revision).is_dir():
        return str(side.checkout or "")
    return f"commit {commit_of(side.revision)[:12]}"


@contextlib.contextmanager
def sides_of(
    options: SideFlags,
    layout: JobLayout | None,
    common: Sequence[str],
    names: Sequence[str] = "ab",
) -> Iterator[dict[str, Side]]:
    """The sides A and B, as the flags of these names describe them, with their checkouts."""
    variables, found, commits = options.variables, {}, {}
    for side, name in zip("ab", names, strict=True):
        text, python, checkout = (
            getattr(options, flag) for flag in (name, f"{name}_python", f"{name}_checkout")
        )
        try:
            own = tuple(shlex.split(text))
        except ValueError as error:
            raise FlagError(name, text, f"is no list of flags: {error}") from None
        if python is not None:
            python = interpreter(f"{name}_python", python)
        commit = None if checkout is None else revision_of(f"{name}_checkout", checkout)
        found[side] = Side(
            flags=(*common, *own),
            own=own,
            layout=layout,
            python=python,
            checkout=None if checkout is None else Path(checkout).resolve(),
            revision=checkout,
            variables=variables[name],
        )
        if commit is not None:
            check_early(found[side], commit)
            commits[side] = commit
    with contextlib.ExitStack() as stack:
        for side, commit in commits.items():
            found[side] = replace(found[side], checkout=stack.enter_context(worktree(commit)))
        yield found
