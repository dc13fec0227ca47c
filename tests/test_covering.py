from __future__ import annotations

import itertools

import pytest
from covering import covering_pairs, everyday_values, slow_if

DIMENSIONS = ((1, 2, 3, 8), ("ps", "replicated", "independent"), ("mean", "sum"), (0, 1))


def pairs(cases):
    return {pair for case in cases for pair in itertools.combinations(enumerate(case), 2)}


def test_every_pair_occurs_in_few_cases():
    cases = covering_pairs(*DIMENSIONS)
    assert pairs(cases) == pairs(itertools.product(*DIMENSIONS))
    assert 12 <= len(cases) <= 14
    assert cases == covering_pairs(*DIMENSIONS)


def test_every_pair_of_allowed_cases_occurs_and_no_other():
    def allowed(devices, mode, reduction, _):
        return reduction == "mean" or (devices > 1 and mode != "independent")

    cases = covering_pairs(*DIMENSIONS, allowed=allowed)
    assert pairs(cases) == pairs(c for c in itertools.product(*DIMENSIONS) if allowed(*c))
    assert all(itertools.starmap(allowed, cases))


def test_two_dimensions_are_their_product_and_values_need_no_hash():
    assert covering_pairs([{}, []], "ab") == [({}, "a"), ({}, "b"), ([], "a"), ([], "b")]


def test_the_everyday_suite_meets_each_value():
    cases = covering_pairs(*DIMENSIONS)
    params = everyday_values(cases)
    everyday = [param for param in params if not hasattr(param, "marks")]
    assert len(params) == len(cases)
    assert {*itertools.chain(*map(enumerate, everyday))} == {
        *itertools.chain(*map(enumerate, cases))
    }
    assert 4 <= len(everyday) <= 5  # a parameter has four values


def test_the_everyday_suite_meets_the_values_of_the_cases_that_it_may_have():
    cases = covering_pairs(*DIMENSIONS)
    params = everyday_values(cases, among=lambda devices, mode, *_: mode == "ps")
    everyday = [param for param in params if not hasattr(param, "marks")]
    assert len(params) == len(cases)
    assert {mode for _, mode, *_ in everyday} == {"ps"}
    assert {devices for devices, *_ in everyday} == {1, 2, 3, 8}


def test_slow_cases_are_named_or_told_by_a_function():
    for slow in ([2, 3], lambda number: number > 1):
        first, *others = slow_if(slow, [1, 2, 3])
        assert first == 1
        assert [(*param.values, param.marks[0].name) for param in others] == [
            (2, "slow"),
            (3, "slow"),
        ]
    (named,) = slow_if(lambda case: case.id == "a", [pytest.param(1, 2, id="a")])
    assert (named.values, named.id, named.marks[0].name) == ((1, 2), "a", "slow")
