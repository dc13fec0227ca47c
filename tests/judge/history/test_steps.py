"""Steps: known ones are found where they are, noise is not taken for one."""

import math
import random
import statistics

import pytest

from cnnbench.base.levels import NoisyPoints, SeriesLevel, find_levels, likely_starts
from cnnbench.judge.history import METRICS, trend
from cnnbench.judge.history.formats import step_text

SPEED = METRICS["throughput"]


def draws(kind, count, seed):
    """Noise of standard deviation 1."""
    rng = random.Random(f"{kind} {count} {seed}")
    values, last = [], rng.gauss(0, 1)
    for _ in range(count):
        if kind.startswith("correlated"):
            correlation = float(kind.split()[1])
            last = correlation * last + math.sqrt(1 - correlation**2) * rng.gauss(0, 1)
            values.append(last)
        elif kind == "two states":  # of 5 %: 30 % of the runs at 0.7 of the speed
            values.append(rng.gauss(0, 0.2) - 7.1 * (rng.random() < 0.3))
        elif kind == "Laplace":
            values.append(rng.choice((1, -1)) * rng.expovariate(math.sqrt(2)))
        elif kind == "heavy tails":
            chi = sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3
            values.append(rng.gauss(0, 1) / math.sqrt(chi) / math.sqrt(3))
        elif kind == "outliers":
            values.append(rng.gauss(0, 1) + (8 if rng.random() < 0.05 else 0))
        else:
            values.append(rng.gauss(0, 1))
    return values


def levels_of(values, relative, threshold):
    return find_levels([[value] for value in values], relative, threshold)


def levels_at(values, cut):
    parts = (0, cut), (cut, len(values))
    return [SeriesLevel(a, b, statistics.median(values[a:b])) for a, b in parts if b > a]


def starts_of(values, cut):
    noisy = NoisyPoints([[value] for value in values], relative=False)
    return likely_starts(noisy, levels_at(values, cut), 1)


def series(values, scatter):
    return [100 * math.exp(scatter * value) for value in values]


def test_a_step_is_found_with_the_commits_around_it(by_commit, series_of):
    records = by_commit.history([100.0] * 20 + [92.0] * 8)
    (one,) = series_of(records)
    found = trend(one, SPEED)
    (step,) = found.steps
    assert (step.last_good.name, step.first_bad.name) == ("c019", "c020")
    assert (step.earliest.name, step.latest.name) == ("c020", "c020")
    assert step.change == pytest.approx(-0.08, abs=0.01)
    assert step.worse
    assert step.stands
    assert [level.value for level in found.levels] == pytest.approx([100, 92], rel=0.01)


def test_a_change_for_the_better_and_metrics_of_which_less_is_better(by_commit, series_of):
    records = by_commit.history([100.0] * 10 + [110.0] * 10)
    (step,) = trend(series_of(records)[0], SPEED).steps
    assert not step.worse
    seconds = METRICS["step_seconds"]
    (step,) = trend(series_of(records, "step_seconds")[0], seconds).steps
    assert not step.worse
    assert step.change == pytest.approx(-0.091, abs=0.01)


def test_a_step_that_was_undone_is_told_and_stands_no_longer(by_commit, series_of):
    records = by_commit.history([100.0] * 10 + [85.0] * 10 + [100.0] * 10)
    first, second = trend(series_of(records)[0], SPEED).steps
    assert (first.worse, first.stands) == (True, False)
    assert (second.worse, second.stands) == (False, True)


def test_facts_that_changed_at_the_step_are_named_what_decides_speed_first(by_commit, series_of):
    records = by_commit.history(
        [100.0] * 8, facts={"tensorflow_version": "2.20", "numpy_version": "2"}
    )
    after = {"tensorflow_version": "2.21", "numpy_version": "3", "hostname": "box2"}
    for index in range(8):
        records += [by_commit(80.0, f"d{index}", facts=after)]
    (step,) = trend(series_of(records)[0], SPEED).steps
    assert [(one.fact, one.before, one.after) for one in step.facts] == [
        ("tensorflow_version", "2.20", "2.21"),
        ("numpy_version", "2", "3"),
        ("hostname", "box1", "box2"),
    ]
    assert step.kind == "two_machines"


def test_slow_steps_that_begin_at_a_step_are_named(by_commit, series_of):
    records = [by_commit(commit=f"c{index:02}", step_seconds=(0.08,) * 30) for index in range(8)]
    pauses = (0.08, 0.08, 0.2) * 10
    records += [by_commit(commit=f"d{index:02}", step_seconds=pauses) for index in range(8)]
    (step,) = trend(series_of(records)[0], SPEED).steps
    assert step.change == pytest.approx(-1 / 3)
    text = step_text(step, SPEED)
    assert text.endswith("; then every third step takes 120.0 ms more (33.3 % of the steps)")


PAUSING = (0.08, 0.08, 0.2) * 10
ONE_FAST = (0.034, *(0.07 + 0.0004 * (3 * step % 7) for step in range(19)))


@pytest.mark.parametrize("seconds", [PAUSING, ONE_FAST])
def test_slow_steps_that_were_there_before_are_no_cause(seconds, by_commit, series_of):
    records = [
        by_commit(commit=f"c{index:02}", step_seconds=tuple((1 + (index > 7)) * s for s in seconds))
        for index in range(16)
    ]
    (step,) = trend(series_of(records)[0], SPEED).steps
    assert (step.worse, step.slow) == (True, None)
    assert step_text(step, SPEED).endswith("first bad c08")


def test_slow_steps_of_a_level_are_those_of_most_of_its_points(by_commit, series_of):
    records = [by_commit(commit=f"c{index:02}", step_seconds=(0.08,) * 30) for index in range(8)]
    slower = [(0.12,) * 30] * 8
    slower[0] = PAUSING  # the first one alone was disturbed
    records += [by_commit(commit=f"d{n:02}", step_seconds=one) for n, one in enumerate(slower)]
    (step,) = trend(series_of(records)[0], SPEED).steps
    assert step.slow is None


def test_changes_below_the_threshold_are_none_whatever_their_number():
    quiet = [100.0] * 10 + [98.0] * 10
    assert len(levels_of(quiet, True, 0.03)) == 1
    assert len(levels_of(quiet, True, 0.01)) == 2
    stairs = [100.0 * 0.98**step for step in range(6) for _ in range(8)]
    levels = levels_of(stairs, True, 0.03)
    assert len(levels) >= 2
    assert levels[0].value / levels[-1].value > 1.05


NOISY = [100.0, 101.0, 99.0] * 8


@pytest.mark.parametrize(
    ("values", "relative", "threshold", "starts"),
    [
        ([0.75] * 6 + [0.74] * 6, False, 0.005, [0, 6]),
        ([0.75] * 6 + [0.74] * 6, False, 0.02, [0]),
        ([0.0] * 6 + [-1.0] * 6, False, 0.5, [0, 6]),
        ([], True, 0.03, []),
        ([1.0], True, 0.03, [0]),
        ([1.0, 2.0, 2.0, 2.0, 2.0], True, 0.03, [0]),
        ([1.0] * 50, True, 0.0, [0]),
        # An outlier is no level; two in a row are one, undone afterwards.
        ([*NOISY[:10], 50.0, *NOISY[11:]], True, 0.03, [0]),
        ([*NOISY[:20], 60.0], True, 0.03, [0]),
        ([*NOISY[:10], 50.0, 51.0, *NOISY[12:]], True, 0.03, [0, 10, 12]),
    ],
)
def test_levels(values, relative, threshold, starts):
    assert [level.start for level in levels_of(values, relative, threshold)] == starts


@pytest.mark.parametrize(
    ("kind", "count", "at_most"),
    [
        # Of 300 draws each; what docs/history.md says, with room for chance.
        ("normal", 6, 9),
        ("normal", 60, 3),
        ("heavy tails", 12, 6),
        ("outliers", 60, 9),
        ("correlated 0.3", 12, 9),
        ("correlated 0.6", 12, 22),
        ("correlated 0.6", 60, 16),
        ("two states", 6, 34),
        ("two states", 30, 18),
        ("two states", 60, 16),
    ],
)
def test_false_alarms_of_noise_alone(kind, count, at_most):
    alarms = 0
    for seed in range(300):
        values = series(draws(kind, count, seed), 0.05)
        alarms += len(levels_of(values, True, 0.03)) > 1
    assert alarms <= at_most


@pytest.mark.parametrize(
    ("size", "points", "at_least"),
    [(8, 2, 120), (8, 3, 145), (5, 3, 105), (5, 5, 145), (3, 10, 140)],
)
def test_power_for_steps_of_some_standard_deviations_after_some_points(size, points, at_least):
    # Of 200 draws of 60 points each; more than asv's, whose method sees 41 of 200 at (5, 3).
    found = 0
    for seed in range(200):
        values = draws("normal", 60, seed)
        values = [v - size * (i >= 60 - points) for i, v in enumerate(values)]
        starts = [level.start for level in levels_of(series(values, 0.02), True, 0.03)]
        found += any(abs(start - (60 - points)) <= 2 for start in starts[1:])
    assert found >= at_least


@pytest.mark.parametrize(
    ("kind", "size"),
    [("normal", 2), ("Laplace", 2), ("correlated 0.5", 2.5), ("two states", 3)],
)
def test_the_likely_places_of_a_step_hold_its_true_one_often_enough(kind, size):
    hits = found = 0
    for seed in range(250):
        values = [v - size * (i >= 20) for i, v in enumerate(draws(kind, 40, seed))]
        levels = levels_of(values, False, 0.0)
        if len(levels) == 2:
            found += 1
            low, high = starts_of(values, levels[1].start)
            assert low <= levels[1].start <= high
            hits += low <= 20 <= high
    assert found > (30 if kind == "two states" else 80)
    assert hits / found >= 0.93


def of_states(runs, seed=0):
    """Points of runs, 30 % of which are slow."""
    rng = random.Random(seed)
    return [
        [(70 if rng.random() < 0.3 else 100) * math.exp(rng.gauss(0, 0.01)) for _ in range(number)]
        for number in runs
    ]


@pytest.mark.parametrize("runs", [[1] * 30, [5] * 6])
def test_two_states_of_a_machine_are_named_and_are_no_steps(runs, by_commit, series_of):
    for seed in range(8):
        points = of_states(runs, seed)
        records = [by_commit(v, f"c{i:02}") for i, values in enumerate(points) for v in values]
        found = trend(series_of(records)[0], SPEED)
        assert not found.setbacks
        states = found.noise.states
        assert states.change == pytest.approx(-0.3, abs=0.01)
        slow = sum(value < 85 for values in points for value in values)
        assert (states.runs, states.total) == (slow, 30)
        assert found.noise.correlation is None


def test_runs_of_one_commit_tell_states_from_a_step():
    # The medians are those of a step by 6 %, the runs of the last points are of two states.
    medians = [100.0, 101.0, 99.5, 100.5, 94.0, 94.5, 93.5, 94.2]
    steady = [[value, 1.01 * value, 0.99 * value] for value in medians]
    mixed = [[v, 1.02 * v, 0.7 * v, 0.71 * v, 1.4 * v] for v in medians]
    assert len(find_levels(steady, True, 0.03)) == 2
    assert len(find_levels(mixed, True, 0.03)) == 1


def recognized(points, cut):
    levels = levels_at([value for (value,) in points], cut)
    return NoisyPoints(points, relative=True).recognized(levels, [()] * len(points), 0.03)


def test_correlated_noise_is_named_and_a_step_in_quiet_points_is_not():
    correlated = [[value] for value in series(draws("correlated 0.6", 60, 1), 0.05)]
    step = [[value] for value in series(draws("normal", 60, 1), 0.01)]
    step[40:] = [[0.9 * value] for (value,) in step[40:]]
    found = recognized(correlated, 60)
    assert 0.4 <= found.correlation <= 0.8
    assert found.states is None
    found = recognized(step, 40)
    assert (found.correlation, found.states) == (None, None)


def test_a_slow_drift_is_found():
    found = 0
    for seed in range(40):
        values = [0.01 * v - 0.1 * i / 30 for i, v in enumerate(draws("normal", 30, seed))]
        found += len(levels_of(series(values, 1.0), True, 0.03)) > 1
    assert found > 30


def test_the_place_of_a_clear_step_is_certain_and_of_a_blurred_one_is_not():
    assert starts_of([1.0] * 5 + [9.0] * 5, 5) == (5, 5)
    low, high = starts_of([0.0, 0.1, 0.0, 0.5, 0.5, 1.0, 0.9, 1.0], 4)
    assert low <= 3
    assert high >= 5


def kinds_of(values, by_commit, series_of):
    return [
        (step.kind, step.index, step.worse, step.stands)
        for step in trend(series_of(by_commit.history(values))[0], SPEED).steps
    ]


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ([(20, 0.93)], [("step", 20, True, True)]),
        ([(15, 0.93), (26, 1.0)], [("undone", 15, True, False), ("undone", 26, False, True)]),
        ([(15, 1.08), (26, 1.0)], [("undone", 15, False, False), ("undone", 26, True, True)]),
        ([(15, 0.9), (20, 1.0)], [("plateau", 15, True, False), ("plateau", 20, False, True)]),
        (
            [(8, 0.9), (14, 0.8), (30, 1.0)],
            [("undone", 8, True, False), ("undone", 14, True, False), ("undone", 30, False, True)],
        ),
    ],
    ids=["step", "undone", "rise and fall", "plateau", "two at once"],
)
def test_kinds_of_changes(changes, kinds, by_commit, series_of):
    values = [100.0] * 40
    for start, level in changes:
        values[start:] = [100.0 * level] * (40 - start)
    assert kinds_of(values, by_commit, series_of) == kinds


def test_an_undone_change_says_where_it_was_undone(by_commit, series_of):
    values = [100.0] * 15 + [93.0] * 11 + [100.0] * 14
    first, second = trend(series_of(by_commit.history(values))[0], SPEED).steps
    assert first.undone.name == "c026"
    assert second.undone is None
    assert step_text(first, SPEED).endswith("last good c014, first bad c015; undone at c026")


def test_a_trend_is_told_with_its_first_and_last_commit_and_is_red(by_commit, series_of):
    values = [400.0] * 10 + [400.0 * 0.99 ** (i + 1) for i in range(20)] + [400.0 * 0.99**20] * 10
    found = trend(series_of(by_commit.history(values))[0], SPEED)
    (step,) = found.steps
    assert step.kind == "trend"
    assert found.setbacks == (step,)
    assert (step.first_bad.name, step.earliest.name) == ("c010", "c010")
    assert (step.last_good.name, step.latest.name) == ("c009", "c029")
    assert step.change == pytest.approx(0.99**20 - 1, abs=0.01)
    text = step_text(step, SPEED)
    assert text.startswith("worse: -18")
    assert text.endswith("a trend from c010 to c029")
    before, within, after = found.levels
    assert [within.at(i, True) for i in (10, 28)] == pytest.approx([396, 330.4], rel=0.01)
    assert within.slope == pytest.approx(-0.01, abs=0.001)
    assert before.at(0, True) == before.value > within.value > after.value
    assert not found.outliers
    assert found.noise.correlation is None
    rising = [400.0 * 1.02**i for i in range(20)]
    (step,) = trend(series_of(by_commit.history(rising))[0], SPEED).steps
    assert (step.kind, step.worse, step.index, step.latest.name) == ("trend", False, 1, "c019")


def test_a_loss_that_is_a_step_also_stands(by_commit, series_of):
    # Splits and "undone" use one floor: 2.95 % is more than a threshold of 3 % in logarithms.
    for level in (97.05, 97.01):
        values = [100.0] * 15 + [level] * 15
        records = [by_commit(value, f"c{index:02}") for index, value in enumerate(values)]
        (step,) = trend(series_of(records)[0], SPEED).steps
        assert step.stands
        assert step.kind == "step"


def on_hosts(values, hosts, by_commit):
    return [
        by_commit(value, f"c{index:03}", facts={"hostname": host})
        for index, (value, host) in enumerate(zip(values, hosts, strict=True))
    ]


def test_two_machines_of_a_pool_are_named_with_their_hosts(by_commit, series_of):
    rng = random.Random(3)
    hosts = [rng.choice(["box1", "box1", "box2"]) for _ in range(40)]
    values = [(92.0 if one == "box2" else 100.0) * math.exp(rng.gauss(0, 0.015)) for one in hosts]
    found = trend(series_of(on_hosts(values, hosts, by_commit))[0], SPEED)
    assert not found.steps
    states = found.noise.states
    assert (states.kind, states.hosts) == ("two_machines", ("box2",))
    assert (states.runs, states.total) == (hosts.count("box2"), 40)
    assert states.change == pytest.approx(-0.08, abs=0.015)
    # A pool with a new name for each run says nothing, and equal machines are one.
    fresh = [f"pod{index}" for index in range(40)]
    assert trend(series_of(on_hosts(values, fresh, by_commit))[0], SPEED).noise.states is None
    equal = [100.0 * math.exp(rng.gauss(0, 0.015)) for _ in hosts]
    assert trend(series_of(on_hosts(equal, hosts, by_commit))[0], SPEED).noise.states is None


def test_plateaus_do_not_alternate_as_two_states_do():
    plateaus = [100.0 - 30 * (index // 5 % 2) + 0.1 * (index % 3) for index in range(40)]
    flips = [100.0 - 30 * (index * 7 % 3 == 0) + 0.1 * (index % 3) for index in range(40)]
    level = [SeriesLevel(0, 40, 100.0)]
    for values, is_named in ((plateaus, False), (flips, True)):
        noisy = NoisyPoints([[value] for value in values], relative=True)
        assert (noisy.recognized(level, [()] * 40, 0.03).states is not None) == is_named
