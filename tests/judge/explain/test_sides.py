"""Limits of the tests of differences, with times that are given exactly.

Tests cnnbench/judge/explain/sides.py.
"""

from __future__ import annotations

import math

import pytest
from step_profiles import CONV, exact_profile
from step_profiles import exact_row as row

from cnnbench.judge.explain.sides import PAUSES, ComparedProfiles, ProfiledSide, StepTimes
from cnnbench.records.profiles import (
    COPIES,
    FORWARD,
    GAPS,
    INPUT_WAIT,
    OUTSIDE,
    PROGRAM,
    REDUCTION,
    REST,
    TO_INPUT,
    UPDATE,
    StepPartKey,
)

FIRST, SECOND = (StepPartKey(name, CONV, FORWARD) for name in ("conv0", "conv1"))
REDUCED, UPDATED, COPIED = (
    StepPartKey(REST, kind, OUTSIDE) for kind in (REDUCTION, UPDATE, COPIES)
)


@pytest.fixture
def profile(lenet_runs):
    """profile(ROWS): a process; the rows of each step add up to the step."""
    record = lenet_runs()
    return lambda *rows, **parts: exact_profile(record, rows, **parts)


@pytest.fixture
def sides(profile):
    """sides(BASE, NEW): seconds of `FIRST` in each process of A and of B."""

    def make(base=(50.0, 50.0), new=(60.0, 60.0)):
        one = [[profile(row(FIRST, value)) for value in values] for values in (base, new)]
        return ComparedProfiles(*one)

    return make


def test_variance_and_standard_errors():
    times = StepTimes([(1.0, 3.0), (2.0, 4.0, 6.0)])
    # Squares of 2 around 2, and of 8 around 4; five values less two means.
    assert times.variance == pytest.approx(10 / 3)
    assert StepTimes([(1.0,), (5.0,)]).variance == 0
    assert StepTimes([(1.0, 3.0), (5.0,)]).variance == 2
    assert times.error_of_difference(6.0) == pytest.approx(6 * math.sqrt(5 / 6))
    assert times.standard_error() == pytest.approx(math.sqrt(10 / 3 * 5 / 6))
    # Half of the mean of the two sides, which is more than the deviation between processes.
    assert times.standard_error(2.0) == pytest.approx(6 * math.sqrt(5 / 6))
    assert times.standard_error(0.1) == times.standard_error()


@pytest.mark.parametrize(
    ("within", "steps", "expected"),
    [
        # SciPy: t.isf(0.002, 2) = 15.7639, for the variance 2 between processes.
        (0.0, 0, 15.7639 * math.sqrt(2)),
        (0.99, 40, 15.7639 * math.sqrt(2)),
        (1.0, 4, 15.7639 * math.sqrt(2)),
        # With five steps and more, t.isf(0.002, 1) = 159.153 and t.isf(0.002, 4) = 5.95137.
        (1.0, 5, 159.153 * math.sqrt(2)),
        (1.0, 8, 5.95137 * math.sqrt(2)),
        (3.0, 8, 5.95137 * math.sqrt(3)),
        # t.isf(0.002, 36) = 3.08: at least 5 is used.
        (1.0, 40, 5 * math.sqrt(2)),
    ],
)
def test_the_largest_difference_by_chance(within, steps, expected):
    times = StepTimes([(1.0, 3.0), (4.0, 6.0)], within, steps)
    assert times.chance_limit == pytest.approx(expected, rel=1e-4)


def test_the_largest_difference_by_chance_of_single_processes():
    # As if there were three processes: t.isf(0.002, 1).
    assert StepTimes([(1.0, 3.0), (5.0,)]).chance_limit == pytest.approx(
        159.153 * math.sqrt(2 * 1.5), rel=1e-4
    )
    assert StepTimes([(1.0,), (5.0,)]).chance_limit == 0


def test_the_variance_of_a_median():
    values = [[(1.0, 2.0, 9.0), (3.0, 3.0, 3.0)], [(4.0, 6.0, 5.0), (7.0, 7.0, 7.0)]]
    weights = [[(1.0,) * 3] * 2] * 2
    # Two of the four have a median absolute deviation, which is 1; the others have 0.
    expected = math.pi / 2 * 1.4826**2 / 3 / 2
    assert StepTimes.typical(values, weights).within == pytest.approx(expected)
    assert StepTimes.typical(values, weights, centre=min).within == 0
    # Steps without weight do not count.
    found = StepTimes.typical(values, [[(1.0, 0.0, 1.0), (0.0, 0.5, 0.5)]] * 2)
    assert (found.each, found.steps) == ([(5.0, 3.0), (4.5, 7.0)], 8)
    # One step of each process has no variance.
    single = StepTimes.typical([[(1.0,), (2.0,)]] * 2, [[(1.0,), (1.0,)]] * 2)
    assert (single.within, single.steps) == (0, 0)


def test_parts_of_processes(profile):
    first = profile(row(FIRST, 1.0, 2.0, flops=3, bytes=5), row(REDUCED, 1.0, 1.0))
    second = profile(row(FIRST, 3.0, 4.0, flops=3, bytes=5))
    side = ProfiledSide([first, second], lambda part: part)
    assert [*side.parts] == [FIRST, REDUCED]
    assert side.seconds(FIRST) == [(1, 2), (3, 4)]
    assert side.seconds(REDUCED) == [(1, 1), (0, 0)]
    assert (side.work(FIRST).flops, side.work(FIRST).bytes) == (3, 5)
    assert side.work(FIRST).seconds == ()
    assert side.work(REDUCED) is None
    other = ProfiledSide([first, profile(row(FIRST, 1.0, 2.0, flops=4))], lambda part: part)
    assert other.work(FIRST) is None
    assert [one.part for one in side.rows_of_first_process([REDUCED, SECOND])] == [REDUCED]


def test_parts_of_one_name_are_added(profile):
    rows = (
        row(FIRST, 1.0, 2.0, flops=1, bytes=10, operations={"a": 1}),
        row(SECOND, 3.0, 5.0, flops=2, bytes=30, operations={"a": 2, "b": 1}),
    )
    side = ProfiledSide([profile(*rows)], lambda part: FIRST)
    assert side.seconds(FIRST) == [(4, 7)]
    work = side.work(FIRST)
    assert (work.flops, work.bytes, dict(work.operations)) == (3, 40, {"a": 3, "b": 1})


@pytest.mark.parametrize(
    ("devices", "placed", "expected"),
    [
        ((1, 1), True, [UPDATED, COPIED]),
        ((1, 2), True, [REDUCED, UPDATED, COPIED]),
        ((1, 1), False, [REDUCED, UPDATED, COPIED]),
    ],
)
def test_a_single_tower_has_updates_in_place_of_reductions(profile, devices, placed, expected):
    rows = [row(part, 1.0) for part in (REDUCED, UPDATED, COPIED)]
    place = {} if placed else {"placement": None}
    base, new = ([profile(*rows, devices=count, **place)] for count in devices)
    found = ComparedProfiles(base, new)
    assert [*found.times] == expected
    added = sum(times.of_sides[0] for times in found.times.values())
    assert added == 3


def test_totals_and_kernels_of_the_first_processes(profile):
    base = [
        profile(row(FIRST, 1.0, flops=3, bytes=5, operations={"a": 2}), row(SECOND, 1.0, flops=4)),
        profile(row(FIRST, 1.0, flops=100, operations={"z": 2}), row(SECOND, 1.0, flops=100)),
    ]
    new = [profile(row(FIRST, 1.0, flops=6, bytes=7, operations={"a": 1, "b": 1}))] * 2
    found = ComparedProfiles(base, new)
    assert found.totals("flops", [FIRST]) == (3, 6)
    assert found.totals("flops", [FIRST, SECOND]) == (7, 6)
    assert found.totals("bytes", [FIRST, SECOND]) == (5, 7)
    assert found.kernels([FIRST, SECOND]) == ({"a": 2}, {"a": 1, "b": 1})


def test_typical_and_mean_times_of_several_parts(profile):
    base = [profile(row(FIRST, 1.0, 2.0, 9.0), row(SECOND, 1.0, 1.0, 4.0))] * 2
    new = [profile(row(FIRST, 2.0, 2.0, 2.0), row(SECOND, 3.0, 3.0, 3.0))] * 2
    found = ComparedProfiles(base, new, [[1.0] * 3] * 4)
    assert found.typical([FIRST]).of_sides == (2, 2)
    assert found.typical([FIRST, SECOND]).of_sides == (3, 5)
    assert found.mean([FIRST, SECOND]).of_sides == (6, 5)
    assert found.step.of_sides == (6, 5)
    assert found.timed.of_sides == (6, 5)


def test_the_least_time_of_the_program_is_typical(profile):
    rows = (row(FIRST, 1.0, 2.0, 9.0), row(PROGRAM, 1.0, 2.0, 9.0), row(GAPS, 1.0, 2.0, 9.0))
    found = ComparedProfiles([profile(*rows)] * 2, [profile(*rows)] * 2)
    typical = {part: times.of_sides[0] for part, times in found.times.items()}
    assert typical == {FIRST: 2, PROGRAM: 1, GAPS: 2}
    assert found.operations_left == (FIRST,)
    waiting = profile(row(INPUT_WAIT, 1.0), row(UPDATED, 1.0))
    assert ComparedProfiles([waiting], [waiting]).operations_left == (UPDATED,)


@pytest.mark.parametrize(
    ("new", "relevant"), [((100.9,), False), ((101.0,), True), ((99.0,), True), ((99.1,), False)]
)
def test_a_hundredth_of_the_step_is_relevant(sides, new, relevant):
    found = sides((100.0,), (200.0,))
    assert found.is_relevant(StepTimes([(100.0,), new])) == relevant


@pytest.mark.parametrize(
    ("new", "errors", "noise", "expected"),
    [
        # The standard error of 10 with two processes each is 10; the difference is 20.
        ((30.0, 30.0), 2.0, 0.5, False),
        ((30.0, 30.0), 2.0, 0.49, True),
        ((30.0, 30.0), 4.9, 0.21, False),
        ((30.0, 30.0), 4.9, 0.2, True),
        ((30.0, 30.0), 5.0, 0.2, False),
        ((30.0, 30.0), 5.0, 0.19, True),
        # By default, the noise of operations, which is 0.15.
        ((30.0, 30.0), 6.0, None, True),
        ((30.0, 30.0), 7.0, None, False),
        # The deviation of the processes themselves is 10, so that 158 are possible by chance.
        ((20.0, 40.0), 1.9, 0.1, True),
        ((20.0, 40.0), 2.1, 0.1, False),
        ((20.0, 40.0), 5.0, 0.1, False),
        # Less than a hundredth of the step.
        ((10.9, 10.9), 2.0, 0.0, False),
    ],
)
def test_differences_and_standard_errors(sides, new, errors, noise, expected):
    found = sides((100.0, 100.0), (100.0, 100.0))
    found.noise = 0.15
    assert found.exceeds(StepTimes([(10.0, 10.0), new]), errors, noise) == expected


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        ([(1.0, 1.0), (2.0, 2.0)], True),
        ([(1.0, 2.0), (2.0, 2.0)], False),
        # Ratios of 0.8 and 1.2 vary too much; of times whose ratio is at most 10, these decide.
        ([(0.8, 1.2), (9.95, 10.05)], False),
        ([(0.8, 1.2), (9.95, 10.25)], True),
        ([(9.95, 10.25), (0.8, 1.2)], True),
        # A time of 0 has no logarithm.
        ([(0.0, 0.0), (1.0, 1.0)], True),
        ([(0.0, 0.2), (1.0, 1.0)], False),
    ],
)
def test_differences_that_chance_cannot_explain(sides, each, expected):
    assert sides().exceeds_chance(StepTimes(each)) == expected


@pytest.mark.parametrize(
    ("new", "within", "expected"),
    [
        # The step takes 100 s, and a difference of 0.2 % must exceed 20 standard errors.
        (10.19, 0.0, False),
        (10.21, 0.0, True),
        # The mean of 10 and 14 is 12: the square root of `within` is the standard error.
        (14.0, 0.0399, True),
        (14.0, 0.0401, False),
    ],
)
def test_differences_that_are_small_but_settled(sides, new, within, expected):
    found = sides((100.0, 100.0), (100.0, 100.0))
    found.times[FIRST] = StepTimes([(10.0, 10.0), (new, new)], within, 80)
    assert found.differs_significantly([FIRST]) == expected
    found.by_work = True
    assert not found.differs_significantly([FIRST])


def test_the_program_varies_by_at_most_a_twentieth(sides):
    found = sides((100.0, 100.0), (100.0, 100.0))
    found.noise = 0.3
    found.times[PROGRAM] = found.times[GAPS] = StepTimes([(10.0, 10.0), (14.0, 14.0)])
    # 5 standard errors of 5 % of 12 are 3, those of 30 % are 18.
    stands_out = [found.stands_out(parts) for parts in ([PROGRAM], [GAPS], [GAPS, PROGRAM])]
    assert stands_out == [True, False, False]
    # One standard error is 3.6.
    assert [found.stands_out([GAPS], errors) for errors in (1.1, 1.2)] == [True, False]
    found.noise = 0.04
    assert found.stands_out([PROGRAM], 8.0)
    assert not found.stands_out([PROGRAM], 8.5)


def test_differences_in_work_alone(sides):
    found = sides()
    found.by_work = True
    like = StepTimes([(1.0,), (1.0,)])
    assert [found.exceeds(like, errors) for errors in (2.0, 4.99, 5.0)] == [True, True, False]
    assert [found.differs_from_others([FIRST], errors) for errors in (2.0, 5.0)] == [True, False]


@pytest.mark.parametrize(
    ("factors", "each", "errors", "expected"),
    [
        # The operation became slower by as much as others did.
        ([(1.0, 1.0), (2.0, 2.0)], [(10.0, 10.0), (20.0, 20.0)], 5.0, False),
        ([(1.0, 1.0), (1.0, 1.0)], [(10.0, 10.0), (20.0, 20.0)], 5.0, True),
        ([(1.0, 1.0), (1.0, 1.0)], [(10.0, 10.0), (10.9, 10.9)], 2.0, False),
        # It became faster than others did, although it takes longer.
        ([(1.0, 1.0), (3.0, 3.0)], [(10.0, 10.0), (20.0, 20.0)], 2.0, False),
        # The process of a device does not follow the load of its host.
        ([(0.5, 1.5), (0.5, 1.5)], [(10.0, 10.0), (20.0, 20.0)], 5.0, True),
        # The times themselves vary as the load does, so that only likely differences count.
        ([(0.5, 1.5), (0.5, 1.5)], [(5.0, 15.0), (15.0, 45.0)], 2.0, True),
        ([(0.5, 1.5), (0.5, 1.5)], [(5.0, 15.0), (15.0, 45.0)], 5.0, False),
        ([(0.8, 1.2), (0.8, 1.2)], [(8.0, 12.0), (24.0, 36.0)], 5.0, True),
    ],
)
def test_differences_from_other_operations(sides, factors, each, errors, expected):
    found = sides((100.0, 100.0), (100.0, 100.0))
    found.noise = 0.01
    found.factors = StepTimes(factors)
    found.times[FIRST] = StepTimes(each)
    assert found.differs_from_others([FIRST], errors) == expected


def test_factors_and_noise_of_processes(profile):
    def side(*loads):
        return [profile(row(FIRST, 4.0 * load), row(SECOND, 1.0 * load)) for load in loads]

    found = ComparedProfiles(side(1.0, 3.0), side(4.0, 4.0))
    # The means 2 and 4 have the geometric mean sqrt(8).
    expected = [value / math.sqrt(8) for value in (1, 3, 4, 4)]
    assert [*found.factors.each[0], *found.factors.each[1]] == pytest.approx(expected)
    # Divided by them, times of a process do not vary: at least 1 % is assumed.
    assert found.noise == 0.01
    assert ComparedProfiles(side(1.0), side(1.0, 1.0)).noise == 0.05
    assert ComparedProfiles(side(1.0, 1.0), side(1.0)).noise == 0.05
    waiting = [profile(row(GAPS, 1.0))] * 2
    idle = ComparedProfiles(waiting, waiting)
    assert (idle.noise, idle.factors.each) == (0.05, [[1.0, 1.0], [1.0, 1.0]])


def test_noise_is_the_median_of_operations(profile):
    third = StepPartKey("conv2", CONV, TO_INPUT)

    def process(first):
        return profile(row(FIRST, first), row(SECOND, 20.0), row(third, 20.0))

    found = ComparedProfiles([process(9.0), process(11.0)], [process(10.0), process(10.0)])
    assert found.factors.each == [[1, 1], [1, 1]]
    assert found.noise == 0.01  # The noise of two of the three operations is 0.
    two = ComparedProfiles(
        [profile(row(FIRST, value), row(SECOND, 20.0 - value)) for value in (9.0, 11.0)],
        [profile(row(FIRST, 10.0), row(SECOND, 10.0))] * 2,
    )
    # Factors are the medians of 0.9 and 1.1. Each variance is (1 + 1) / (4 - 2) of 10 squared.
    assert two.noise == pytest.approx(0.1)


def test_ten_operations_of_all_processes_decide_about_factors(profile):
    parts = [StepPartKey(f"conv{number}", CONV, FORWARD) for number in range(11)]
    lacking = StepPartKey("conv11", CONV, FORWARD)

    def process(values, *more):
        return profile(*map(row, parts, values), *more)

    # Five operations take twice as long in B, and five as long as in A; the shortest is not used.
    base = [process([16.0] * 5 + [10.0] * 5 + [1.0])] * 2
    new = [process([32.0] * 5 + [10.0] * 5 + [2.0], row(lacking, 99.0))] * 2
    found = ComparedProfiles(base, new)
    low, high = found.factors.of_sides
    assert low == pytest.approx((1 + 1 / math.sqrt(2)) / 2)
    assert high == pytest.approx((1 + math.sqrt(2)) / 2)


def test_pauses_are_a_part_of_the_step(profile):
    def process(slow):
        return profile(row(FIRST, 1.0, 1.0, 1.0, slow), row(GAPS, 1.0, 1.0, 1.0, 1.0))

    found = ComparedProfiles([process(1.0)] * 2, [process(9.0)] * 2)
    assert found.step.of_sides == (2, 4)
    split = found.with_pauses_as_part(
        [(), (), (3, 4), (3, 9)], [(0, 1, 2, 3)] * 2 + [(0, 1, 2)] * 2
    )
    assert split.means[PAUSES].each == [(0, 0), (2, 2)]
    assert split.times[PAUSES].each == [(0, 0), (2, 2)]
    assert split.means[FIRST].each == [(1, 1), (1, 1)]
    assert split.typical([FIRST]).of_sides == (1, 1)
    assert split.step.each == found.step.each
    added = sum(times.of_sides[1] for times in split.means.values())
    assert added == pytest.approx(4)
    # Steps in neither list keep their weight.
    some = found.with_pauses_as_part([(), (), (3,), (3,)], [(0, 1, 2, 3)] * 2 + [(0, 1)] * 2)
    assert some.weights[2] == [1.5, 1.5, 1, 0]
    assert found.with_pauses_as_part([(), (), (3,), (3,)], [(0,), (0,), (0,), (7,)]) is None
