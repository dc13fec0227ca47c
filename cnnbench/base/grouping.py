"""Groups of items by a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their hashable key, keys in the order of their first items."""
    found: dict[K, list[T]] = {}
    for one in items:
        found.setdefault(key(one), []).append(one)
    return found
