"""scripts/validate_gate: rates, the pool on disk, gates formed of it, and what is made of them."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import psutil
import pytest
import validate_gate
from forked import until
from measuring import keep_cpus_busy
from short_runs import run
from validation import (
    advice,
    gates,
    histories,
    lengths,
    metrics,
    pauses,
    planted_plugin,
    races,
    studies,
    suites,
    verdicts,
)
from validation import pool as pools
from validation.pool import BASES, SLOWED, Pool, PoolError, Process, order
from validation.verdicts import NOISES, RESUMED, SEQUENTIAL, judge_pairs

from cnnbench.base.inference import InterimAnalysis, interim_analyses
from cnnbench.judge.compare import Samples, Verdict

pytestmark = pytest.mark.slow

SUBJECTS = (*BASES, *SLOWED)
EIGHT = "ab, 8 pairs"
PLAN = {"flags": ["--model=x"], "seed": 1, "slowed": [0.05, 0.10], "pairing": "alternate"}


@pytest.mark.parametrize("name", NOISES)
def test_noise_is_positive_and_drawn_from_the_seed(name):
    one, other = (NOISES[name](np.random.default_rng(3), 40) for _ in range(2))
    assert one.shape == (40,)
    assert (one > 0).all()
    assert (one == other).all()
    assert (name == "constant") == (len(set(one)) == 1)


def test_what_sets_kinds_of_noise_apart():
    ties, regimes, memory = (
        NOISES[name](np.random.default_rng(1), 5000)
        for name in ("ties, grid of 2 %", "two regimes, x 0.59", "AR(1), 0.9, 3 %")
    )
    assert len(set(ties)) < 20
    assert 0.2 < (regimes < 0.8).mean() < 0.8
    logs = np.log(memory)
    assert np.corrcoef(logs[:-1], logs[1:])[0, 1] == pytest.approx(0.9, abs=0.03)
    assert logs.std() == pytest.approx(0.03, rel=0.2)


HOPELESS = (1.5, -1.2, 0.8, -0.7, 0.4, -0.5, 0.2, -0.3)


def test_pairs_are_judged_at_the_first_analysis_that_is_clear():
    a = [100 + n / 10 for n in range(16)]
    noisy = [x * (1.3 if n % 2 else 0.7) for n, x in enumerate(a)]
    # Pairs that scatter by 20 % about nothing: what is left has hardly a chance.
    hopeless = [x * math.exp(0.2 * z) for x, z in zip(a, HOPELESS * 2, strict=True)]
    for b, expected in (
        ([0.8 * x for x in a], (Verdict.SLOWER, 16)),
        (noisy, (Verdict.INCONCLUSIVE, 32)),
        (hopeless, (Verdict.INCONCLUSIVE, 16)),
    ):
        speeds = Samples(a, b, paired=True)
        assert judge_pairs(speeds, interim_analyses(16, 0.04)) == expected


def sums(draw, *case, draws):
    return studies.simulate_and_sum(draw, case, draws, seed=1)


@pytest.mark.parametrize("noise", ["AR(1), 0.9, 3 %", "second of a pair 10 % slower"])
def test_pairs_keep_what_they_promise_and_blocks_do_not(noise):
    case = (SEQUENTIAL, noise, 0.0)
    found = sums(verdicts.simulate_comparison, *case, draws=50)
    assert sum(found[verdict] for verdict in Verdict) == found["draws"] == 50
    assert verdicts.violation(found, *case) == ""
    case = ("compare, 8 of A, then 8 of B", "drift of 20 %", 0.0)
    blocks = sums(verdicts.simulate_comparison, *case, draws=25)
    assert blocks[Verdict.SLOWER] > 22
    assert verdicts.violation(blocks, *case) == ""  # nothing was promised


def test_an_experiment_that_is_resumed_keeps_what_it_promises_and_finds_more():
    noise = "normal, 3 %"
    equal, slower = (
        sums(verdicts.simulate_comparison, RESUMED, noise, truth, draws=12) for truth in (0.0, 0.05)
    )
    assert verdicts.violation(equal, RESUMED, noise, 0.0) == ""
    assert verdicts.violation(slower, RESUMED, noise, 0.05) == ""
    assert equal[Verdict.SLOWER] == 0
    found = sums(verdicts.simulate_comparison, EIGHT, noise, 0.05, draws=12)
    assert slower[Verdict.SLOWER] > found[Verdict.SLOWER] + 1


def test_a_slow_down_is_found_and_sums_repeat():
    found = sums(verdicts.simulate_comparison, EIGHT, "normal, 1.3 %", 0.10, draws=40)
    assert found[Verdict.SLOWER] == 40
    assert found["processes"] == 640
    few, again = (
        sums(verdicts.simulate_comparison, EIGHT, "normal, 1.3 %", 0.10, draws=10) for _ in range(2)
    )
    assert few == again


def test_too_many_wrong_verdicts_are_a_violation():
    wrong = Counter({"draws": 2000, Verdict.SLOWER: 100, Verdict.SAME: 1900})
    assert verdicts.violation(wrong, EIGHT, "x", 0.0) == f"{EIGHT}, x: slower in 5.0 %"
    assert verdicts.violation(wrong, EIGHT, "x", 0.1) == f"{EIGHT}, x: same or not slower in 95.0 %"
    few = Counter({"draws": 2000, Verdict.SLOWER: 41, Verdict.SAME: 1959})
    assert verdicts.violation(few, EIGHT, "x", 0.0) == ""
    demand, _ = verdicts.RATES.judge({(EIGHT, "x", 0.0): few, (SEQUENTIAL, "x", 0.0): wrong})
    assert (demand.met, demand.found) == (False, f"{SEQUENTIAL}, x: slower in 5.0 %")


def test_requirements_on_right_verdicts_and_missed_slowdowns():
    found = Counter({"draws": 2000, Verdict.SLOWER: 1700, Verdict.NOT_SLOWER: 50})
    busy = "normal, 3 %"
    assert verdicts.violation(found, SEQUENTIAL, busy, 0.05) == (
        f"{SEQUENTIAL}, {busy}: same or not slower in 2.5 %"
    )
    rates = {(SEQUENTIAL, busy, 0.05): found}
    assert [one.found for one in verdicts.RATES.judge(rates)][1] == (
        f"{busy}, 5 % slower: decided in 85.0 %"
    )
    small = {(SEQUENTIAL, busy, 0.01): Counter({"draws": 2000, Verdict.SLOWER: 300})}
    (one,) = verdicts.SMALL.judge(small)
    assert (one.met, one.found) == (False, f"{busy}, 1 % slower: slower in 15.0 %")


def test_suites_report_few_false_changes():
    case = (suites.PAIRS, 4, 0.01, 0.25, 0.10)
    found = sums(suites.simulate_suite, *case, draws=5)
    assert (found["changed"], found["found"], found["equal"]) == (5, 5, 15)
    case = (suites.PROCESSES, 20, 0.013, 0.5, 0.20)
    many = sums(suites.simulate_suite, *case, draws=3)
    assert many["found"] >= 28
    assert all(one.met for one in suites.judged({case: many}))
    often = Counter(draws=2000, changed=2000, found=1000, **{"false share": 200, "any slower": 0})
    assert [one.met for one in suites.judged({case: often})] == [True, False, False]


def test_chosen_lengths_save_time_or_decide_more():
    def sums(machine, chooses):
        case = (machine, 0.0, chooses)
        return studies.simulate_and_sum(lengths.simulate_experiment, case, 20, 1)

    quiet = [sums("processes 1 %, steps 7 %", chooses) for chooses in (False, True)]
    assert quiet[1]["seconds"] < 0.9 * quiet[0]["seconds"]
    noisy = [sums("processes 1 %, steps 80 %", chooses) for chooses in (False, True)]
    decided = [sum(each[verdict] for verdict in verdicts.PASSES) for each in noisy]
    assert decided[1] > decided[0]
    wrong = Counter({Verdict.SLOWER: 100, "draws": 1000})
    (required,) = lengths.LENGTHS.judge({("processes 1 %, steps 7 %", 0.0, True): wrong})
    assert required.met is False
    (required,) = lengths.LENGTHS.judge({("processes 1 %, steps 7 %", 0.05, True): wrong})
    assert required.met


def test_metrics_that_share_alpha_keep_it():
    found = sums(metrics.simulate_equals, 4, 1, 0.0, draws=150)
    assert found[metrics.SEPARATE] > 2 * found[metrics.SHARED]
    assert metrics.violation(found, 4, 1, 0.0) == ""
    wrong = Counter(draws=2000, shared=100)
    assert metrics.violation(wrong, 2, 1, 0.0) == "(2, 1, 0.0): 5.0 %"


@pytest.mark.parametrize("shape", pauses.SHAPES)
def test_pauses_cost_their_share_of_the_speed(shape):
    generator = np.random.default_rng(1)
    plain, paused = (
        pauses.times_of(generator, 400, of, cost, disturbed=False).mean()
        for of, cost in ((pauses.EQUAL, 0.0), (shape, 0.3))
    )
    assert plain / paused == pytest.approx(0.7, abs=0.02)


def test_pauses_are_found_by_what_is_judged_and_not_by_the_median_step():
    cases = (pauses.EQUAL, 0.0, True), ("once per process", 0.1, True)
    equal, found = (sums(pauses.simulate_pauses, *case, draws=10) for case in cases)
    same = (Verdict.SAME, 16)
    assert pauses.share(equal, *same) > pauses.share(equal, *same, pauses.MEAN) + 0.4
    assert pauses.share(found, Verdict.SLOWER, 16) >= 0.9
    assert pauses.share(found, *same, pauses.MEDIAN) == 1.0
    judged = [*pauses.judged(dict(zip(cases, (equal, found), strict=True)))]
    assert [one.met for one in judged] == [True, True]
    blind = Counter({"draws": 10, (*same, pauses.JUDGED): 10})
    missed, _ = pauses.judged(dict(zip(cases, (equal, blind), strict=True)))
    assert (missed.met, missed.found) == (False, "once per process: 0")


def test_gates_leave_out_what_disturbed_few_processes():
    rounds = made(8, scatter=0.001)
    stalled = replace(rounds[3]["base 1"], images_per_sec=50.0, disturbance=0.5)
    rounds[3] = {**rounds[3], "base 1": stalled}
    found = gates.sliding_gates(rounds, "8 pairs", gates.LIKE, seed=1, least=20)
    assert set(found.verdicts) == {Verdict.SAME}


def test_nothing_follows_from_samples_too_small_or_broken():
    lines, (demand,) = verdicts.SAMPLES.run(30, 1)
    assert (demand.met, demand.found) == (True, "never")
    assert "| nothing against 8 | inconclusive 30 |" in lines
    (demand,) = verdicts.SAMPLES.judge({("nothing against 8",): Counter(draws=2, same=1)})
    assert (demand.met, demand.found) == (False, "nothing against 8")


def process(number=1, position=1, subject="base 1", speed=100.0, **more):
    values = {
        "rows": 0,
        "images_per_sec": speed,
        "step_seconds": None if speed is None else 16 / speed,
        "seconds": 5.0,
        "load": 0.1,
        "others": 0.02,
    }
    return Process(round=number, position=position, subject=subject, **{**values, **more})


class Machine(Pool):
    """Starts nothing; every row of extra work costs a thousandth of a step."""

    def __init__(self, folder, plan=PLAN, fails=False):
        super().__init__(folder, plan)
        self.started, self.groups = [], []
        self._fails = fails
        self._noise = random.Random(1)

    def run(self, places):
        self.groups.append(len(places))
        return [self._process(one.round, one.position, one.subject, one.rows) for one in places]

    def _process(self, round, position, subject, rows):
        self.started.append((round, subject, rows))
        if self._fails:
            return process(round, position, subject, None, rows=rows, problem="no good")
        speed = 100 / (1 + rows / 1000) * (1 + self._noise.gauss(0, 0.005))
        return process(round, position, subject, speed, rows=rows)


@pytest.fixture
def pool(tmp_path):
    return Machine(tmp_path / "pool")


def test_calibration_finds_the_rows(pool):
    pools.calibrate(pool)
    # 5 % slower is a step longer by 1/0.95 - 1 = 5.26 %, at a thousandth per row 53 rows.
    assert pool.rows["slower by 5 %"] == pytest.approx(53, abs=12)
    assert pool.rows["slower by 10 %"] == pytest.approx(111, abs=15)
    assert all(one.round == 0 for one in pool.processes())
    assert pool.rounds() == []


def test_calibration_that_sees_nothing_says_so(tmp_path):
    class Flat(Machine):
        def run(self, places):
            return [replace(one, images_per_sec=100.0, step_seconds=0.16) for one in places]

    with pytest.raises(PoolError, match="400 rows cost no time"):
        pools.calibrate(Flat(tmp_path))


@pytest.fixture
def ticking(monkeypatch):
    """A clock that advances by a second per call."""
    clock = iter(range(10**6))
    monkeypatch.setattr(pools.time, "monotonic", lambda: next(clock))


def test_a_pool_goes_on_where_it_was(tmp_path, pool, ticking):
    pools.calibrate(pool)
    pools.fill(pool, seconds=60)
    first = len(pool.rounds())
    assert first >= 2
    with open(pool.journal.path, "a", encoding="ascii") as file:
        file.write('{"event": "process", "process": {"round": 99, "posi')  # a kill
    again = Machine(tmp_path / "pool")
    assert again.rows == pool.rows
    pools.fill(again, seconds=60)
    assert again.started[0][0] == first + 1
    assert len(again.rounds()) > first
    numbers = [one["base 1"].round for one in again.rounds()]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(("pairing", "groups"), [("alternate", [1, 1, 1, 1]), ("turns", [4])])
def test_processes_of_a_round_are_alive_together_where_they_step_in_turn(
    tmp_path, pairing, groups, ticking
):
    pool = Machine(tmp_path, {**PLAN, "pairing": pairing})
    pool.calibrated(dict.fromkeys(SLOWED, 1), 0.1)
    pools.fill(pool, seconds=2)
    assert pool.groups == groups
    assert len(pool.rounds()) == 1


def test_a_round_with_a_hole_does_not_count_and_is_not_filled_up(pool):
    for subject in SUBJECTS[:-1]:
        pool.add(process(1, 1, subject))
    assert pool.rounds() == []
    assert pool.next_round() == 2


def test_processes_that_go_on_failing_end_it(tmp_path):
    pool = Machine(tmp_path, fails=True)
    pool.calibrated(dict.fromkeys(SLOWED, 1), 0.1)
    with pytest.raises(PoolError, match="3 processes failed, the last one: no good"):
        pools.fill(pool, seconds=60)
    assert len(pool.processes()) == 3


def test_a_pool_of_another_plan_is_refused(tmp_path, pool):
    with pytest.raises(PoolError, match="measured with other flags or on another machine"):
        Pool(tmp_path / "pool", {**PLAN, "seed": 2})


def test_orders_of_rounds_differ_and_repeat():
    found = [tuple(order(number, 7, SUBJECTS)) for number in range(1, 30)]
    assert all(sorted(one) == sorted(SUBJECTS) for one in found)
    assert len(set(found)) > 10
    assert found == [tuple(order(number, 7, SUBJECTS)) for number in range(1, 30)]


def made(count, scatter=0.01, slow=None):
    """Rounds of a machine without surprises."""
    generator = random.Random(4)
    slow = SLOWED if slow is None else slow
    return [
        {
            name: process(
                number,
                1,
                name,
                100 * (1 - slow.get(name, 0.0)) * (1 + generator.gauss(0, scatter)),
            )
            for name in SUBJECTS
        }
        for number in range(1, count + 1)
    ]


def test_gates_start_at_every_round_until_there_are_enough():
    rounds = made(40)
    sliding = gates.sliding_gates(rounds, "8 pairs", "like", 1, least=200)
    assert sliding.count == 231  # 33 windows, seven times
    assert sliding.processes == 80
    slowed = gates.sliding_gates(rounds, "8 pairs", "slower by 10 %", 1, least=200)
    assert slowed.processes == 120
    assert slowed.verdicts == {Verdict.SLOWER: 231}


def test_all_ways_that_coins_can_fall(monkeypatch):
    judged = []

    def judge(speeds, analyses, policy, cpu_time):
        judged.append((tuple(speeds.base), tuple(speeds.new)))
        return Verdict.SAME, 4

    monkeypatch.setattr(gates, "judge_pairs", judge)
    monkeypatch.setitem(gates.PLANS, "2 pairs", (InterimAnalysis(2, 0.04),))
    rounds = made(3)
    found = gates.sliding_gates(rounds, "2 pairs", "like", 1, least=8)
    assert (found.complete, found.count, found.processes) == (True, 8, 6)
    (one, two), (three, four), (five, six) = (
        [each[name].speed for name in BASES] for each in rounds
    )
    assert set(judged) == {
        ((one, three), (two, four)),
        ((two, three), (one, four)),
        ((one, four), (two, three)),
        ((two, four), (one, three)),
        ((three, five), (four, six)),
        ((four, five), (three, six)),
        ((three, six), (four, five)),
        ((four, six), (three, five)),
    }
    drawn = gates.sliding_gates(rounds, "2 pairs", "like", 1, least=7)
    assert (drawn.complete, drawn.count) == (False, 8)


@pytest.mark.parametrize("turns", [0, 8])
def test_cpu_time_decides_beside_other_programs(turns):
    noise = random.Random(2)

    def disturbed(one, seconds):
        speed = one.speed * math.exp(noise.gauss(0, 0.2))
        more = {"cpu_seconds": seconds, "turn_cpu_seconds": [seconds] * turns}
        return replace(one, images_per_sec=speed, others=1.0, **more)

    rounds = [
        {name: disturbed(each, 1.0 / (1 - SLOWED.get(name, 0.0))) for name, each in one.items()}
        for one in made(9, scatter=0.001)
    ]
    slowed = gates.sliding_gates(rounds, "8 pairs", "slower by 10 %", 1, least=20)
    assert slowed.verdicts == {Verdict.SLOWER: slowed.count}
    like = gates.sliding_gates(rounds, "8 pairs", "like", 1, least=20)
    assert like.verdicts.keys() <= {Verdict.SAME, Verdict.NOT_SLOWER, Verdict.INCONCLUSIVE}
    undisturbed = [
        {name: replace(each, others=0.0) for name, each in one.items()} for one in rounds
    ]
    slowed = gates.sliding_gates(undisturbed, "8 pairs", "slower by 10 %", 1, least=20)
    assert slowed.verdicts[Verdict.INCONCLUSIVE] > slowed.count / 2


@pytest.mark.parametrize("level", [races.ALPHA, 0.9])
def test_races_keep_the_fastest_unless_they_test_at_another_level(level, monkeypatch):
    monkeypatch.setattr("cnnbench.campaigns.tune.race.ALPHA", level)
    small = replace(races.RACES, tables={"": {(kind,): [(kind, 4)] for kind in races.KINDS}})
    _, (demanded,) = small.run(40, 1)
    assert demanded.met == (level == races.ALPHA), demanded


def lasting(generator, count):
    return 0.3 * np.cumsum(generator.random(count) < 0.1) % 0.6  # states of ten points


@pytest.mark.parametrize(("name", "noise"), [("two states, 30 % at x 0.7", None), ("x", lasting)])
def test_noise_is_no_step_unless_it_is_like_one(name, noise, monkeypatch, capsys):
    noises = {"normal": histories.NOISES["normal"], name: noise or histories.NOISES[name]}
    monkeypatch.setattr(histories, "NOISES", noises)
    shapes, false, found, ranges = histories.HISTORY
    step = (60, 5, 5)
    cases = (
        (shapes, [(shape, 0.0) for shape in [*histories.SHAPES][:2]]),
        (false, [(kind, 30, runs) for kind in noises for runs in (1, 3)]),
        *((study, [(kind, step) for kind in noises]) for study in (found, ranges)),
    )
    small = [replace(study, tables={"": {("",): rows}}) for study, rows in cases]
    monkeypatch.setitem(validate_gate.STUDIES, "history", ("History", small))
    status = validate_gate.main(["--only=history", "--draws=80"])
    *_, shapes, red, power, places = capsys.readouterr().out.splitlines()
    assert ("| met |" in red) == (status == 0) == (noise is None), red
    assert "| in all rows | met |" in shapes
    assert "| yes | met |" in power
    assert "cells" in places or noise


@pytest.mark.parametrize("name", histories.SHAPES)
def test_what_happens_in_a_series_is_said_and_nothing_else(name, monkeypatch):
    shapes = histories.HISTORY[0]
    assert sums(shapes.draw, name, 0.0, draws=8)["said"] >= 6
    other = replace(histories.SHAPES[name], kind="undone", ends=(3, 9))
    monkeypatch.setitem(histories.SHAPES, name, other)
    assert sums(shapes.draw, name, 0.0, draws=2)["said"] == 0


def test_a_trend_has_no_range_that_holds_the_place_of_a_step(monkeypatch):
    real = histories.trend_of

    def with_trends(logs):
        found = real(logs)
        return replace(found, steps=tuple(replace(one, kind="trend") for one in found.steps))

    def counts():
        found = sums(histories.HISTORY[3].draw, "normal", (30, 5, 10), draws=4)
        return found["stepped"], found["near"], found["held"]

    assert counts() == (4, 4, 4)
    monkeypatch.setattr(histories, "trend_of", with_trends)
    assert counts() == (0, 4, 0)


def test_too_few_rounds_make_no_gates():
    found = list(gates.all_gates(made(7), 1, 200))
    assert [one.count for one in found] == [0] * len(found)
    demands = [*gates.requirements(found)]
    assert {one.met for one in demands} == {None}


def test_demands_are_met_on_a_good_machine_and_missed_with_a_blind_gate():
    found = list(gates.all_gates(made(40), 1, 200))
    good = [*gates.requirements(found)]
    assert good
    assert all(one.met for one in good)
    # Beside a busy CPU less is demanded.
    for busy, least in (
        (0.0, ["100.0 % red", "99.9 % red"]),
        (0.5, ["95.3 % red"]),
        (1.0, ["50.0 % same or not slower", "60.0 % red", "90.0 % red"]),
    ):
        texts = [one.text for one in gates.requirements(found, busy)]
        assert [text.split("at least ")[1] for text in texts if "at least" in text] == least
    blind = made(40, slow={})  # "slowed" processes that are not: same, which 10 % must not be
    like_and_ten = [
        gates.sliding_gates(blind, "8 pairs", subject, 1, least=200)
        for subject in ("like", "slower by 10 %")
    ]
    missed = [*gates.requirements(like_and_ten)]
    assert any(one.met is False and "never same" in one.text for one in missed)
    assert all(one.met is False for one in missed if "at least" in one.text)
    assert all(one.met for one in missed if "like with like" in one.text)


@pytest.mark.parametrize(("cpus", "programs"), [(0.0, 0), (0.5, 1), (2.0, 2)])
def test_neighbours_compute_until_they_are_left(cpus, programs):
    before = psutil.Process().children()
    with keep_cpus_busy(cpus, 14):  # the first pause of the half one takes half a second
        started = [one for one in psutil.Process().children() if one not in before]
        assert len(started) == programs
        until(lambda: all(one.cpu_times().user >= 0.2 for one in started), 30)
    assert not any(one.is_running() for one in started)


def test_the_whole_report_and_its_exit_code(tmp_path, capsys):
    pool = Pool(tmp_path / "pool", validate_gate.plan_of(validate_gate.Options()))
    pool.calibrated(dict.fromkeys(SLOWED, 1), 0.1)
    for one in made(40):
        for single in one.values():
            pool.add(single)
    output = tmp_path / "table.md"
    arguments = ["--draws=0", f"--pool={tmp_path / 'pool'}", f"--output={output}", "--gates=200"]
    assert validate_gate.main(arguments) == 0
    out = capsys.readouterr().out
    assert output.read_text(encoding="utf-8") == out
    assert "| 8 pairs | like | drawn | 231 | 80 | " in out
    assert "MISSED" not in out
    assert "160 processes in 40 rounds, 5.0 s each" in out
    assert re.search(r"slower by 10 %, as measured over all rounds: -(9|10)\.", out)
    assert "CPUs that others kept busy: median 0.02" in out
    assert f"{BASES[0]}, as measured" not in out


def test_an_empty_pool_is_not_enough_to_say(tmp_path, capsys):
    assert validate_gate.main(["--draws=0", f"--pool={tmp_path / 'pool'}"]) == 3
    assert json.loads((tmp_path / "pool" / "pool.jsonl").read_text())["event"] == "plan"


@pytest.mark.parametrize("kind", advice.KINDS)
def test_what_is_clear_gets_no_advice_and_what_is_not_is_settled_by_it(kind):
    case = (kind, 8, "twice the floor slower", 0.05)
    assert sums(advice.simulate_comparison, kind, 8, "equal", 0.001, draws=2) == Counter(
        draws=2, advised=0, settled=0
    )
    found = sums(advice.simulate_comparison, *case, draws=12)
    assert 0 < found["advised"] < 12
    assert advice.settled(found) >= 0.5
    assert advice.violation(found, *case) == ""
    found["settled"] = 0
    if found["advised"] > 8:
        assert advice.violation(found, *case) == f"8 {kind}, twice the floor slower, 5.0 %: 0"


@pytest.mark.parametrize(
    "arguments",
    [["--minutes=1"], ["--draws=-1"], ["--pools=x"], ["--shares=x.csv", "--draws=0"]],
)
def test_wrong_use_is_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        validate_gate.main(arguments)
    assert stop.value.code == 2
    capsys.readouterr()


@pytest.mark.usefixtures("own_registry", "quick_start")
def test_the_extra_work_changes_nothing_that_is_computed(monkeypatch):
    plain = run(model="lenet", data_name="imagenet").record
    for rows in ("0", "8"):
        monkeypatch.setenv(planted_plugin.ROWS, rows)
        plugin = {"model": planted_plugin.SLOWED, "plugin": planted_plugin.__file__}
        slowed = run(data_name="imagenet", **plugin).record
        assert replace(slowed.model, name="lenet") == plain.model
        np.testing.assert_allclose(slowed.losses, plain.losses, rtol=1e-5)
