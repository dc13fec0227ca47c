"""The search for the largest batch size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cnnbench.sweep.runner import Found, largest_batch
from cnnbench.sweep.schema import Search


def tried(start, search, capacity):
    sizes = []

    def fits(size):
        sizes.append(size)
        return size <= capacity

    return largest_batch(start, search, fits), sizes


def test_doubles_then_bisects():
    found, sizes = tried(4, Search(limit=1000), 23)
    assert found == Found(23, limited=False)
    assert sizes == [4, 8, 16, 32, 24, 20, 22, 23]


def test_begins_too_large():
    found, sizes = tried(64, Search(), 5)
    assert found == Found(5, limited=False)
    assert sizes[:4] == [64, 32, 16, 8]


def test_nothing_fits():
    assert tried(4, Search(), 0)[0] == Found(0, limited=False)


def test_the_limit_ends_it():
    found, sizes = tried(4, Search(limit=20), 10**9)
    assert found == Found(20, limited=True)
    assert sizes == [4, 8, 16, 20]


@given(
    start=st.integers(1, 3000),
    limit=st.integers(1, 3000),
    unit=st.integers(1, 64),
    capacity=st.integers(0, 4000),
)
def test_finds_the_largest_multiple_that_fits(start, limit, unit, capacity):
    if limit < unit:
        limit = unit
    search = Search(limit=limit, multiple_of=unit)
    found, sizes = tried(start, search, capacity)
    assert found.batch_size == min(capacity, limit) // unit * unit
    assert found.limited == (found.batch_size == limit // unit * unit)
    assert len(set(sizes)) == len(sizes) <= 2 * (limit // unit).bit_length() + 2
    assert all(size % unit == 0 and unit <= size <= limit for size in sizes)


def test_what_a_trial_raises_ends_it():
    def fits(size):
        raise RuntimeError(f"bug at {size}")

    with pytest.raises(RuntimeError, match="bug at 4"):
        largest_batch(4, Search(), fits)
