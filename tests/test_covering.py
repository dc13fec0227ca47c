from __future__ import annotations

import itertools

from covering import covering_pairs

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
