"""Whether processes run interleaved in time slices (--pairing), and the length of a time slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cnnbench.base.terminal import ChildProcessReporter
from cnnbench.campaigns.ab.asking import supports
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.processes import NO_TURNS_OF_JOBS
from cnnbench.errors import FlagError

TURN_SECONDS = 0.3
"""Seconds that one process runs before the next process continues (docs/evidence.md: effect)."""


def why_not_interleavable(sides: Mapping[str, AbSide]) -> str | None:
    """Returns why the processes of A and B cannot run interleaved (docs/ab.md), or None if they
    can.
    """
    for name, side in sides.items():
        obstacle = NO_TURNS_OF_JOBS if side.layout else side.resolved.no_turns
        if obstacle is None and not supports(side, "turns"):
            obstacle = "its version of cnnbench does not support this"
        if obstacle is not None:
            return f"side {name.upper()}: {obstacle}"
    return None


def choose_slice_seconds(
    pairing: str,
    why_not: Callable[[], str | None],
    reporter: ChildProcessReporter,
    otherwise: str = "one process runs after the other",
) -> float:
    """Returns for how many seconds processes alternately run steps, or 0 if they do not run
    interleaved.

    Raises FlagError if --pairing=turns is impossible.

    Args:
      pairing: value of the flag.
      why_not: returns why the processes cannot run interleaved, or None. It is not called for
        --pairing=alternate.
      otherwise: what happens if the processes cannot run interleaved, for a notice.
    """
    if pairing == "alternate":
        return 0.0
    obstacle = why_not()
    if obstacle is None:
        return TURN_SECONDS
    if pairing == "turns":
        raise FlagError(
            "pairing", "turns", f"is impossible: {obstacle}; use auto or alternate instead"
        )
    reporter.notice(
        f"{otherwise}, because the processes cannot run interleaved in slices of "
        f"{TURN_SECONDS:g} s: {obstacle}"
    )
    return 0.0
