"""What the flags of a side come to, found out before its first process is started.

A process of its own finds it out, where those of the side will work and with their variables:
relative paths and what a plug-in imports are theirs, and no plug-in gets into this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags as absl_flags

from cnnbench.ab.side import Side, launcher, own_checkout
from cnnbench.errors import DataError, FlagError, UsageError

_ASK = "from cnnbench.ab.flags import answer; answer(sys.argv[2:])"
# For a plug-in that never returns from being imported; the run will tell then.
_PATIENCE = 120.0


def words(side: Side) -> list[str]:
    """The flags of a side as they are written, with flag files read."""
    with _working_in(side.checkout):
        try:
            # As if options could follow arguments, so that none is overlooked.
            return list(
                absl_flags.FlagValues().read_flags_from_files(list(side.flags), force_gnu=True)
            )
        except (absl_flags.Error, OSError, ValueError):
            return list(side.flags)  # the parser will tell


def refuse(side: Side, names: Sequence[str], reason: str) -> None:
    """Refuses flags by name, whatever cnnbench they are for, those in flag files too.

    Raises:
      FlagError: one of them is given.
    """
    for name, value in _named(side):
        if name in names:
            raise FlagError(name, value, reason)


def names(side: Side) -> frozenset[str]:
    """Names of the flags that are given, as they are written, those in flag files too."""
    return frozenset(name for name, _ in _named(side))


def check(side: Side) -> tuple[str, ...]:
    """What the run would say about its flags.

    Returns:
      Notices; none for the flags of another cnnbench, which only that knows.

    Raises:
      UsageError: what cannot be run, models, plug-ins and data that are not there included.
    """
    if not side.is_this_cnnbench:
        return ()
    try:
        done = subprocess.run(
            [sys.executable, "-c", launcher(_ASK), own_checkout(), "flags", *side.flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **side.variables},
            cwd=side.checkout,
            timeout=_PATIENCE,
            check=False,
        )
        said = json.loads(done.stdout.splitlines()[-1])
        error, notices = said["error"], tuple(map(str, said["notices"]))
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        # A plug-in that ends its process, or talks over its end; the run will tell.
        return ()
    if error is not None:
        raise UsageError(str(error))
    return notices


def answer(flags: Sequence[str]) -> None:
    """Prints what the flags of a run come to: the other end of `check`."""
    from cnnbench.processes.commands import resolve_run

    notices: tuple[str, ...] = ()
    error = None
    try:
        notices = resolve_run(flags).notices
    except (UsageError, DataError) as wrong:
        error = str(wrong)
    print("\n" + json.dumps({"error": error, "notices": notices}))


def _named(side: Side) -> Iterator[tuple[str, str]]:
    """Names of flags, and what stands behind an equals sign."""
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
