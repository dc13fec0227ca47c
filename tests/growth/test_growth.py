"""The measurement of growth itself."""

import pytest
from growth import check_growth


def pairs(size):
    """Compares all pairs of elements."""
    return lambda: sum(a == b for a in range(size) for b in range(size))


def one_by_one(size):
    return lambda: sum(a == b for a in range(size) for b in range(300))


def test_a_quadratic_function_is_found():
    with pytest.raises(AssertionError, match="4 times the input takes"):
        check_growth(pairs, 150)


def test_a_small_quadratic_part_is_found():
    def prepare(size):
        few, many = pairs(size), one_by_one(size)
        return lambda: (few(), many())

    with pytest.raises(AssertionError, match="times the CPU time"):
        check_growth(prepare, 150)


def test_a_linear_function_passes():
    check_growth(one_by_one, 200)


def test_a_function_that_ignores_its_input_is_no_measurement():
    with pytest.raises(AssertionError, match="4 times the input takes"):
        check_growth(lambda size: one_by_one(1500), 200)
