"""Steps: known ones are found where they are, noise is not taken for one."""

import math
import random
from dataclasses import replace

import pytest

from cnnbench.base.levels import SeriesLevel
from cnnbench.judge.history import METRICS, trend
from cnnbench.judge.history.steps import (
    LevelChange,
    Outlier,
    Trend,
    changed_facts,
    shared_outliers,
    shared_steps,
)

SPEED = METRICS["throughput"]


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


def test_slow_steps_that_begin_at_a_step_are_named(by_commit, series_of):
    records = [by_commit(commit=f"c{index:02}", step_seconds=(0.08,) * 30) for index in range(8)]
    pauses = (0.08, 0.08, 0.2) * 10
    records += [by_commit(commit=f"d{index:02}", step_seconds=pauses) for index in range(8)]
    (step,) = trend(series_of(records)[0], SPEED).steps
    assert step.change == pytest.approx(-1 / 3)
    assert step.slow.extra == pytest.approx(0.12)


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


def test_slow_steps_of_a_level_are_those_of_most_of_its_points(by_commit, series_of):
    records = [by_commit(commit=f"c{index:02}", step_seconds=(0.08,) * 30) for index in range(8)]
    slower = [(0.12,) * 30] * 8
    slower[0] = PAUSING  # the first one alone was disturbed
    records += [by_commit(commit=f"d{n:02}", step_seconds=one) for n, one in enumerate(slower)]
    (step,) = trend(series_of(records)[0], SPEED).steps
    assert step.slow is None


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
        assert not found.lasting_regressions
        states = found.noise.states
        assert states.change == pytest.approx(-0.3, abs=0.01)
        slow = sum(value < 85 for values in points for value in values)
        assert (states.runs, states.total) == (slow, 30)
        assert found.noise.correlation is None


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


def test_a_trend_is_told_with_its_first_and_last_commit_and_is_red(by_commit, series_of):
    values = [400.0] * 10 + [400.0 * 0.99 ** (i + 1) for i in range(20)] + [400.0 * 0.99**20] * 10
    found = trend(series_of(by_commit.history(values))[0], SPEED)
    (step,) = found.steps
    assert step.kind == "trend"
    assert found.lasting_regressions == (step,)
    assert (step.first_bad.name, step.earliest.name) == ("c010", "c010")
    assert (step.last_good.name, step.latest.name) == ("c009", "c029")
    assert step.change == pytest.approx(0.99**20 - 1, abs=0.01)
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


@pytest.mark.parametrize(("end", "kind"), [(21, "plateau"), (22, "undone")])
def test_a_plateau_has_at_most_six_points(end, kind, by_commit, series_of):
    values = [100.0] * 40
    values[15:end] = [90.0] * (end - 15)
    assert kinds_of(values, by_commit, series_of) == [
        (kind, 15, True, False),
        (kind, end, False, True),
    ]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("box1", "box2", "two_machines"),
        ("box1", "box1", "step"),
        (None, "box2", "step"),
        ("box1", None, "step"),
    ],
)
def test_a_step_between_two_machines_needs_both_names(before, after, kind, by_commit, series_of):
    values = [100.0 + 0.1 * (index % 3) for index in range(8)]
    hosts = [before] * 8 + [after] * 8
    both = [*values, *(0.9 * value for value in values)]
    (step,) = trend(series_of(on_hosts(both, hosts, by_commit))[0], SPEED).steps
    assert step.kind == kind
    facts = [(one.fact, one.before, one.after) for one in step.facts]
    assert facts == ([("hostname", "box1", "box2")] if kind == "two_machines" else [])


def test_facts_of_two_points(by_commit, series_of):
    facts = {"numpy_version": "2", "tensorflow_version": "2.20", "gpu_names": ["A"]}
    records = [
        by_commit(100, "a", facts={**facts, "git_commit": "1"}),
        by_commit(100, "b", facts={"numpy_version": "3", "git_commit": "2", "gpu_names": ["A"]}),
        by_commit(100, "b", facts={"numpy_version": "4", "gpu_names": ["A"]}),
    ]
    before, after = series_of(records)[0].points
    found = [(one.fact, one.before, one.after) for one in changed_facts(before, after)]
    assert found == [
        ("tensorflow_version", "2.20", "unknown"),
        ("numpy_version", "2", "3 or 4"),
    ]
    assert changed_facts(before, before) == ()


def test_levels_are_fitted_at_each_point(by_commit, series_of):
    values = [100.0 + 0.1 * (index % 3) for index in range(9)]
    records = [by_commit(value, f"c{n:02}") for n, value in enumerate(values)]
    records += [by_commit(0.9 * value, f"d{n:02}") for n, value in enumerate(values)]
    found = trend(series_of(records)[0], SPEED)
    assert found.fitted == pytest.approx([100.1] * 9 + [90.09] * 9)
    assert (found.enough, found.outliers) == (True, ())
    # The threshold of the user is for all that follows.
    assert trend(series_of(records)[0], SPEED, 0.2).steps == ()
    short = trend(series_of(records[:5])[0], SPEED)
    assert (short.enough, short.steps) == (False, ())
    assert trend(series_of(records[:6])[0], SPEED).enough


@pytest.fixture
def flat(by_commit, series_of):
    """flat(COUNT): a series of points c000, c001, ... of 100 images/sec."""

    def make(count=12, **parts):
        records = by_commit.history([100.0] * count, per_commit=1, scatter=0.001, **parts)
        return series_of(records)[0]

    return make


def with_steps(series, *steps):
    """A trend with changes of its level: (index, from, to, change) and other fields."""
    points = series.points
    levels = SeriesLevel(0, 1, 100.0), SeriesLevel(1, 2, 90.0)
    made = []
    for (index, low, high, change), more in steps:
        values = {
            "index": index,
            "change": change,
            "before": levels[0],
            "after": levels[1],
            "worse": change < 0,
            "stands": True,
            "last_good": points[index - 1],
            "first_bad": points[index],
            "range_start": points[low - 1],
            "earliest": points[low],
            "latest": points[high],
            "facts": (),
            **more,
        }
        made.append(LevelChange(**values))
    return Trend(series=series, enough=True, levels=levels, fitted=(), steps=tuple(made))


@pytest.mark.parametrize(
    ("first", "second", "more", "groups"),
    [
        ((5, 5, 5), (5, 5, 5), {}, [("c005", (0, 1))]),
        ((5, 5, 5), (6, 6, 6), {}, [("c005", (0,)), ("c006", (1,))]),
        # The ranges in which the second level may begin include the first one, or end beside it.
        ((5, 5, 5), (6, 5, 8), {}, [("c005", (0, 1))]),
        ((5, 5, 5), (7, 6, 8), {}, [("c005", (0,)), ("c007", (1,))]),
        ((5, 5, 5), (3, 2, 5), {}, [("c005", (0, 1))]),
        ((5, 5, 5), (3, 2, 4), {}, [("c005", (0,)), ("c003", (1,))]),
        ((5, 5, 5), (5, 5, 5), {"worse": False}, [("c005", (0,)), ("c005", (1,))]),
        ((5, 5, 5), (5, 5, 5), {"stands": False}, [("c005", (0,)), ("c005", (1,))]),
        ((5, 5, 5), (5, 5, 5), {"kind": "trend"}, [("c005", (0,)), ("c005", (1,))]),
        ((5, 5, 5), (5, 5, 5), {"kind": "two_machines"}, [("c005", (0, 1))]),
    ],
)
def test_changes_of_one_commit_are_shared(flat, first, second, more, groups):
    trends = [
        with_steps(flat(), ((*first, -0.1), {})),
        with_steps(flat(flags={"batch_size": 4}), ((*second, -0.2), more)),
    ]
    found = shared_steps(trends)
    assert [(one.first_bad.name, one.series) for one in found] == groups
    if len(found) == 1:
        (shared,) = found
        assert (shared.smallest, shared.largest) == (-0.2, -0.1)
        assert shared.places == (0, 0)
        assert (shared.worse, shared.stands) == (True, True)
        assert [step for _, step in shared.steps] == [one.steps[0] for one in trends]


def test_the_commit_of_most_series_is_that_of_the_group(flat):
    trends = [
        with_steps(flat(), ((6, 4, 8, -0.1), {})),
        with_steps(flat(flags={"batch_size": 4}), ((5, 5, 5, -0.2), {})),
        with_steps(flat(flags={"batch_size": 2}), ((5, 4, 6, -0.3), {})),
    ]
    (shared,) = shared_steps(trends)
    assert (shared.first_bad.name, shared.series) == ("c005", (0, 1, 2))
    # A series has at most one change in a group; the others follow in order.
    twice = with_steps(flat(), ((3, 2, 5, -0.1), {}), ((5, 5, 5, -0.2), {}))
    found = shared_steps([twice, trends[1]])
    assert [(one.first_bad.name, one.series, one.places) for one in found] == [
        *(("c003", (0,), (0,)), ("c005", (0, 1), (1, 0)))
    ]
    assert shared_steps([]) == []


def test_outliers_of_one_commit_are_shared(flat):
    trends = [
        replace(with_steps(flat()), outliers=(Outlier(3, -0.2), Outlier(7, 0.3))),
        replace(with_steps(flat(flags={"batch_size": 4})), outliers=(Outlier(3, 0.1),)),
    ]
    found = shared_outliers(trends)
    assert [(one.point.name, one.series, one.smallest, one.largest) for one in found] == [
        *(("c003", (0, 1), -0.2, 0.1), ("c007", (0,), 0.3, 0.3))
    ]


def test_regressions_that_stand(flat):
    steps = [((3, 3, 3, -0.1), {}), ((5, 5, 5, -0.2), {"stands": False}), ((7, 7, 7, 0.1), {})]
    found = with_steps(flat(), *steps)
    assert found.lasting_regressions == found.steps[:1]
    assert [step.is_trend for step in found.steps] == [False] * 3
    (trending,) = with_steps(flat(), ((3, 3, 3, -0.1), {"kind": "trend"})).steps
    assert trending.is_trend


@pytest.mark.parametrize(("extra", "named"), [(0.0045, False), (0.0055, True)])
def test_slow_steps_explain_a_change_if_they_cost_more_than_the_threshold(
    extra, named, by_commit, series_of
):
    # Every third of 30 steps takes longer: of 80 ms, 3 % are 2.5 ms in each step.
    usual, slow = (0.08,) * 30, (0.08, 0.08, 0.08 + extra + 0.002) * 10
    records = [by_commit(commit=f"c{n:02}", step_seconds=usual, losses=()) for n in range(8)]
    slower = tuple(1.1 * one for one in slow)
    records += [by_commit(commit=f"d{n:02}", step_seconds=slower, losses=()) for n in range(8)]
    (step,) = trend(series_of(records)[0], SPEED).steps
    cost = (extra + 0.002) / 3 / (0.08 + (extra + 0.002) / 3)
    assert (cost > 0.03) == named
    assert (step.slow is not None) == named


def test_points_at_the_rarer_of_two_speeds_are_no_outliers(by_commit, series_of):
    speeds = [100.0, 71.0, 101.0, 99.0, 70.0, 100.0, 69.0, 102.0, 98.0, 70.5] * 3
    records = [by_commit(one, f"c{n:02}") for n, one in enumerate(speeds)]
    found = trend(series_of(records)[0], SPEED)
    assert found.noise.states is not None
    assert found.outliers == ()


@pytest.mark.parametrize(
    ("metric", "levels", "worse", "change"),
    [
        ("throughput", (100.0, 90.0), True, -0.1),
        ("throughput", (100.0, 110.0), False, 0.1),
        ("step_seconds", (100.0, 90.0), True, 1 / 9),
    ],
)
def test_changes_are_shares_of_the_level_before(
    metric, levels, worse, change, by_commit, series_of
):
    values = [level * (1 + 0.001 * (n % 2)) for level in levels for n in range(8)]
    records = [by_commit(value, f"c{n:02}") for n, value in enumerate(values)]
    (step,) = trend(series_of(records, metric)[0], METRICS[metric]).steps
    assert (step.worse, step.stands, step.index) == (worse, True, 8)
    assert step.change == pytest.approx(change, rel=1e-2)
    assert (step.range_start.name, step.first_bad.name) == ("c07", "c08")
