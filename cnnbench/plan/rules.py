"""Rules of flags: refusals of contradictions, and notices of flags without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from cnnbench.errors import FlagError
from cnnbench.flags.params import SPECS, Params

R = TypeVar("R")

Refusals: TypeAlias = "Iterator[tuple[str, str]]"
"""Names of flags whose values are refused, with reasons; the first one is reported."""


def refuse_first(flags: Params, refusals: Refusals) -> None:
    """Raises FlagError for the first refusal, if there is one."""
    for name, reason in refusals:
        raise FlagError(name, SPECS[name].text(getattr(flags, name)), reason)


@dataclass(frozen=True)
class Unused(Generic[R]):
    """A row of a table of flags without effect, for runs of type `R`.

    Attributes:
      when: whether the flags have no effect in a run.
      why: end of the notice, after "--flag has no effect"; may depend on the run.
      says: text in place of "has no effect".
    """

    flags: tuple[str, ...]
    when: Callable[[R], bool]
    why: str | Callable[[R], str]
    says: str = ""


def notices(table: Iterable[Unused[R]], run: R, given: Sequence[str]) -> tuple[str, ...]:
    """A notice per row that applies to a run; for each flag only the first such row counts."""
    lines = []
    for entry in table:
        names = [name for name in given if name in entry.flags]
        if names and entry.when(run):
            given = [name for name in given if name not in names]
            why = entry.why if isinstance(entry.why, str) else entry.why(run)
            lines.append(_line(names, entry.says, why))
    return tuple(lines)


def _line(names: list[str], says: str, why: str) -> str:
    *others, last = (f"--{name}" for name in names)
    subject = f"{', '.join(others)} and {last}" if others else last
    says = says or ("have no effect" if others else "has no effect")
    return f"{subject} {says} {why}"
