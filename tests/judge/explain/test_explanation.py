"""Planted causes in synthetic profiles are named first, and on like sides nothing is.

Tests cnnbench/judge/explain/causes.py, cnnbench/judge/explain/pauses.py and
cnnbench/judge/explain/sides.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
from statistics import fmean

import pytest
from covering import slow_if
from step_profiles import (
    CONV,
    Profiles,
    Row,
    changed,
    exact_profile,
    exact_row,
    network,
    paused,
    with_records,
)

from cnnbench.base.slow_steps import undisturbed_mean_seconds
from cnnbench.judge.explain import explain
from cnnbench.judge.explain.blocks import explanation_rows
from cnnbench.judge.explain.sides import StepTimes
from cnnbench.records.explanation import Explanation
from cnnbench.records.profiles import (
    FORWARD,
    GAPS,
    INPUT_WAIT,
    OUTSIDE,
    PROGRAM,
    REDUCTION,
    REST,
    TO_KERNEL,
    UPDATE,
    StepPartKey,
    StepProfile,
)

SEEDS = range(5)
HOT = StepPartKey("conv2", CONV, TO_KERNEL)


UPDATES, REDUCED = (StepPartKey(REST, kind, OUTSIDE) for kind in (UPDATE, REDUCTION))


def with_row(part, factor, operations=()):
    """The network with another time of one row, and other operations."""
    rows = network()
    found = {**(rows[part].operations or {}), **dict(operations)}
    return {**rows, part: rows[part].times(factor, operations=found)}


SLOWER_KERNEL = with_row(HOT, 1.7)
TWICE = changed(lambda part: part[:2] == ("conv1", CONV), 2.0, flops=2 * 10**9)
SINGLE = {
    **changed(lambda part: part[:2] == ("conv3", CONV), 1.8, network("float32")),
    **{part: row for part, row in network().items() if part[:2] != ("conv3", CONV)},
    StepPartKey("conv3", "cast", FORWARD): Row(0.4, operations={"Cast float32": 2}),
}
SLEEPING = with_row(PROGRAM, 10.0)
ONE_THREAD = {"num_intra_threads": 1}

# Rows and flags of B; kind and place of the cause.
PLANTED = {
    "slower kernel": (SLOWER_KERNEL, {}, "kernel", "conv2, gradient of kernels"),
    "twice the work": (TWICE, {}, "work", "conv1"),
    "another precision": (SINGLE, {}, "precision", "conv3"),
    "unfused norm": (
        changed(
            lambda part: part.kind == "batch norm",
            3.0,
            operations={"Mean float32": 2, "Mul float32": 3},
        ),
        {},
        "batch norm",
        "batch norm of conv",
    ),
    "copied weights": (
        with_row(UPDATES, 2.5, {"AssignVariableOp": 12}),
        {},
        "copies",
        "updates and copies of variables",
    ),
    "slower input": (with_row(INPUT_WAIT, 60.0), {}, "input", "the input pipeline"),
    "fewer threads": (
        changed(lambda part: part.layer.startswith("conv"), 1.8),
        ONE_THREAD,
        "threads",
        "all operations",
    ),
    "another reduction": (
        with_row(REDUCED, 2.2, {"AddN float32": 3, "ConcatV2 float32": 9}),
        {"all_reduce_spec": "xring"},
        "reduction",
        "the reduction of gradients",
    ),
    "sleeping program": (SLEEPING, {}, "program", "the training loop, outside the graph"),
    "another layer": (
        {**network(), StepPartKey("conv9", CONV, FORWARD): Row(5.0, 10**9)},
        {},
        "layers",
        "conv9",
    ),
}


@pytest.fixture
def calm(lenet_runs):
    """Profiles of processes on an idle machine."""
    return Profiles(lenet_runs(), load=0.0)


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_cause_is_named_first(planted, lenet_runs):
    rows, flags, kind, place = PLANTED[planted]
    first = []
    for seed in SEEDS:
        profiles = Profiles(lenet_runs(), seed)
        base = profiles.side(num_intra_threads=2)
        found = explain(base, profiles.side(rows, **{"num_intra_threads": 2, **flags}))
        cause = found.causes[0] if found.causes else None
        first.append(cause is not None and (cause.kind, cause.place[: len(place)]) == (kind, place))
    assert sum(first) >= len(SEEDS) - 1


def test_profiles_that_name_no_operations(profiles):
    rows = {part: row.times(1.0, operations=None) for part, row in network().items()}
    found = explain(profiles.side(rows), profiles.side({**rows, REDUCED: rows[REDUCED].times(3.0)}))
    assert [cause.kind for cause in found.causes] == ["reduction"]


def test_threads_explain_what_they_make_faster(lenet_runs):
    rows = changed(lambda part: part.kind == UPDATE, 0.2)
    rows = changed(lambda part: part == HOT, 1.05, rows)
    kinds = []
    for seed in SEEDS:
        profiles = Profiles(lenet_runs(), seed, load=0.02)
        base = profiles.side(num_intra_threads=2)
        kinds += [c.kind for c in explain(base, profiles.side(rows, **ONE_THREAD)).causes[:1]]
    assert kinds == ["threads"] * len(SEEDS)


@pytest.mark.parametrize(
    ("load", "noise"), slow_if([(0.2, 0.02)], [(0.0, 0.01), (0.2, 0.02), (0.4, 0.2)])
)
def test_on_like_sides_nothing_is_named(lenet_runs, load, noise):
    named = []
    for seed in range(10):
        profiles = Profiles(lenet_runs(), seed, load, noise)
        found = explain(profiles.side(), profiles.side())
        named += [cause.kind for cause in found.causes]
    assert named == []


def test_a_process_that_was_slow_for_another_reason_hides_nothing(profiles):
    slow = {**SLEEPING, PROGRAM: SLEEPING[PROGRAM].times(2.0)}
    found = explain(profiles.side(), [profiles(SLEEPING), profiles(slow), profiles(SLEEPING)])
    assert [cause.kind for cause in found.causes] == ["program"]


def test_rows_and_remainder_add_up_to_the_measured_difference(profiles):
    found = explain(profiles.side(), profiles.side(TWICE))
    whole = sum(row.difference for row in found.rows) + found.remainder
    assert whole == pytest.approx(found.difference, rel=1e-9)
    assert sum(row.base for row in found.rows) == pytest.approx(found.profiled_base, rel=1e-9)
    *shown, step = explanation_rows(found, 5)
    assert len(shown) == 5 + 2
    assert sum(line.base for line in shown) == pytest.approx(step.base, rel=1e-9)
    assert sum(line.new for line in shown) == pytest.approx(step.new, rel=1e-9)


def test_all_numbers_are_the_means_that_compare_judges(calm):
    def disturbed(profile):
        """The process lost 2 s to another program, in one profiled and in one timed step."""
        return paused(profile, HOT, 2.0, {5})

    base = [paused(one, HOT, 0.0, ()) for one in calm.side()]
    new = [paused(one, HOT, 0.0, ()) for one in calm.side(SLOWER_KERNEL)]
    new[1] = disturbed(new[1])
    found = explain(base, new)
    (cause,), (row,) = found.causes, [one for one in found.rows if one.layer == HOT.layer][:1]
    assert (cause.base, cause.new, cause.spread) == (row.base, row.new, row.spread)
    both = [*base, *new]
    profiled = undisturbed_mean_seconds([one.step_seconds for one in both])
    timed = undisturbed_mean_seconds([one.record.step_seconds for one in both])
    for means, seconds in (
        (profiled, (found.profiled_base, found.profiled_new)),
        (timed, (found.base, found.new)),
    ):
        assert seconds == pytest.approx((fmean(means[:3]), fmean(means[3:])))
    assert sum(one.new for one in found.rows) == pytest.approx(found.profiled_new)
    assert row.difference < 0.012  # and not 0.0103 + 2 / 24 / 3
    assert found.unexplained == pytest.approx(found.difference - cause.difference)


def test_noise_that_hides_everything_is_told(lenet_runs):
    profiles = Profiles(lenet_runs(), seed=3, load=0.4)
    found = explain(profiles.side(), profiles.side())
    assert not found.differs_significantly


def test_a_kernel_of_a_device_does_not_follow_the_load_of_its_host(lenet_runs):
    def on_device(profile, seconds):
        times = tuple(seconds * (1 + 0.01 * step) for step in range(len(profile.step_seconds)))
        rows = [dataclasses.replace(r, seconds=times) if r.part == HOT else r for r in profile.rows]
        return dataclasses.replace(profile, rows=tuple(rows))

    answers = []
    for seed in SEEDS:
        profiles = Profiles(lenet_runs(), seed, load=1.0)
        base, new = (
            [on_device(one, seconds) for one in profiles.side(processes=2)]
            for seconds in (0.003, 0.2)
        )
        answers.append(explain(base, new).answer)
    assert all(" in conv2" in answer and "(3." in answer for answer in answers), answers


def test_one_process_of_each_side_is_compared_by_its_steps(profiles):
    base = [profiles()]
    assert explain(base, [profiles()]).causes == ()
    found = explain(base, [profiles(TWICE)])
    assert (found.causes[0].kind, found.causes[0].place) == ("work", "conv1")


def test_batch_norm_that_one_side_has_more_of_is_not_taken_for_a_fused_one(calm):
    more = StepPartKey("conv9", "batch norm", FORWARD)
    rows = {**network(), more: Row(9.0, operations={"FusedBatchNormV3 float32": 1})}
    (cause,) = explain(calm.side(), calm.side(rows)).causes
    assert (cause.kind, cause.place) == ("layers", "conv9")


def test_a_cause_names_a_flag_once_and_no_fact_that_follows_from_it(calm):
    rows = with_row(REDUCED, 2.2, {"ConcatV2 float32": 9})
    sides = [calm.side(), calm.side(rows, all_reduce_spec="xring")]
    for side, algorithm in zip(sides, ("pscpu", "xring"), strict=True):
        placements = [
            dataclasses.replace(one.record.placement, all_reduce=(algorithm,)) for one in side
        ]
        side[:] = with_records(side, placement=placements)
    found = explain(*sides)
    assert {"all_reduce_spec", "all_reduce"} <= {one.fact for one in found.facts}
    (cause,) = found.causes
    assert cause.kind == "reduction"
    assert cause.text.count("all_reduce") == 1
    assert [one for one in cause.evidence if "all_reduce: " in one] == []
    assert "all_reduce: " not in found.answer


def test_a_fact_that_processes_of_both_sides_share_is_no_cause(calm):
    def under(side, libraries):
        facts = side[0].record.environment
        return with_records(
            side, environment=[{**facts, "env_OMP_NUM_THREADS": one} for one in libraries]
        )

    base = calm.side()
    new = under(calm.side(changed(lambda part: part == GAPS, 6.0)), "111")
    assert [cause.kind for cause in explain(under(base, "112"), new).causes] == ["gaps"]
    assert [cause.kind for cause in explain(under(base, "222"), new).causes] == ["threads"]


def test_documents_survive_their_files(profiles, holds):
    base, new = profiles.side(), profiles.side(SINGLE, precision="bf16")
    holds("step_profile", *(json.loads(one.to_json()) for one in (*base, *new)))
    assert StepProfile.from_json(base[0].to_json()) == base[0]
    found = explain(base, new)
    document = json.loads(found.to_json())
    holds("explanation", document)
    assert Explanation.from_json(found.to_json()) == found
    assert document["causes"][0]["difference"] == pytest.approx(found.causes[0].difference)


@pytest.mark.parametrize("counts", [(1, 1), (3, 1)])
def test_one_process_is_no_evidence_of_a_cause(counts, profiles):
    found = explain(profiles.side(processes=counts[0]), profiles.side(SLEEPING, counts[1]))
    assert found.causes == ()
    assert "--rounds=3" in found.answer


AT_RANDOM = {2, 3, 9, 14, 22}


@pytest.mark.parametrize(
    ("part", "slow", "place", "text"),
    [
        (PROGRAM, set(range(0, 24, 3)), "the training loop", "every third step"),
        (INPUT_WAIT, AT_RANDOM, "the input pipeline", "at irregular distances"),
        # The median over the steps is that of a slow one, too.
        (HOT, set(range(1, 24, 2)), "conv2, kernel gradient", "every second step"),
    ],
)
def test_steps_that_are_slow_now_and_then_are_a_cause(part, slow, place, text, lenet_runs):
    profiles = Profiles(lenet_runs(), load=0.0)
    base = [paused(one, part, 0.0, slow) for one in profiles.side()]
    new = [paused(one, part, 0.3, slow) for one in profiles.side()]
    (first,) = explain(base, new).causes
    assert (first.kind, first.place[: len(place)]) == ("pauses", place)
    assert text in first.text
    assert first.difference == pytest.approx(0.3 * len(slow) / 24, rel=0.2)
    assert any("it waits" in line for line in first.evidence)
    found = explain(base, new)
    (row,) = (one for one in found.rows if one.layer == "pauses")
    assert (row.base, row.new, row.spread) == (first.base, first.new, first.spread)
    assert sum(one.new for one in found.rows) == pytest.approx(found.profiled_new)
    assert found.unexplained == pytest.approx(found.difference - first.difference)
    assert "pauses" not in {cause.kind for cause in explain(new, new).causes}
    assert "pauses" not in {cause.kind for cause in explain(base, base).causes}


@pytest.mark.parametrize(
    ("part", "kind", "start", "extra"),
    [
        (GAPS, "gaps", 0, 0.02),
        (GAPS, "gaps", 11, 0.3),
        (PROGRAM, "program", 0, 0.3),
        (PROGRAM, "program", 11, 0.02),
    ],
)
def test_slow_steps_that_are_most_steps_have_the_size_of_the_mean(part, kind, start, extra, calm):
    slow = range(start, start + 13)
    base, new = ([paused(one, part, more, slow) for one in calm.side()] for more in (0, extra))
    (cause,) = explain(base, new).causes
    assert cause.kind == kind
    assert cause.difference == pytest.approx(extra * 13 / 24, rel=0.01)


@pytest.mark.parametrize("slow", slow_if([{4, 14}], [AT_RANDOM, {4, 14}]))
def test_pauses_are_found_where_operations_scatter(slow, lenet_runs):
    named, alike = [], []
    for seed in SEEDS:
        profiles = Profiles(lenet_runs(), seed, load=0.4, noise=0.2)
        base, new, other = (
            [paused(one, INPUT_WAIT, extra, slow) for one in profiles.side()]
            for extra in (0.0, 0.04, 0.04)
        )
        named += [(one.kind, one.place) for one in explain(base, new).causes[:1]]
        alike += explain(new, other).causes
    assert named.count(("pauses", "the input pipeline")) >= len(SEEDS) - 1
    assert alike == []


@pytest.mark.parametrize(
    ("base", "new", "separated"),
    [
        ((1.0, 2.0), (3.0, 4.0), True),
        ((3.0, 4.0), (1.0, 2.0), True),
        ((1.0, 2.0), (2.0, 3.0), False),
        ((2.0, 3.0), (1.0, 2.0), False),
        ((1.0, 4.0), (2.0, 3.0), False),
    ],
)
def test_times_of_two_sides_are_separated_if_none_is_among_the_others(base, new, separated):
    assert StepTimes([base, new]).separated == separated


def test_arithmetic_of_step_times():
    times = StepTimes([(1.0, 3.0), (2.0, 4.0, 6.0)], within=0.5, steps=40)
    assert (times.of_sides, times.difference) == ((2.0, 4.0), 2.0)
    doubled = times + times
    assert [*map(list, doubled.each)] == [[2, 6], [4, 8, 12]]
    assert (doubled.within, doubled.steps) == (1.0, 40)
    logs = times.logarithms()
    assert [math.exp(value) for side in logs.each for value in side] == pytest.approx(
        [1, 3, 2, 4, 6]
    )
    assert (logs.within, logs.steps) == (pytest.approx(0.5 / 3.2**2), 40)
    assert StepTimes([(1.0, 0.0), (2.0,)]).logarithms() is None
    ratios = times.divided_by([(2.0, 2.0), (4.0, 4.0, 4.0)])
    assert [*map(list, ratios.each)] == [[0.5, 1.5], [0.5, 1, 1.5]]
    assert (ratios.within, ratios.steps) == (pytest.approx(0.5 / 3.2**2), 40)


def test_means_and_medians_of_steps():
    values = [[(1.0, 2.0, 9.0), (3.0, 3.0, 3.0)], [(4.0, 6.0, 100.0)]]
    weights = [[(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)], [(1.5, 1.5, 0.0)]]
    found = StepTimes.mean(values, weights)
    # The steps of a single process stand for processes.
    assert [*map(list, found.each)] == [[4, 3], [6, 9, 0]]
    found = StepTimes.typical(values, weights)
    assert [*map(list, found.each)] == [[2, 3], [4, 6]]
    assert found.steps == 6
    assert StepTimes.typical(values, weights, centre=min).each[0] == (1.0, 3.0)
    assert StepTimes.typical(values, weights, centre=min).steps == 0


def level(record, seconds, timed, steps=3):
    """A process of which each step takes `seconds` in a layer, and 1 s in updates."""
    rows = [exact_row(HOT, *[seconds] * steps), exact_row(UPDATES, *[1.0] * steps)]
    return exact_profile(record, rows, (timed,) * 3, devices=2)


def test_the_numbers_of_an_explanation(lenet_runs):
    record = lenet_runs()
    base = [level(record, 9.0, timed) for timed in (9.0, 11.0)]
    new = [level(record, 19.0, timed, 5) for timed in (19.0, 21.0, 20.0)]
    found = explain(base, new, ("one", "other"))
    assert (found.base_label, found.new_label) == ("one", "other")
    assert (found.base, found.new) == (10, 20)
    assert (found.profiled_base, found.profiled_new) == (10, 20)
    assert (found.base_processes, found.new_processes, found.steps) == (2, 3, 5)
    # Squares of 2 around 10 and of 2 around 20 over three.
    error = math.sqrt(4 / 3 * (1 / 2 + 1 / 3))
    assert found.spread == pytest.approx(2 * error)
    # By chance, t.isf(0.002, 3) = 8.0526 standard errors are possible.
    assert found.chance == pytest.approx(8.05261 * error, rel=1e-4)
    (first, second) = found.rows
    assert (first.layer, first.difference, first.spread) == (HOT.layer, 10, 0)
    assert (second.layer, second.difference) == (REST, 0)
    (cause,) = found.causes
    assert (cause.kind, cause.difference, found.by_work) == ("kernel", 10, False)


def test_noise_of_operations_is_a_limit_of_chance(lenet_runs):
    record = lenet_runs()
    base, new = ([level(record, 9.0, 10.0) for _ in range(2)] for _ in range(2))
    # At least 1 % of 10 s, and five of these standard errors of two processes each.
    found = explain(base, new)
    assert (found.spread, found.chance) == (0, pytest.approx(0.5))
    assert found.causes == ()


def test_rows_of_one_size_are_in_order_of_their_names(lenet_runs):
    parts = [StepPartKey(name, CONV, FORWARD) for name in ("b", "a", "c")]
    base, new = (
        exact_profile(lenet_runs(), [exact_row(*one) for one in zip(parts, seconds, strict=True)])
        for seconds in ((1.0, 1.0, 1.0), (1.5, 0.5, 3.0))
    )
    assert [row.layer for row in explain([base], [new]).rows] == ["c", "a", "b"]
