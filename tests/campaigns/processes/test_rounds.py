"""Cases that are measured in rounds (campaign.py)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from cnnbench.campaigns.processes.campaign import ProcessRequests, measure_in_rounds, ordered_rounds


def test_every_case_is_measured_once_per_round() -> None:
    assert ordered_rounds("ab", 2, seed=None) == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    order = ordered_rounds("abcdef", 3, seed=1)
    assert order == ordered_rounds("abcdef", 3, seed=1) != ordered_rounds("abcdef", 3, seed=2)
    names = ["".join(name for name, at in order if at == number) for number in (1, 2, 3)]
    assert [sorted(one) for one in names] == [[*"abcdef"]] * 3
    assert len({*names, "abcdef"}) == 4
    # Round 0 comes first; cases may have fewer rounds than others.
    assert ordered_rounds("ab", 2, None, lambda case, at: case == "a" or at == 1) == [
        *(("a", 0), ("a", 1), ("b", 1), ("a", 2)),
    ]


def test_a_case_that_fails_is_not_measured_again() -> None:
    foreseen: list[Any] = []

    def measure(case: str, at: int, then: Sequence[Hashable]) -> ProcessRequests[bool]:
        foreseen.append((case, at, [*then]))
        yield from ()
        return (case, at) != ("b", 1)

    order = [("a", 0), *ordered_rounds("ab", 2, seed=None)]
    assert [*measure_in_rounds(order, measure)] == []
    a, b = ("a", False), ("b", False)
    assert foreseen == [
        ("a", 0, [a, b, a, b]),
        ("a", 1, [b, a, b]),
        ("b", 1, [a, b]),
        ("a", 2, []),
    ]
