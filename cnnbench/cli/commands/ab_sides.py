"""The flags that say what the sides A and B are, for commands that start processes of both."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cnnbench.base.text.progress import Reporter
from cnnbench.campaigns.ab.checkout import checked_out, commit_of
from cnnbench.campaigns.ab.flags import check, refuse
from cnnbench.campaigns.ab.side import Side, has_module
from cnnbench.cli.commands import sides
from cnnbench.cli.commands.launch import JOB_FLAGS, JobFlags
from cnnbench.errors import FlagError, UsageError
from cnnbench.flags.declare import flag, specs_of

_VARIABLES = ("a_env", "b_env")

# A cnnbench that has one of them runs jobs; the latter in earlier versions.
_LAUNCHES = ("campaigns/launch/tasks.py", "launch/tasks.py")

_CHECKOUT = (
    "Work in this folder, or in a temporary worktree of this git revision; if it is a checkout of "
    "cnnbench, its code runs."
)


@dataclass(frozen=True, kw_only=True)
class AbSideFlags(JobFlags):
    """What a side is."""

    a: str = flag("", "Flags of side A alone, in one word.")
    b: str = flag("", "Flags of side B alone.")
    a_python: str | None = flag(
        None, "Interpreter of side A that has cnnbench installed.", path="file"
    )
    b_python: str | None = flag(None, "That of side B.", path="file")
    a_checkout: str | None = flag(None, _CHECKOUT, path="folder")
    b_checkout: str | None = flag(None, "The same for side B.", path="folder")
    a_env: str | None = flag(None, "Environment variable of side A, NAME=VALUE; may be repeated.")
    b_env: str | None = flag(None, "Environment variable of side B.")


SIDE_FLAGS = (*specs_of(AbSideFlags), *JOB_FLAGS)
"""What a side is, and of which processes its job, if it is one."""


def take_variables(argv: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The command line without --a_env and --b_env, and what they say, by side."""
    found: dict[str, dict[str, str]] = {"a": {}, "b": {}}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return [*rest, word, *words], found
        name, equals, text = word.lstrip("-").partition("=")
        if not word.startswith("-") or name not in _VARIABLES:
            rest.append(word)
            continue
        if not equals:
            text = next(words, "")
        variable, equals, value = text.partition("=")
        if not equals or not variable:
            raise FlagError(name, text, "must be NAME=VALUE")
        found[name[0]][variable] = value
    return rest, found


def checked(both: Mapping[str, Side], command: str, reporter: Reporter) -> dict[str, Side]:
    """The sides with resolved flags; refuses wrong ones as far as this cnnbench knows them."""
    for name, side in both.items():
        reason = f"cannot go with {command}; it keeps a record of each process"
        refuse(side, sides.RESERVED, reason)
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
    configs = [side.resolved.config for side in (a, b)]
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
    return f"commit {(commit_of(side.revision) or '')[:12]}"


@contextlib.contextmanager
def side_of(
    name: str, options: AbSideFlags, variables: dict[str, str], common: Sequence[str]
) -> Iterator[Side]:
    """A side, with the checkout it needs."""
    try:
        own = tuple(shlex.split(getattr(options, name)))
    except ValueError as error:
        raise FlagError(name, getattr(options, name), f"is no list of flags: {error}") from None
    flags = (*(common[1:] if common[:1] == ("run",) else common), *own)
    python, checkout = (getattr(options, f"{name}_{what}") for what in ("python", "checkout"))
    if python is not None:
        python = sides.interpreter(f"{name}_python", python)
    with contextlib.ExitStack() as stack:
        folder = None
        if checkout is not None:
            folder = stack.enter_context(checked_out(f"{name}_checkout", checkout))
        yield Side(
            flags=flags,
            own=own,
            layout=options.layout_if_several,
            python=python,
            checkout=folder,
            revision=checkout,
            variables=variables,
        )
