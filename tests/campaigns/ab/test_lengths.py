"""How long the processes of an experiment run timed steps."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnnbench.base.inference import interim_analyses
from cnnbench.campaigns.ab.experiment import Experiment
from cnnbench.campaigns.ab.lengths import (
    FEWEST_STEPS,
    LENGTH,
    ChosenLength,
    NoiseEstimate,
    PairSample,
    VerdictPlan,
    choose_seconds,
    estimate_noise,
    pair_samples,
    variance_from_abs,
)
from cnnbench.campaigns.processes.outcome import read_record
from cnnbench.judge.compare import Criteria
from cnnbench.records.run import RunRecord

RECORD = Path(__file__).parents[2] / "frozen" / "ab" / "a" / "0001-a.json"
STEP = 0.02
ANALYSES = interim_analyses(16, 0.04)
MARGIN = math.log(1.03)
PLAN = VerdictPlan(left=ANALYSES, alpha=0.04, margin=MARGIN)


def noise(between: float, within: float, startup: float = 6.0, measured: float = 0.0):
    return NoiseEstimate(
        between=between,
        within=within,
        startup=startup,
        step_seconds=STEP,
        measured=measured,
    )


def run(*seconds: float) -> RunRecord:
    record = read_record(RECORD)
    assert isinstance(record, RunRecord)
    return replace(record, step_seconds=seconds, step_cpu_seconds=(), losses=())


@pytest.mark.parametrize(
    ("between", "within", "startup", "least", "most"),
    [
        (1e-5, 1e-6, 6.0, 3, 3),  # the first analysis decides anyway
        (1e-4, 2e-4, 6.0, 3, 3),  # longer processes would only cost time
        (1e-5, 5e-3, 6.0, 6, 9),  # long enough for the first analyses
        (1e-4, 0.5, 6.0, 20, 20),  # only the steps vary
        (4e-3, 1e-4, 6.0, 3, 3),  # only the processes vary
        (4e-3, 0.02, 6.0, 4, 7),  # sqrt(6 * 0.02 / 0.004) = 5.5
        (4e-3, 0.02, 20.0, 8, 12),  # sqrt(20 * 0.02 / 0.004) = 10
        (4e-3, 0.02, 0.5, 3, 3),
    ],
)
def test_seconds_minimise_the_time_to_a_verdict(
    between: float, within: float, startup: float, least: float, most: float
) -> None:
    assert least <= choose_seconds(noise(between, within, startup), PLAN) <= most


def test_limits_of_the_seconds() -> None:
    assert choose_seconds(noise(1e-5, 1e-6), PLAN, shortest=5.0) == 5.0
    assert choose_seconds(noise(1e-5, 1e-6), PLAN, shortest=30.0) == 30.0


def test_expected_pairs_follow_the_variance_and_the_analyses() -> None:
    certain = PLAN.expected_pairs(0.0, 1e-6)
    assert certain == 8
    growing = [PLAN.expected_pairs(0.0, variance) for variance in (1e-6, 2e-4, 1e-3, 1e-2)]
    assert growing == sorted(growing)
    # Far from a verdict, the number of pairs is proportional to the variance.
    assert PLAN.expected_pairs(0.0, 0.2) / PLAN.expected_pairs(0.0, 0.1) == pytest.approx(2, 0.1)
    later = replace(PLAN, made=ANALYSES[:1], left=ANALYSES[1:])
    assert later.expected_pairs(3e-4, 1e-6) == 4
    assert later.expected_pairs(1e-2, 1e-2) > 8
    both = replace(PLAN, two_sided=True)
    assert both.expected_pairs(0.0, 4e-4) > PLAN.expected_pairs(0.0, 4e-4)


@pytest.mark.parametrize(("centre", "error"), [(0.0, 0.3), (0.5, 0.3), (2.0, 0.05), (10.0, 0.05)])
def test_variance_from_sizes(centre: float, error: float) -> None:
    values = 0.02 * (np.random.default_rng(3).standard_normal(20_000) + centre)
    assert variance_from_abs(np.abs(values).tolist()) == pytest.approx(4e-4, rel=error)


def test_variance_of_few_or_equal_sizes() -> None:
    assert variance_from_abs([]) == 0.0
    assert variance_from_abs([0.0, 0.0]) == 0.0
    assert variance_from_abs([0.02] * 8) == pytest.approx(0.0, abs=1e-9)


def test_noise_of_steps_is_known_from_batches() -> None:
    generator = np.random.default_rng(5)
    steps = 400

    def process(deviation: float) -> RunRecord:
        return run(*(STEP * np.exp(generator.normal(0.0, deviation, steps))))

    def within(deviation: float) -> float:
        pairs = [(process(deviation), process(deviation)) for _ in range(40)]
        base, new = zip(*pairs, strict=True)
        return estimate_noise(pair_samples(base, new, [12.0] * 40)).within

    # Two processes of independent steps: 2 * variance of a step * seconds of a step.
    assert within(0.1) == pytest.approx(2 * 0.1**2 * STEP, rel=0.3)
    assert within(0.4) == pytest.approx(2 * 0.4**2 * STEP, rel=0.3)
    # What both processes share, such as a slower machine, does not count.
    trend = STEP * np.linspace(1.0, 1.5, steps)
    (sample,) = pair_samples([run(*trend)], [run(*trend)], [12.0])
    assert sample.within == 0.0
    # Correlated steps average out more slowly.
    slow = [np.repeat(np.exp(generator.normal(0.0, 0.1, steps // 40)), 40) for _ in range(80)]
    runs = [run(*(STEP * speeds)) for speeds in slow]
    correlated = estimate_noise(pair_samples(runs[:40], runs[40:], [12.0] * 40))
    assert correlated.within > 20 * 2 * 0.1**2 * STEP


def test_what_is_not_measured_is_assumed() -> None:
    (sample,) = pair_samples([run(STEP, STEP)], [run(STEP, 2 * STEP)], [6.0], burn_in=True)
    assert sample == PairSample(
        difference=None,
        within=None,
        seconds=pytest.approx(2.5 * STEP),
        startup=pytest.approx(6.0 - 2.5 * STEP),
        step_seconds=1.5 * STEP,
        disturbed=False,
    )
    quiet = estimate_noise([sample])
    loaded = estimate_noise([sample._replace(disturbed=True)])
    assert loaded.within > quiet.within
    assert choose_seconds(quiet, PLAN) == 3.0
    assert choose_seconds(loaded, PLAN) > 5.0
    # One slow step of a burn-in does not lengthen all processes of a quiet machine.
    steps = [STEP] * 20
    slow = [*steps[:7], 3 * STEP, *steps[8:]]
    once = estimate_noise(pair_samples([run(*slow)], [run(*steps)], [6.0], burn_in=True))
    assert choose_seconds(once, PLAN) <= 6.0


class Notes:
    """The notes of a journal: those of earlier sessions, and those that are added."""

    def __init__(self, *earlier: dict[str, Any]) -> None:
        self.earlier, self.added = [*earlier], list[dict[str, Any]]()

    def earlier_journal_notes(self, name: str) -> list[dict[str, Any]]:
        assert name == LENGTH
        return self.earlier

    def add_journal_note(self, name: str, /, **facts: Any) -> None:
        assert name == LENGTH
        self.added.append(facts)


FROM_NOISE: dict[str, Any] = {"timed_seconds": None}
NOTE = {"pairs": 0, "seconds": 4.0, "steps": 200}
LATER = {"pairs": 8, "seconds": 5.0, "steps": 250}


@pytest.mark.parametrize(
    ("settings", "notes", "has_pairs", "due", "flags", "from_noise"),
    [
        # Whether a length is due after 0 and after 8 pairs; flags in and after the burn-in.
        (FROM_NOISE, [], False, (True, True), (FEWEST_STEPS, None), False),
        (FROM_NOISE, [NOTE], False, (False, True), (FEWEST_STEPS, 200), True),
        (FROM_NOISE, [NOTE, LATER], True, (False, False), (FEWEST_STEPS, 250), True),
        (FROM_NOISE, [], True, (False, False), (None, None), False),
        ({"timed_seconds": 4.0}, [], False, (True, False), (FEWEST_STEPS, None), False),
        ({"timed_seconds": 4.0}, [NOTE], True, (False, False), (FEWEST_STEPS, 200), False),
        ({"timed_seconds": 4.0}, [], True, (False, False), (None, None), False),
        ({"timed_seconds": 0.0}, [], False, (False, False), (None, None), False),
        # Without a burn-in, flags determine the length, but not that of pairs there are.
        ({**FROM_NOISE, "burn_in": 0}, [], False, (False, False), (None, None), False),
        ({**FROM_NOISE, "burn_in": 0}, [NOTE], True, (False, True), (FEWEST_STEPS, 200), True),
    ],
)
def test_when_the_length_is_chosen(
    settings: dict[str, Any],
    notes: list[dict[str, Any]],
    has_pairs: bool,
    due: tuple[bool, bool],
    flags: tuple[int | None, int | None],
    from_noise: bool,
) -> None:
    own = Experiment(seed=1, most_pairs=16, timeout=60.0, **settings)
    length = ChosenLength(own, Notes(*notes), print, has_pairs=has_pairs)  # type: ignore[arg-type]
    assert (length.is_due(0), length.is_due(8)) == due
    assert (length.flags(True).get("num_batches"), length.flags(False).get("num_batches")) == flags
    assert length.is_from_noise == from_noise
    length.leave_to_flags()
    assert (length.flags(True), length.flags(False), length.steps) == ({}, {}, None)
    assert (length.is_due(0), length.is_due(8)) == (False, False)


def test_a_chosen_length_is_noted_and_said_when_it_changes() -> None:
    own = Experiment(seed=1, most_pairs=16, timeout=60.0, timed_seconds=4.0)
    notes, said = Notes(), list[str]()
    length = ChosenLength(own, notes, said.append, has_pairs=False)  # type: ignore[arg-type]
    process = [run(*[STEP] * 20)]
    length.choose(0, process, process, [6.0], PLAN)
    assert notes.added == [{"pairs": 0, "seconds": 4.0, "steps": 200}]
    assert (length.steps, length.flags(False)) == (200, {"num_batches": 200})
    assert [line.startswith("200 timed steps") for line in said] == [True]
    assert not length.is_due(0)
    length.choose(8, process * 8, process * 8, [6.0] * 8, PLAN)
    assert (len(said), notes.added[1:]) == (1, [{"pairs": 8, "seconds": 4.0, "steps": 200}])
    slower = [run(*[2 * STEP] * 20)] * 8
    length.choose(12, slower, slower, [6.0] * 8, PLAN)
    assert (length.steps, notes.added[2]["steps"]) == (100, 100)
    assert said[1].startswith("from pair 13, because of the measured noise: 100 timed steps")


def test_the_shortest_length_depends_on_metrics_and_time_slices() -> None:
    def chosen(**settings: Any) -> float:
        own = Experiment(seed=1, most_pairs=16, timeout=60.0, timed_seconds=None, **settings)
        notes = Notes()
        length = ChosenLength(own, notes, print, has_pairs=False)  # type: ignore[arg-type]
        process = [run(*[STEP] * 20)]
        length.choose(0, process, process, [6.0], PLAN)
        return float(notes.added[0]["seconds"])

    assert chosen() == 3.0
    assert chosen(criteria=Criteria(metrics=("step_p99_seconds",))) == 5.0
    assert chosen(turn_seconds=0.2) == 3.0
    assert chosen(turn_seconds=0.7) == pytest.approx(7.0)


def _pair(seed: int, shift: float, deviation: float) -> tuple[RunRecord, RunRecord]:
    generator = np.random.default_rng(seed)
    noise_of_steps = np.exp(generator.normal(0.0, deviation, (2, 100)))
    speeds = np.exp(generator.normal(0.0, 0.02, 2)) * [1.0, 1.0 + shift]
    base, new = (STEP * noise_of_steps.T / speeds).T
    return run(*base), run(*new)


@settings(deadline=None, max_examples=25)
@given(
    swapped=st.lists(st.booleans(), min_size=8, max_size=8),
    shift=st.sampled_from([0.0, 0.05, -0.2]),
    deviation=st.sampled_from([0.02, 0.3, 1.0]),
    burn_in=st.booleans(),
)
def test_which_side_is_slower_never_changes_the_length(
    swapped: list[bool], shift: float, deviation: float, burn_in: bool
) -> None:
    pairs = [_pair(seed, shift, deviation) for seed in range(8)]
    other = [pair[::-1] if swap else pair for pair, swap in zip(pairs, swapped, strict=True)]
    seconds = [10.0 + place for place in range(8)]
    plan = replace(PLAN, made=ANALYSES[:1], left=ANALYSES[1:])
    samples, lengths = [], set()
    for each in (pairs, other):
        base, new = zip(*each, strict=True)
        samples.append(pair_samples(base, new, seconds, burn_in=burn_in))
        lengths.add(choose_seconds(estimate_noise(samples[-1]), plan))
    for one, two in zip(*samples, strict=True):
        assert one._replace(difference=None) == pytest.approx(two._replace(difference=None))
        if not burn_in:
            assert one.difference == pytest.approx(two.difference, rel=1e-9, abs=1e-12)
    assert len(lengths) == 1


def test_differences_of_a_burn_in_are_not_those_of_pairs() -> None:
    base, new = zip(*[_pair(seed, 0.2, 0.3) for seed in range(8)], strict=True)
    own = Experiment(seed=1, most_pairs=16, timeout=60.0, timed_seconds=None)
    found, expected = [], []
    for pairs in (0, 8):
        notes = Notes()
        length = ChosenLength(own, notes, print, has_pairs=False)  # type: ignore[arg-type]
        length.choose(pairs, base, new, [60.0] * 8, PLAN)
        found.append(notes.added[0]["seconds"])
        samples = pair_samples(base, new, [60.0] * 8, burn_in=pairs == 0)
        expected.append(choose_seconds(estimate_noise(samples), PLAN))
    assert found == expected
    assert found[0] != found[1]
