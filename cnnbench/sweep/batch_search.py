"""Finds the largest batch size that fits: doubles, then bisects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cnnbench.sweep.schema import Search

Fits = Callable[[int], bool]


@dataclass(frozen=True)
class Found:
    """The end of a search.

    Attributes:
      batch_size: the largest that fits; 0 if none does.
      limited: whether the search's limit ended it, so that more might fit.
    """

    batch_size: int
    limited: bool


def largest_batch(start: int, search: Search, fits: Fits) -> Found:
    """Searches; a batch is taken to fit if a larger one does.

    Args:
      start: batch size per device to try first, brought to a multiple.
      search: limit and multiple.
      fits: tries a batch size in a process of its own; what it raises ends the search.
    """
    unit = search.multiple_of
    most = search.limit // unit
    good, bad = 0, most + 1
    for count in _doubling(max(1, min(start // unit, most)), most):
        if fits(count * unit):
            good = count
        else:
            bad = count
            break
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle * unit):
            good = middle
        else:
            bad = middle
    return Found(good * unit, limited=good == most)


def _doubling(count: int, most: int) -> Iterator[int]:
    while count < most:
        yield count
        count *= 2
    yield most
