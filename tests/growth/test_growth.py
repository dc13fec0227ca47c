"""The measurement of growth itself, with a clock that advances by the cost of a function."""

import growth
import pytest
from growth import check_growth


@pytest.fixture
def takes(monkeypatch):
    """Makes `prepare` of a function that takes cost(n) microseconds for an input of n elements."""
    seconds = [0.0]
    monkeypatch.setattr(growth.time, "process_time", lambda: seconds[0])

    def makes(cost):
        def prepare(size):
            def function():
                seconds[0] += cost(size) / 1e6

            return function

        return prepare

    return makes


def test_a_quadratic_function_is_found(takes):
    with pytest.raises(AssertionError, match=r"4 times the input takes 16\.00 times the CPU time"):
        check_growth(takes(lambda size: size**2), 150)


def test_a_small_quadratic_part_is_found(takes):
    with pytest.raises(AssertionError, match=r"takes 5\.71 times"):
        check_growth(takes(lambda size: size**2 + 900 * size), 150)


def test_a_linear_function_passes(takes):
    check_growth(takes(lambda size: 100 + 5 * size), 200)


def test_a_function_that_ignores_its_input_is_no_measurement(takes):
    with pytest.raises(AssertionError, match=r"takes 1\.00 times"):
        check_growth(takes(lambda size: 1500), 200)


def test_a_disturbed_measurement_is_repeated(takes):
    disturbed = iter([9000, 9000])  # Both measurements of the large input.
    check_growth(takes(lambda size: size if size < 800 else next(disturbed, size)), 200)
