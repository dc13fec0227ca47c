"""Flags of sides: checked, resolved and compared before the first process.

A child process with the working directory and variables of the side resolves them: relative paths
and imports of plug-ins are the side's, and no plug-in is loaded here.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from absl import flags as absl_flags

from cnnbench.campaigns.ab.side import Side, SideFlags, ask
from cnnbench.campaigns.ab.turns import obstacle
from cnnbench.campaigns.launch.tasks import JobLayout, chief_flags
from cnnbench.campaigns.processes.commands import resolve_run
from cnnbench.errors import DataError, FlagError, UsageError
from cnnbench.flags import FLAGS, parse_args
from cnnbench.run.driver.estimates import RunWork
from cnnbench.run.driver.plan import make_plan

_ASK = "from cnnbench.campaigns.ab.flags import print_answer; print_answer(*sys.argv[1:])"
# For a plug-in whose import never returns.
_SECONDS = 120.0
_TUPLES = ("explicit_flags", "notices")

LENGTHS = frozenset({"num_batches", "num_epochs"})
"""Flags of a run that set its number of timed steps."""

_SWITCHES = {f"no{spec.name}": spec.name for spec in FLAGS if spec.kind == "boolean"}

# Another interpreter has other packages.
_OF_PYTHON = ("tensorflow",)


def words(side: Side) -> list[str]:
    """Flags of a side as written, with flag files expanded."""
    with _working_in(side.checkout):
        try:
            # As if options could follow arguments, so that none is overlooked.
            return list(
                absl_flags.FlagValues().read_flags_from_files(list(side.flags), force_gnu=True)
            )
        except (absl_flags.Error, OSError, ValueError):
            return list(side.flags)  # the parser will report it


def refuse(side: Side, names: Sequence[str], reason: str) -> None:
    """Raises FlagError for given flags by name, in flag files too, for any version of cnnbench."""
    for name, value in _named(side):
        if name in names:
            raise FlagError(name, value, reason)


def names(side: Side) -> frozenset[str]:
    """Names of the given flags as written, including those in flag files."""
    return frozenset(name for name, _ in _named(side))


def check(side: Side) -> SideFlags:
    """Resolves the flags of a side, as far as this cnnbench knows them, or UsageError."""
    try:
        layout = json.dumps(None if side.layout is None else vars(side.layout))
        done = ask(side, _ASK, layout, *side.flags, ours=True, seconds=_SECONDS)
        answer = json.loads(done.stdout.splitlines()[-1])
        error = answer["error"]
        found = SideFlags(
            config=dict(answer["config"]),
            work=None if answer["work"] is None else RunWork(**answer["work"]),
            no_turns=answer["no_turns"],
            **{name: tuple(map(str, answer[name])) for name in _TUPLES},
        )
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        # A plug-in that ends its process, or prints after the answer; the run will report it.
        return SideFlags()
    if not side.is_this_cnnbench:
        return replace(found, notices=())
    if error is not None:
        raise UsageError(str(error))
    return found


def print_answer(job: str, *flags: str) -> None:
    """The child process of `check`: prints resolved flags; `job` is a JSON `JobLayout` or null."""
    answer: dict[str, object] = {"error": None, "no_turns": None, "config": {}, "work": None}
    answer.update(dict.fromkeys(_TUPLES, ()))
    try:
        fields = json.loads(job)
        words = chief_flags(None if fields is None else JobLayout(**fields), flags)
        resolved = resolve_run(words)
        answer["config"] = resolved.config
        answer.update({name: getattr(resolved, name) for name in _TUPLES})
        answer["work"] = resolved.work and vars(resolved.work)
        params = parse_args(words).params
        answer["no_turns"] = obstacle(params, make_plan(params))
    except (UsageError, DataError) as error:
        answer["error"] = str(error)
    print("\n" + json.dumps(answer))


def side_differences(a: Side, b: Side) -> tuple[str, ...]:
    """Facts and groups of facts, as for --allow_different, in which the sides differ."""
    flags = [dict(_values(words(side))) for side in (a, b)]
    names = dict.fromkeys(name for side in flags for name in side)
    found = [name for name in names if flags[0].get(name) != flags[1].get(name)]
    variables = {*a.variables.items()} ^ {*b.variables.items()}
    found += [f"env_{name}" for name in sorted({name for name, _ in variables})]
    if a.python != b.python:
        found += _OF_PYTHON
    return tuple(found)


def _values(flags: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Flags by name, for any version of cnnbench; the last value counts."""
    waiting = ""
    for word in (*flags, "-"):
        if not word.startswith("-"):
            yield waiting, word
            waiting = ""
            continue
        if waiting:
            off = waiting in _SWITCHES
            yield _SWITCHES.get(waiting, waiting), "false" if off else "true"
        name, equals, value = word.lstrip("-").partition("=")
        waiting = "" if equals else name
        if equals:
            yield name, value


def _named(side: Side) -> Iterator[tuple[str, str]]:
    for word in words(side):
        if word.startswith("-"):
            name, _, value = word.lstrip("-").partition("=")
            yield name, value


@contextlib.contextmanager
def _working_in(folder: Path | None) -> Iterator[None]:
    if folder is None:
        yield
        return
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
