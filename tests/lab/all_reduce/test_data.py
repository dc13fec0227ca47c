"""The data sets, and what counts as wrong."""

import itertools

import numpy as np
import pytest

from cnnbench.lab.all_reduce import data as module
from cnnbench.lab.all_reduce.data import PERIOD, SETS, make_reduction_data


def sums(data, dtype, order):
    """One period of the sum in a format, device after device."""
    total = data.values[order[0]]
    for device in order[1:]:
        total = (total + data.values[device]).astype(np.dtype(dtype))
    return total


@pytest.mark.parametrize(
    ("dtype", "devices"), [("float32", 2), ("float16", 3), ("bfloat16", 8), ("float32", 8)]
)
def test_right_sums_in_any_order_are_right(dtype, devices):
    for name in SETS:
        data = make_reduction_data(name, devices, dtype, [], 1)
        for order in itertools.islice(itertools.permutations(range(devices)), 0, 24, 5):
            total = sums(data, dtype, order)
            assert data.count_wrong_elements(total, 0, dtype, cast=False) == 0
            if name == "integers":
                np.testing.assert_array_equal(total.astype(np.float64), data.total)


def test_the_order_of_summation_matters():
    data = make_reduction_data("floats", 4, "float32", [], 1)
    one, other = (sums(data, "float32", order) for order in ((0, 1, 2, 3), (3, 2, 1, 0)))
    assert np.mean(one != other) > 0.2


def test_integers_fit_the_narrowest_format_they_are_added_in():
    data = make_reduction_data("integers", 5, "float32", ["bfloat16"], 1)
    assert data.magnitude.max() <= 256
    assert max(value.max() for value in data.values) > 30


def test_values_cover_their_ranges():
    floats = make_reduction_data("floats", 2, "float32", [], 1)
    for values in floats.values:
        assert 0.49 < np.mean(values > 0) < 0.51
        sizes = np.log2(np.abs(values.astype(np.float64)))
        assert -4 <= sizes.min() < -3.99
        assert 3.99 < sizes.max() <= 4
        assert abs(np.mean(sizes)) < 0.05  # all sizes are equally frequent
    np.testing.assert_array_equal(floats.total, sum(v.astype(np.float64) for v in floats.values))


@pytest.mark.parametrize(("devices", "largest"), [(2, 100), (4, 64), (16, 16)])
def test_integers_are_as_large_as_exact_sums_allow(devices, largest):
    """The significand of bfloat16 has 8 bits: sums up to 256 are exact."""
    for values in make_reduction_data("integers", devices, "bfloat16", [], 1).values[:4]:
        assert [*np.unique(values.astype(np.int64))] == [*range(-largest, largest + 1)]


def test_more_devices_than_a_format_counts(limits):
    limits(module, PERIOD=997)
    data = make_reduction_data("integers", 300, "bfloat16", [], 1)
    assert data.magnitude.max() <= 256
    # None is zero everywhere: leaving one out would not be noticed.
    assert all(np.any(value != 0) for value in data.values)
    # 256 of 300 devices contribute to each element, other ones to the next; a value may be 0.
    used = np.sum([value != 0 for value in data.values], axis=0)
    assert used.max() <= 256
    assert 0.6 * 256 < used.mean() < 0.72 * 256


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data, total: total - data.values[1],
        lambda data, total: total + data.values[1],
        lambda data, total: total / 3,
        lambda data, total: np.full_like(total, np.nan),
        lambda data, total: np.full_like(total, np.inf),
        lambda data, total: np.roll(total, 1),
        lambda data, total: np.roll(total, 4096),
        lambda data, total: np.zeros_like(total),
    ],
    ids=["one left out", "one twice", "mean", "nan", "inf", "shifted", "chunks swapped", "zero"],
)
def test_wrong_sums_are_wrong(spoil):
    for name in SETS:
        data = make_reduction_data(name, 3, "float32", [], 1)
        total = sums(data, "float32", (0, 1, 2))
        wrong = data.count_wrong_elements(spoil(data, total), 0, "float32", cast=False)
        assert wrong > 0.9 * PERIOD


def test_every_wrong_element_counts_once():
    data = make_reduction_data("floats", 3, "float32", [], 1)
    result = np.resize(sums(data, "float32", (0, 1, 2)), 3 * PERIOD + 100)
    assert data.count_wrong_elements(result, 0, "float32", cast=False) == 0
    result[[0, PERIOD - 1, PERIOD, 3 * PERIOD + 99]] = np.nan
    assert data.count_wrong_elements(result, 0, "float32", cast=False) == 4


def test_the_bound_is_that_of_the_analysis():
    # By hand: three devices, eps of float32 is 2**-23.
    data = make_reduction_data("floats", 3, "float32", [], 1)
    bound = 2 * 2.0**-23 * data.magnitude
    inside, outside = data.total + 0.999 * bound, data.total + 1.001 * bound
    assert data.count_wrong_elements(inside, 0, "float32", cast=False) == 0
    assert data.count_wrong_elements(outside, 0, "float32", cast=False) == PERIOD
    # Each value rounded to bfloat16 first: one eps of 2**-7 more.
    bound = 3 * 2.0**-7 * data.magnitude
    inside, outside = data.total + 0.999 * bound, data.total + 1.001 * bound
    assert data.count_wrong_elements(inside, 0, "bfloat16", cast=True) == 0
    assert data.count_wrong_elements(outside, 0, "bfloat16", cast=True) == PERIOD


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_sums_sent_in_16_bits_are_right_within_their_bound_only(wire):
    data = make_reduction_data("floats", 5, "float32", [wire], 1)
    sent = [value.astype(np.dtype(wire)) for value in data.values]
    total = sent[0]
    for value in sent[1:]:
        total = (total + value).astype(np.dtype(wire))
    result = total.astype(np.float32)
    assert data.count_wrong_elements(result, 0, wire, cast=True) == 0
    assert data.count_wrong_elements(result, 0, "float32", cast=False) > 0.5 * PERIOD


@pytest.mark.parametrize("begin", [0, 1, PERIOD - 3, 5 * PERIOD + 7])
def test_tensors_continue_where_the_one_before_ends(begin):
    data = make_reduction_data("floats", 2, "float32", [], 1)
    tensor = data.make_tensor(1, begin, (3, 50000))
    assert tensor.shape == (3, 50000)
    assert tensor.dtype == np.float32
    expected = data.values[1][(begin + np.arange(150000)) % PERIOD]
    np.testing.assert_array_equal(tensor.reshape(-1), expected)
    total = tensor + data.make_tensor(0, begin, (3, 50000))
    assert data.count_wrong_elements(total, begin, "float32", cast=False) == 0
    assert data.count_wrong_elements(total, begin + 1, "float32", cast=False) > 140000


def test_scalars_and_empty_tensors():
    data = make_reduction_data("integers", 2, "float32", [], 1)
    assert data.make_tensor(0, 5, ()).shape == ()
    assert data.make_tensor(0, 5, (0, 3)).shape == (0, 3)
    assert (
        data.count_wrong_elements(np.float32(data.total[5]).reshape(()), 5, "float32", cast=False)
        == 0
    )
    assert data.count_wrong_elements(np.empty((0,), np.float32), 5, "float32", cast=False) == 0


def test_the_same_seed_draws_the_same():
    one, same, other = (make_reduction_data("floats", 2, "float16", [], seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.values[0], same.values[0])
    assert np.any(one.values[0] != other.values[0])
    assert np.any(one.values[0] != one.values[1])
    assert one.values[0].dtype == np.float16
