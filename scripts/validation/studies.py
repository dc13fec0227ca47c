"""Runs simulations: a study draws experiments with a known truth, and checks the results."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import scipy  # which loads scipy.stats when it is used
from numpy.typing import NDArray

from cnnbench.base.document.markdown import markdown_table
from cnnbench.base.text import percent
from cnnbench.judge.compare import Policy

Series: TypeAlias = NDArray[np.float64]
Generator: TypeAlias = np.random.Generator

Case: TypeAlias = tuple[Any, ...]
"""Arguments of an experiment. The text of the arguments and --seed determine random numbers."""

Sums: TypeAlias = Counter[Any]
"""Counts of the outcomes of a case, and sums of other values by name.

"draws" is the number of experiments.
"""

POLICY = Policy()

# Significance level of the tests in `surely_above` and `surely_below`.
_SURE = 0.001


@dataclass(frozen=True)
class Requirement:
    """A required property, with measured values and whether it is met.

    Attributes:
      text: description.
      found: measured values.
      met: whether it is met; None if there is too little data.
    """

    text: str
    found: str
    met: bool | None


@dataclass(frozen=True, kw_only=True)
class Study:
    """Simulated experiments of one kind, and the tables of their results.

    Attributes:
      header: names of the columns.
      tables: for each title ("": none), the cases of each row, by the first cells of the row.
      draw: function of a generator and a case that simulates an experiment and returns values,
        which are summed over experiments.
      cells: function that returns the other cells of a row from the sums of the row's cases.
      judge: function that returns requirements from the sums of all cases.
      part: the number of experiments per case is --draws divided by this number.
    """

    header: Sequence[str]
    tables: Mapping[str, Mapping[tuple[str, ...], Sequence[Case]]]
    draw: Callable[..., Mapping[Any, float]]
    cells: Callable[[Sequence[Sums]], Iterable[str]]
    judge: Callable[[Mapping[Case, Sums]], Iterable[Requirement]]
    part: int = 1

    def run(
        self, draws: int, seed: int, map: Callable[..., Iterable[Sums]] = map
    ) -> tuple[list[str], list[Requirement]]:
        """Simulates all experiments; returns the lines of the tables, and requirements."""
        cases = [case for rows in self.tables.values() for row in rows.values() for case in row]
        of_case = partial(simulate_and_sum, self.draw, draws=-(-draws // self.part), seed=seed)
        found = dict(zip(cases, map(of_case, cases), strict=True))
        lines = []
        for title, rows in self.tables.items():
            cells = [(*name, *self.cells([found[c] for c in row])) for name, row in rows.items()]
            lines += [*([title, ""] if title else []), *table(self.header, cells), ""]
        return lines, [*self.judge(found)]


def simulate_and_sum(
    draw: Callable[..., Mapping[Any, float]], case: Case, draws: int, seed: int
) -> Sums:
    """Simulates the experiments of one case, and sums the results; equal seeds give equal sums."""
    name = zlib.crc32(" ".join(map(str, case)).encode())
    generator = np.random.default_rng([seed, name])
    found: Sums = Counter(draws=draws)
    for _ in range(draws):
        found.update(draw(generator, *case))
    return found


def all_kept(
    text: str, violation: Callable[..., str], kept: str
) -> Callable[[Mapping[Case, Sums]], list[Requirement]]:
    """Creates a `Study.judge` that requires that no case violates a property.

    Args:
      text: description of the property.
      violation: function of the sums and the case that returns a text about a violation, or "".
      kept: text that is shown if no case violates the property.
    """

    def judge(found: Mapping[Case, Sums]) -> list[Requirement]:
        bad = [*filter(None, (violation(one, *case) for case, one in found.items()))]
        return [Requirement(text, "; ".join(bad) or kept, not bad)]

    return judge


def surely_above(count: int, draws: int, share: float) -> bool:
    """Whether `count` of `draws` is significantly above a share (exact binomial test)."""
    return count > share * draws and bool(scipy.stats.binom.sf(count - 1, draws, share) < _SURE)


def surely_below(count: int, draws: int, share: float) -> bool:
    """Whether `count` of `draws` is significantly below a share (exact binomial test)."""
    return surely_above(draws - count, draws, 1 - share)


def share_of(found: Sums, *outcomes: Any) -> str:
    """Returns the share of draws with one of `outcomes` as text; "0" only if no draw has one."""
    return percent_of(sum(found[one] for one in outcomes) / found["draws"])


def percent_of(share: float) -> str:
    """Returns a share in percent as text; "0" only for exactly 0."""
    return percent(share) if share else "0"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table with numbers in all columns except the first."""
    return markdown_table(header, ["---", *["--:"] * (len(header) - 1)], rows).splitlines()
