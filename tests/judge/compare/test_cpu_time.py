"""Verdicts that CPU time has a part in, where other programs use the CPUs of paired runs."""

from __future__ import annotations

import math
import random

import pytest

from cnnbench.judge.compare import Policy, Verdict, compare_records
from cnnbench.judge.compare.answer import answer
from cnnbench.judge.compare.cpu_time import difference
from cnnbench.judge.compare.disturbance import mostly_disturbed
from cnnbench.records.parts import ConditionNote, Conditions, TurnTaking

WALL_NOISE = [0.78, 1.3, 0.9, 1.12, 0.83, 1.22, 1.05, 0.95]
CPU_NOISE = [1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.992, 1.003]
CALM = [1.0, 1.001, 0.999, 1.002, 1.0, 0.998, 1.001, 1.0]


def conditions(*ids):
    notes = tuple(ConditionNote(id=one, when="during", text="x", advice="y") for one in ids)
    return Conditions(before={}, during={"other_cpus": 1.0}, notes=notes)


BUSY = conditions("load")


def sides(runs, wall, cpu, found=BUSY, pairs=8, wall_noise=WALL_NOISE, **more):
    """Runs of A and of B, whose steps take `wall` and `cpu` times as long."""
    made = []
    for factors in ((1.0, 1.0), (wall, cpu)):
        made.append(
            [
                runs(
                    step_seconds=(0.08 * factors[0] * (w if factors[0] != 1.0 else 1.0),) * 3,
                    step_cpu_seconds=(0.08 * factors[1] * (c if factors[1] != 1.0 else 1.0),) * 3,
                    conditions=found,
                    **more,
                )
                for w, c in zip(wall_noise[:pairs], CPU_NOISE[:pairs], strict=True)
            ]
        )
    return made


def judged(*made, **more):
    found = compare_records(*made, paired=True, **more)
    return found.entries[0].main, found


def test_cpu_time_finds_what_noise_hides_from_wall_time(runs):
    main, found = judged(*sides(runs, 1.1001, 1.1))
    assert (main.verdict, main.judgement.decided_by) == (Verdict.SLOWER, "cpu_time")
    assert answer(found) == (
        "NEW is slower: CPU time 10.1 % more (9.0 to 11.1 %), 8 pairs, p = 0.016."
    )
    assert main.judgement.reason.endswith("p = 0.016; other programs use 1.0 of 2 CPUs")
    assert [metric.name for metric in found.metrics][-1] == "cpu_time"
    assert found.exit_code == 1
    main, _ = judged(*sides(runs, 0.9001, 0.9))
    assert (main.verdict, main.judgement.decided_by) == (Verdict.FASTER, "cpu_time")


def test_like_sides_are_the_same_by_cpu_time(runs):
    main, found = judged(*sides(runs, 1.0001, 1.0001))
    assert (main.verdict, main.judgement.decided_by) == (Verdict.SAME, "cpu_time")
    assert answer(found).startswith(
        "NEW and BASE are the same: CPU time +0.1 % (-0.9 to +1.0 %), 8 p"
    )


def test_wall_time_that_seems_to_differ_is_not_the_same(runs):
    """A side that waits uses no more CPU time."""
    main, _ = judged(*sides(runs, 1.12, 1.0001))
    assert main.verdict is Verdict.INCONCLUSIVE
    assert "CPU time is the same: perhaps its steps wait longer" in main.judgement.reason


def test_what_waits_is_slower_by_wall_time_and_the_reason_says_that_it_waits(runs):
    main, _ = judged(*sides(runs, 1.5, 1.0001, wall_noise=CALM))
    assert (main.verdict, main.judgement.decided_by) == (Verdict.SLOWER, None)
    assert "CPU time is the same: its steps wait longer" in main.judgement.reason


@pytest.mark.parametrize(
    ("wall", "cpu", "why"), [(0.8, 1.3, "more threads are at work"), (1.3, 0.8, "wait longer")]
)
def test_opposite_answers_are_none_and_say_why(runs, wall, cpu, why):
    main, _ = judged(*sides(runs, wall, cpu, wall_noise=CALM))
    assert main.verdict is Verdict.INCONCLUSIVE
    assert why in main.judgement.reason


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
    main, comparison = judged(*sides(runs, 1.1001, 1.1, found))
    assert (main.verdict is Verdict.SLOWER) == decides
    assert any(metric.name == "cpu_time" for metric in comparison.metrics) == decides


def test_nor_are_runs_without_pairs_or_without_cpu_time_or_on_gpus(runs):
    a, b = sides(runs, 1.1001, 1.1)
    (entry,) = compare_records(a, b, paired=False).entries
    assert entry.main.verdict is Verdict.INCONCLUSIVE
    for more in ({"step_cpu_seconds": ()}, {"placement": None}):
        made = [
            [
                runs(
                    step_seconds=one.step_seconds,
                    conditions=BUSY,
                    **{"step_cpu_seconds": one.step_cpu_seconds, **more},
                )
                for one in side
            ]
            for side in (a, b)
        ]
        main, _ = judged(*made)
        assert main.verdict is Verdict.INCONCLUSIVE


def test_half_of_the_runs_have_to_be_disturbed(runs):
    busy, calm = runs(conditions=BUSY), runs(conditions=conditions())
    assert mostly_disturbed([busy, calm])
    assert not mostly_disturbed([busy, calm, runs()])
    assert not mostly_disturbed([])


def test_six_pairs_leave_the_whole_level_to_cpu_time(runs):
    main, _ = judged(*sides(runs, 1.1001, 1.1, pairs=6))
    assert main.verdict is Verdict.SLOWER
    assert main.judgement.p_adjusted == 1.0


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
    red = 0
    for signs in range(128):
        made = [[], []]
        for pair in range(8):
            one, other = base[2 * pair : 2 * pair + 2][:: 1 if signs >> pair & 1 else -1]
            for side, (wall, cpu) in zip(made, (one, other), strict=True):
                side.append(
                    runs(step_seconds=(wall,) * 3, step_cpu_seconds=(cpu,) * 3, conditions=BUSY)
                )
        main, _ = judged(*made, policy=Policy(threshold=0.0))
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
    assert difference(a, b) == pytest.approx(math.log(1.1))
    alone = runs(step_seconds=(0.1,) * 10, step_cpu_seconds=b.step_cpu_seconds)
    mean = sum(b.step_cpu_seconds) / sum(a.step_cpu_seconds)
    assert difference(a, alone) == pytest.approx(math.log(mean))
