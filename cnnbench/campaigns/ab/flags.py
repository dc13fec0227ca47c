"""Flags of sides: checked, resolved and compared before the first process; turns.

A child process with the working directory and variables of the side resolves them: relative paths
and imports of plug-ins are the side's, and no plug-in is loaded here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cnnbench.base.text.progress import Reporter
from cnnbench.base.urls import is_url
from cnnbench.campaigns.ab.side import Side, ask, has_module
from cnnbench.campaigns.launch.tasks import JobLayout, resolve_run
from cnnbench.campaigns.processes.commands import NO_TURNS_OF_JOBS, Resolved
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import parse_args, parse_flags
from cnnbench.flags.declare import specs_of
from cnnbench.flags.groups.output import OutputParams
from cnnbench.flags.params import ACCEPTED
from cnnbench.flags.parse import FLAG_FILE
from cnnbench.machine.repository import GitError, git
from cnnbench.records.codec import decode, encode

_ASK = "from cnnbench.campaigns.ab.flags import print_answer; print_answer(*sys.argv[1:])"
# For a plug-in whose import never returns.
_SECONDS = 120.0

RESERVED = ("result_json", "result_csv", "profile_json", "train_dir")
"""Flags of runs to refuse: a second process would resume or overwrite what the first left."""

# Other files and folders that a run writes.
_WRITTEN = {spec.name for spec in specs_of(OutputParams) if spec.path}.difference(RESERVED)

LENGTHS = frozenset({"num_batches", "num_epochs"})
"""Flags of a run that set its number of timed steps."""

TURN_SECONDS = 0.3
"""Length of a turn; docs/evidence.md has its effect."""

# Present where a cnnbench supports turns; the latter path in earlier versions.
_WAITS = ("run/runtime/turns.py", "runtime/turns.py")

# Another interpreter has other packages.
_OF_PYTHON = ("tensorflow",)


def refuse(side: Side, names: Sequence[str], reason: str) -> None:
    """Raises FlagError for given flags by name."""
    for name, value in side.given.items():
        if name in names:
            raise FlagError(name, value, reason)


def check(side: Side) -> Resolved:
    """Resolves those flags of a side that this version of cnnbench knows; UsageError if wrong."""
    try:
        layout = json.dumps(None if side.layout is None else vars(side.layout))
        done = ask(side, _ASK, layout, *side.flags, ours=True, seconds=_SECONDS)
        answer = json.loads(done.stdout.splitlines()[-1])
        error, found = answer["error"], decode(Resolved, answer["resolved"])
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        # A plug-in that ends its process, or prints after the answer; the run will report it.
        return Resolved()
    if not side.is_this_cnnbench:
        return replace(found, notices=())
    if error is not None:
        raise UsageError(str(error))
    return found


def check_early(side: Side, commit: str, folder: str | Path = ".") -> None:
    """Refuses flags that are wrong whatever files a commit has, before there is a worktree of it.

    Another cnnbench, such as that of the commit, may know others; a flag file may be in the commit.
    What a run writes to a relative path would be removed with the worktree.
    """
    for name, value in replace(side, checkout=None).given.items():
        paths = value.split(",") if name in _WRITTEN else ()
        if any(path and not (os.path.isabs(path) or is_url(path)) for path in paths):
            reason = "is in a worktree that is removed; give an absolute path"
            raise FlagError(name, value, reason)
    if side.python is not None or any(FLAG_FILE in word for word in side.flags):
        return
    try:
        git("cat-file", "-e", f"{commit}:cnnbench/__init__.py", folder=folder)
    except GitError:
        parse_flags(side.flags, ACCEPTED.values())


def print_answer(job: str, *flags: str) -> None:
    """The child process of `check`: prints resolved flags; `job` is a JSON `JobLayout` or null."""
    error, resolved = None, Resolved()
    try:
        fields = json.loads(job)
        layout = None if fields is None else JobLayout(**fields)
        resolved = resolve_run(parse_args(flags), layout)
    except (UsageError, DataError) as refusal:
        error = str(refusal)
    print("\n" + json.dumps({"error": error, "resolved": encode(resolved)}))


def side_differences(a: Side, b: Side) -> tuple[str, ...]:
    """Facts, and groups of them as in --allow_different, in which the sides differ."""
    found = [name for name in {**a.given, **b.given} if a.given.get(name) != b.given.get(name)]
    variables = {*a.variables.items()} ^ {*b.variables.items()}
    found += [f"env_{name}" for name in sorted({name for name, _ in variables})]
    if a.python != b.python:
        found += _OF_PYTHON
    return tuple(found)


def sides_obstacle(sides: Mapping[str, Side]) -> str | None:
    """Why two sides cannot step in turn; None if they can."""
    for name, side in sides.items():
        found = NO_TURNS_OF_JOBS if side.layout else side.resolved.no_turns
        if found is None and not side.is_this_cnnbench and not has_module(side, *_WAITS):
            found = "its cnnbench is of a version that cannot"
        if found is not None:
            return f"side {name.upper()}: {found}"
    return None


def turn_seconds(pairing: str, sides: Mapping[str, Side], reporter: Reporter) -> float:
    """The length of a turn, 0 without turns; FlagError if --pairing=turns is impossible."""
    in_turn = takes_turns(pairing, lambda: sides_obstacle(sides), "the sides alternate", reporter)
    return TURN_SECONDS if in_turn else 0.0


def takes_turns(
    pairing: str, why_not: Callable[[], str | None], otherwise: str, reporter: Reporter
) -> bool:
    """Whether processes step in turn; FlagError if --pairing=turns is impossible.

    Args:
      pairing: value of the flag.
      why_not: returns the reason why they cannot, or None; not called if they shall not.
      otherwise: for a notice, what happens if they cannot.
    """
    if pairing == "alternate":
        return False
    found = why_not()
    if found is None:
        return True
    if pairing == "turns":
        raise FlagError("pairing", "turns", f"cannot be: {found}; leave it out, or alternate")
    reporter.notice(f"{otherwise}, since they cannot step in turn: {found}")
    return False
