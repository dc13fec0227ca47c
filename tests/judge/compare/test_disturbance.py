"""Runs that other programs disturbed: what reasons say of it, and verdicts by CPU time of pairs."""

from __future__ import annotations

import math
import random

import pytest
from sides import BUSY, CALM, WALL_NOISE, conditions, disturbed

from cnnbench.judge.compare import Criteria, Policy, Verdict, compare_records
from cnnbench.judge.compare.disturbance import (
    disturbance_text,
    joint_judgement,
    log_cpu_time_ratio,
    log_ratio_of_slices,
    mostly_disturbed,
    other_cpus_text,
    remeasured_pairs,
    seconds_by_slice,
)
from cnnbench.judge.compare.judgement import Judgement
from cnnbench.judge.report.comparison import metric_tables
from cnnbench.judge.report.comparison import result_cells as cells
from cnnbench.records.run import ConditionNote, Conditions, TurnTaking


def judged(*made, **more):
    found = compare_records(*made, Criteria(paired=True, **more))
    return found.entries[0].main, found


@pytest.mark.parametrize(
    ("wall", "cpu", "noise", "verdict", "decided_by"),
    [
        (1.1, 1.1, WALL_NOISE, "slower", "cpu_time"),
        # A side that waits uses no more CPU time.
        (1.5, 1.0, CALM, "slower", None),
        # Opposite answers are none.
        (0.8, 1.3, CALM, "inconclusive", None),
    ],
)
def test_verdicts_by_wall_and_cpu_time(runs, wall, cpu, noise, verdict, decided_by):
    main, _ = judged(*disturbed(runs, wall, cpu, wall_noise=noise))
    assert (main.word, main.judgement.decided_by) == (verdict, decided_by)


def test_tables_show_which_metric_decided(runs):
    _, found = judged(*disturbed(runs, 1.1, 1.1))
    (metric, [row]), (second, [other]) = metric_tables(found)
    assert [metric.name, second.name] == ["throughput", "cpu_time"]
    (speed, work) = ([cell.text for cell in cells(found, *one).values()] for one in (row, other))
    assert [speed[1], speed[6]] == ["slower by CPU time", "0.5"]
    assert [work[1], work[2], work[6]] == ["more", "+10.1 %", "0.016"]


@pytest.mark.parametrize(
    ("found", "decides"),
    [
        (conditions("load"), True),
        (conditions("steal"), True),
        (conditions(), False),
        (conditions("thermal"), False),
        (None, False),
    ],
)
def test_only_disturbed_runs_are_judged_by_cpu_time(runs, found, decides):
    main, comparison = judged(*disturbed(runs, 1.1, 1.1, found=found))
    assert (main.verdict is Verdict.SLOWER) == decides
    assert any(metric.name == "cpu_time" for metric in comparison.metrics) == decides


def test_nor_are_runs_without_pairs_or_without_cpu_time_or_on_gpus(runs):
    (entry,) = compare_records(*disturbed(runs, 1.1, 1.1), Criteria(paired=False)).entries
    assert entry.main.verdict is Verdict.INCONCLUSIVE
    for more in ({"step_cpu_seconds": ()}, {"placement": None}):
        main, _ = judged(*disturbed(runs, 1.1, 1.1, **more))
        assert main.verdict is Verdict.INCONCLUSIVE


def test_half_of_the_runs_have_to_be_disturbed(runs):
    busy, calm = runs(conditions=BUSY), runs(conditions=conditions())
    assert mostly_disturbed([busy, calm])
    assert not mostly_disturbed([busy, calm, runs()])
    assert not mostly_disturbed([])


def test_half_of_the_level_needs_seven_pairs(runs):
    main, _ = judged(*disturbed(runs, 1.1, 1.1, WALL_NOISE[:6]))
    assert (main.verdict, main.judgement.at_least) == (Verdict.INCONCLUSIVE, 7)
    main, _ = judged(*disturbed(runs, 1.1, 1.1, WALL_NOISE[:7]))
    assert main.verdict is Verdict.SLOWER


@pytest.mark.slow
def test_both_share_the_level(runs):
    """Red by chance in at most alpha / 2 of like pairs, whatever the noise.

    Of two outcomes in which every pair is the other way round one is slower where the other is
    faster: half of the 256 show all.
    """
    generator = random.Random(5)
    base = [
        (0.08 * math.exp(generator.gauss(0, 0.4)), 0.08 * math.exp(generator.gauss(0, 0.4)))
        for _ in range(16)
    ]
    made = [
        runs(step_seconds=(wall,) * 3, step_cpu_seconds=(cpu,) * 3, conditions=BUSY)
        for wall, cpu in base
    ]
    red = 0
    for signs in range(128):
        pairs = [
            made[2 * pair : 2 * pair + 2][:: 1 if signs >> pair & 1 else -1] for pair in range(8)
        ]
        main, _ = judged(*zip(*pairs, strict=True), policy=Policy(threshold=0.0))
        red += main.verdict in (Verdict.SLOWER, Verdict.FASTER)
    assert 0 < red <= 0.02 * 256


def test_turns_are_compared_one_by_one(runs):
    """One disturbed turn of five moves the means by 20 %, and not the centre of the turns."""
    taken = TurnTaking(
        turn_seconds=0.3, starts=(1, 3, 5, 7, 9), waited_seconds=1.0, waited_cpu_seconds=0.0
    )
    steps = {"step_seconds": (0.1,) * 10, "turns": taken}
    a = runs(step_cpu_seconds=(0.1, 0.1, 0.11, 0.11, 0.1, 0.1, 0.12, 0.12, 0.1, 0.1), **steps)
    b = runs(
        step_cpu_seconds=(0.11, 0.11, 0.121, 0.121, 0.21, 0.21, 0.132, 0.132, 0.11, 0.11), **steps
    )
    assert log_cpu_time_ratio(a, b) == pytest.approx(math.log(1.1))
    alone = runs(step_seconds=(0.1,) * 10, step_cpu_seconds=b.step_cpu_seconds)
    mean = sum(b.step_cpu_seconds) / sum(a.step_cpu_seconds)
    assert log_cpu_time_ratio(a, alone) == pytest.approx(math.log(mean))


@pytest.mark.parametrize(
    ("others", "environment", "text"),
    [
        ((0.0, 0.049, 0.3), {}, ""),
        ((0.0, 0.051, 0.3), {}, "0.1 of 2 CPUs"),
        ((1.5,), {"usable_cpus": 1}, "1.5 of 1 CPU"),
        ((1.5,), {"logical_cpus": None}, "1.5 CPUs"),
        ((), {}, ""),
    ],
)
def test_cpus_of_other_programs(runs, others, environment, text):
    made = [runs(conditions=conditions(others=one), environment=environment) for one in others]
    found = other_cpus_text([*made, runs(environment=environment)][: len(made) or 1])
    assert found.endswith(text)
    assert bool(found) == bool(text)


SAME, SLOWER, FASTER = Verdict.SAME, Verdict.SLOWER, Verdict.FASTER
NOT_SLOWER, NOT_FASTER, OPEN = Verdict.NOT_SLOWER, Verdict.NOT_FASTER, Verdict.INCONCLUSIVE


def judgement(verdict, change=0.0, **more):
    values = {"low": change, "high": change, "p_adjusted": 0.5, "floor": 0.03, "note": "n", **more}
    return Judgement(verdict=verdict, reason="r", change=change, **values)


@pytest.mark.parametrize(
    ("speed", "work", "asked", "expected"),
    [
        # Opposite verdicts are none; a loss of speed that costs no CPU time is a wait.
        ((SLOWER, -0.1), (FASTER, -0.1), "slower", (OPEN, None)),
        ((FASTER, 0.1), (SLOWER, 0.1), "slower", (OPEN, None)),
        *(((SLOWER, -0.1), (work, 0.0), "slower", (SLOWER, None)) for work in (SAME, OPEN, SLOWER)),
        *(((FASTER, 0.1), (work, 0.0), "slower", (FASTER, None)) for work in (SAME, OPEN, FASTER)),
        *(((SAME, 0.0), (work, 0.0), "slower", (SAME, None)) for work in (SAME, OPEN, NOT_SLOWER)),
        # CPU time decides where throughput does not show the opposite.
        ((SAME, 0.0), (SLOWER, 0.1), "slower", (SLOWER, "cpu_time")),
        ((OPEN, 0.0), (FASTER, -0.1), "slower", (FASTER, "cpu_time")),
        ((OPEN, 0.0), (SAME, 0.0), "slower", (SAME, "cpu_time")),
        ((OPEN, 0.0), (NOT_SLOWER, 0.0), "slower", (NOT_SLOWER, "cpu_time")),
        # It cannot exclude a change by more than the floor that is asked for.
        ((OPEN, -0.02), (SAME, 0.0), "slower", (SAME, "cpu_time")),
        ((OPEN, -0.04), (SAME, 0.0), "slower", (OPEN, None)),
        ((OPEN, -0.04), (SAME, 0.0), "faster", (NOT_FASTER, "cpu_time")),
        ((OPEN, 0.04), (SAME, 0.0), "slower", (NOT_SLOWER, "cpu_time")),
        ((OPEN, 0.04), (NOT_SLOWER, 0.0), "slower", (NOT_SLOWER, "cpu_time")),
        ((OPEN, 0.04), (SAME, 0.0), "faster", (OPEN, None)),
        ((OPEN, None), (SAME, 0.0), "slower", (OPEN, None)),
    ],
)
def test_verdicts_on_both_metrics(runs, speed, work, asked, expected):
    made = [runs(conditions=BUSY)]
    policy = Policy(questions=(asked,))
    found = joint_judgement(judgement(*speed), judgement(*work), policy, made)
    assert (found.verdict, found.decided_by) == expected
    assert found.change == speed[1]


def test_a_significant_change_of_the_speed_is_not_excluded(runs):
    policy = Policy(alpha=0.04, questions=("slower",))
    for p, verdict in ((0.04, OPEN), (0.041, SAME), (None, SAME)):
        speed = judgement(OPEN, -0.01, p_adjusted=p)
        found = joint_judgement(speed, judgement(SAME), policy, [runs(conditions=BUSY)])
        assert found.verdict is verdict


@pytest.mark.parametrize(
    ("speed", "work", "needed"), [(10, 9, 9), (10, 10, 10), (10, None, 10), (None, 9, 9)]
)
def test_the_smaller_number_of_pairs_is_advised(runs, speed, work, needed):
    both = (judgement(OPEN, needed=number, more=number) for number in (speed, work))
    found = joint_judgement(*both, Policy(), [runs()])
    assert (found.verdict, found.needed, found.more) == (OPEN, needed, needed)
    assert found.reason == ("CPU time: r" if needed == 9 else "r")


def test_what_disturbed_runs_and_how_much(runs):
    made = [
        runs(conditions=conditions("load", others=1.25)),
        runs(conditions=conditions("load", "steal", others=0.75, steal=0.125)),
        runs(conditions=conditions("thermal")),
        runs(conditions=conditions()),
        runs(),
    ]
    found = disturbance_text(made)
    assert [found.startswith("3 of 4 runs "), "1.25 CPUs" in found, "12.5 %" in found] == [True] * 3
    assert [found.count(f" in {number}") for number in (1, 2)] == [2, 1]
    assert disturbance_text(made[2:3]).startswith("1 of 1 run ")
    # Notes on the time before the timed steps are no disturbance.
    note = ConditionNote(id="load", when="before", text="x", advice="y")
    early = runs(conditions=Conditions(before={}, during={}, notes=(note,)))
    assert disturbance_text([early]).startswith("none of 1 run ")
    assert disturbance_text([runs()]) == ""


def test_pairs_that_were_measured_again(runs):
    def of(pair, *ends, seed=1):
        lost = [{"side": side, "how": how} for side, how in ends]
        return runs(ab={"side": "a", "seed": seed, "pair": pair, "lost": lost})

    killed, stalled = ("b", "killed"), ("a", "stalled")
    assert remeasured_pairs([runs(), of(1)]) == (0, "")
    assert remeasured_pairs([of(1, killed), of(1, killed)])[0] == 1
    number, text = remeasured_pairs([of(1, killed), of(2, killed, stalled), of(2, killed, seed=2)])
    assert number == 3
    assert text.endswith("A was stalled, a process of B was killed (3 times)")
    for wrong in ("x", 3, ["x"], None):
        assert remeasured_pairs([runs(ab={"side": "a", "lost": wrong})]) == (0, "")


def test_time_slices_of_a_process(runs):
    taken = TurnTaking(
        turn_seconds=0.3, starts=(1, 3, 6), waited_seconds=1.0, waited_cpu_seconds=0.0
    )
    cpu = (0.1, 0.2, 0.3, 0.3, 0.6, 0.5)
    made = runs(step_seconds=(0.1,) * 6, step_cpu_seconds=cpu, losses=(), turns=taken)
    assert seconds_by_slice(made) == pytest.approx((0.15, 0.4, 0.5))
    assert seconds_by_slice(runs()) == ()
    # The Hodges-Lehmann estimate of 0, 0, 1, 1, without the pairs in which a time is 0.
    ratios = [1.0, 1.0, math.e, math.e, 5.0, 0.0]
    assert log_ratio_of_slices([1, 1, 1, 1, 0, 1], ratios, 7.0) == pytest.approx(0.5)
    assert log_ratio_of_slices([1, 1, 1, 0, 0, 1], ratios, 7.0) == 7.0


def test_metrics_that_decide_lead(runs):
    _, found = judged(*disturbed(runs, 1.1, 1.1))
    assert [metric.name for metric in found.leading_metrics] == ["throughput", "cpu_time"]
    assert [metric.name for metric in found.requested_metrics] == ["throughput"]
    _, both = judged(*disturbed(runs, 1.1, 1.1), metrics=["throughput", "cpu_time"])
    assert [metric.name for metric in both.requested_metrics] == ["throughput", "cpu_time"]
    _, calm = judged(*disturbed(runs, 1.1, 1.1, found=None))
    assert [metric.name for metric in calm.leading_metrics] == ["throughput"]
