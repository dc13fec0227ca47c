"""Rounds in random order."""

from __future__ import annotations

from cnnbench.sweep.planning import Overrides, ordered

MANY = """
entries:
  - {name: a, repeats: 3, matrix: {num_gpus: [1, 2, 3, 4, 5, 6]}}
  - {name: b, repeats: 1, flags: {model: lenet}, max_batch_search: true}
"""


def test_rounds_are_not_mixed(plan):
    items = ordered(plan(MANY).cases, 1)
    assert [item.repeat for item in items] == [0] + [1] * 7 + [2] * 6 + [3] * 6
    for repeat in (1, 2, 3):
        names = [item.case.name for item in items if item.repeat == repeat]
        assert len(set(names)) == len(names)


def test_the_seed_decides(plan):
    cases = plan(MANY).cases
    assert ordered(cases, 1) == ordered(cases, 1)
    assert ordered(cases, 1) != ordered(cases, 2)
    one, two = ([i for i in ordered(cases, 1) if i.repeat == r] for r in (2, 3))
    assert [i.case for i in one] != [i.case for i in two]


def test_labels(plan):
    (case,) = plan("entries: [{name: a}]").cases
    (twice,) = plan("entries: [{name: a}]", Overrides(repeats=2, search=True)).cases
    assert [i.label for i in ordered([case], 1)] == ["a"]
    assert [i.label for i in ordered([twice], 1)] == ["a: largest batch", "a #1", "a #2"]
