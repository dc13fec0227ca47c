"""Cases that are measured in rounds (campaign.py).

Tests cnnbench/campaigns/processes/campaign.py.
"""

from __future__ import annotations

from cnnbench.campaigns.processes.campaign import Rounds, make_rounds


def test_every_case_is_measured_once_per_round() -> None:
    order = make_rounds("abcdef", 3, seed=1).order
    assert order == make_rounds("abcdef", 3, seed=1).order
    assert order != make_rounds("abcdef", 3, seed=2).order
    names = ["".join(name for name, at in order if at == number) for number in (1, 2, 3)]
    assert [sorted(one) for one in names] == [[*"abcdef"]] * 3
    assert len({*names, "abcdef"}) == 4
    # Round 0 comes first; cases may have fewer rounds than others.
    first, *middle, last = make_rounds("ab", 2, 1, lambda case, at: case == "a" or at == 1).order
    assert (first, {*middle}, last) == (("a", 0), {("a", 1), ("b", 1)}, ("a", 2))


def test_a_case_that_fails_is_not_measured_again() -> None:
    rounds = Rounds([("a", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)])
    foreseen = []
    for case, at, later in rounds:
        foreseen.append((case, at, later))
        if (case, at) == ("b", 1):
            rounds.left_out.add("b")
    a, b = ("a", False), ("b", False)
    assert foreseen == [
        ("a", 0, [a, b, a, b]),
        ("a", 1, [b, a, b]),
        ("b", 1, [a, b]),
        ("a", 2, []),
    ]
