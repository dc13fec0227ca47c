"""Cases that are measured in rounds (campaign.py).

Tests cnnbench/campaigns/processes/campaign.py.
"""

from __future__ import annotations

from cnnbench.campaigns.processes.campaign import make_rounds


def test_every_case_is_measured_once_per_round() -> None:
    order = make_rounds("abcdef", 3, seed=1)
    assert order == make_rounds("abcdef", 3, seed=1)
    assert order != make_rounds("abcdef", 3, seed=2)
    names = ["".join(name for name, at in order if at == number) for number in (1, 2, 3)]
    assert [sorted(one) for one in names] == [[*"abcdef"]] * 3
    assert len({*names, "abcdef"}) == 4
    # Cases may have fewer rounds than others.
    *first, last = make_rounds("ab", 2, 1, lambda case, at: case == "a" or at == 1)
    assert ({*first}, last) == ({("a", 1), ("b", 1)}, ("a", 2))
