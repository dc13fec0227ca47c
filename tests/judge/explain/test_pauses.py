"""Limits of pauses, with steps of 10 s of which some take exactly so much more."""

from __future__ import annotations

import pytest
from step_profiles import CONV, exact_profile, exact_row

from cnnbench.judge.explain.pauses import find_pauses
from cnnbench.judge.explain.sides import PAUSES, ComparedProfiles
from cnnbench.records.profiles import (
    FORWARD,
    GAPS,
    INPUT_WAIT,
    PROGRAM,
    StepPartKey,
)

FIRST, SECOND = (StepPartKey(name, CONV, FORWARD) for name in ("conv0", "conv1"))
USUAL = {FIRST: 6.0, SECOND: 2.0, GAPS: 1.0, PROGRAM: 0.5, INPUT_WAIT: 0.5}


@pytest.fixture
def process(lenet_runs):
    """process(STEPS, PART=SLOW): a process of which steps take more, {step: seconds}."""
    record = lenet_runs()

    def make(steps, more=None, timed=None, cpu=(), usual=USUAL, alike=False):
        more = more or {}
        rows = [
            exact_row(part, *(seconds + more.get(part, {}).get(step, 0.0) for step in range(steps)))
            for part, seconds in usual.items()
        ]
        timed = () if alike else timed or (10.0,) * steps
        return exact_profile(record, rows, timed, step_cpu_seconds=cpu)

    return make


def pauses(base, new):
    """The claim of the pauses that are found; None without any."""
    claims, sides = find_pauses(ComparedProfiles(base, new))
    assert (PAUSES in sides.means) == bool(claims)
    return claims[0] if claims else None


def slow(*steps, more=3.0):
    return dict.fromkeys(steps, more)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        # Of 36 steps of each side, six and none have p = 0.0125, five and none p = 0.027.
        ((2, 2, 2), True),
        ((2, 2, 1), False),
        ((3, 2, 1), True),
        # All processes of a side must have them.
        ((3, 3, 0), False),
    ],
)
def test_six_slow_steps_of_a_side_are_pauses(process, counts, found):
    plain = [process(12) for _ in range(3)]
    places = (3, 7, 10)
    paused = [process(12, {PROGRAM: slow(*places[:count])}) for count in counts]
    claim = pauses(plain, paused)
    assert (claim is not None) == found
    # The other way round, A has them.
    back = pauses(paused, plain)
    assert (back is not None) == found
    if found:
        assert (claim.text[:5], back.text[:5]) == ("of B,", "of A,")
        assert claim.place == back.place
        assert (claim.kind, claim.parts) == ("pauses", (PAUSES,))


def test_the_level_is_shared_by_the_operations(process):
    # p = 0.027 is above the level of 0.016, of which each of two operations has a half.
    plain = [process(12) for _ in range(3)]
    paused = [process(12, {FIRST: slow(*(3, 7)[:count])}) for count in (2, 2, 1)]
    assert pauses(plain, paused) is None


def test_steps_in_a_row_are_one_pause(process):
    plain = [process(12) for _ in range(3)]
    paused = [process(12, {PROGRAM: slow(3, 4)}) for _ in range(3)]
    assert pauses(plain, paused) is None
    apart = [process(12, {PROGRAM: slow(3, 5)}) for _ in range(3)]
    assert pauses(plain, apart) is not None


@pytest.mark.parametrize(("count", "found"), [(30, False), (31, True)])
def test_pauses_are_more_frequent_by_half(process, count, found):
    def side(number):
        steps = range(3, 3 + 5 * number, 5)
        return [process(200, {PROGRAM: slow(*steps)}) for _ in range(3)]

    assert (pauses(side(20), side(count)) is not None) == found


@pytest.mark.parametrize(("more", "found"), [(0.59, False), (0.61, True)])
def test_pauses_take_a_hundredth_of_the_step(process, more, found):
    # Two of 12 steps take `more`; a hundredth of the step is 0.1 s.
    plain = [process(12) for _ in range(3)]
    paused = [process(12, {PROGRAM: slow(3, 7, more=more)}) for _ in range(3)]
    assert (pauses(plain, paused) is not None) == found


@pytest.mark.parametrize(
    ("steps", "count", "found"),
    [(12, 6, True), (13, 7, True), (12, 7, False), (15, 8, True), (15, 9, False)],
)
def test_most_steps_are_not_pauses(process, steps, count, found):
    # The timed steps are as slow as the profiled ones.
    places = [*range(0, steps, 2), *range(1, steps, 2)][:count]
    plain = [process(steps) for _ in range(3)]
    paused = [process(steps, {PROGRAM: slow(*places)}, alike=True) for _ in range(3)]
    assert (pauses(plain, paused) is not None) == found


def test_slow_steps_that_both_sides_have_hide_no_pauses(process):
    common = {PROGRAM: slow(1, 6, more=40.0)}
    plain = [process(24, common) for _ in range(3)]
    both = {PROGRAM: {**slow(1, 6, more=40.0), **slow(3, 9, 15, more=5.0)}}
    claim = pauses(plain, [process(24, both) for _ in range(3)])
    assert claim is not None
    assert "5,000 ms more" in claim.text


def test_the_longest_pauses_are_reported(process):
    plain = [process(12) for _ in range(3)]
    paused = [
        process(12, {PROGRAM: slow(3, 7, more=2.0), INPUT_WAIT: slow(2, 9, more=4.0)})
        for _ in range(3)
    ]
    claim = pauses(plain, paused)
    assert claim.place == "the input pipeline"
    assert "4,000 ms more" in claim.text


def test_times_of_pauses_are_a_part_of_the_step(process):
    plain = [process(12) for _ in range(3)]
    paused = [process(12, {PROGRAM: slow(3, 7)}) for _ in range(3)]
    _, sides = find_pauses(ComparedProfiles(plain, paused))
    # Two of twelve steps take 3 s more.
    assert sides.means[PAUSES].difference == pytest.approx(0.5)
    assert sides.means[PROGRAM].difference == pytest.approx(0)
    assert sides.step.difference == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("part", "place"),
    [
        (FIRST, "conv0, forward"),
        (INPUT_WAIT, "the input pipeline"),
        (PROGRAM, "the training loop, outside the graph"),
    ],
)
def test_the_evidence_names_the_parts_that_take_longer(process, part, place):
    # Of parts with the same slow steps, the first one names the place.
    usual = {part: USUAL[part], **USUAL}
    more = {part: slow(3, 7, 10, more=4.0), SECOND: slow(3, 7, 10, more=1.0)}
    plain, paused = ([process(12, own, usual=usual) for _ in range(3)] for own in (None, more))
    claim = pauses(plain, paused)
    assert claim.place == place
    (line,) = [line for line in claim.evidence if "%" in line]
    shares = [line.index(text) for text in (f"{place} 80 %", "conv1, forward 20 %")]
    assert shares == sorted(shares)
    # At most three parts are named.
    assert line.count("%") == 3


def test_pauses_of_timed_steps_alone_have_no_part_in_the_profiles(process):
    def timed(more):
        return tuple(10.0 + more * (step in (3, 7)) for step in range(12))

    plain, paused = ([process(12, timed=timed(more)) for _ in range(3)] for more in (0.0, 5.0))
    assert pauses(plain, paused) is None


@pytest.mark.parametrize(
    ("more", "computes"), [(2.4, False), (2.5, True), (0.0, False), (5.0, True), (-1.0, False)]
)
def test_cpu_time_tells_whether_a_pause_computes(process, more, computes):
    def timed(extra):
        return tuple(10.0 + extra * (step in (3, 7)) for step in range(12))

    plain = [process(12) for _ in range(3)]
    paused = [
        process(12, {PROGRAM: slow(3, 7, more=5.0)}, timed=timed(5.0), cpu=timed(more))
        for _ in range(3)
    ]
    claim = pauses(plain, paused)
    (line,) = [line for line in claim.evidence if "CPU seconds" in line]
    assert ("computes" in line) == computes
    assert line.startswith(f"{max(0.0, more / 5):.4g}"[:3])
    without = [process(12, {PROGRAM: slow(3, 7, more=5.0)}, timed=timed(5.0)) for _ in range(3)]
    claim = pauses(plain, without)
    assert not [line for line in claim.evidence if "CPU seconds" in line]


def test_without_slow_steps_there_are_no_pauses(process):
    plain = [process(12) for _ in range(3)]
    sides = ComparedProfiles(plain, plain)
    assert find_pauses(sides) == ((), sides)
    slower = [process(12, usual={**USUAL, PROGRAM: 5.0}) for _ in range(3)]
    assert pauses(plain, slower) is None
