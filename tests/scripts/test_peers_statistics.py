"""Orders, ratios with intervals, and verdicts of the comparison with peers."""

from __future__ import annotations

import math

import pytest
from peers import demands, table
from peers.demands import Demand, estimate, judge
from peers.measurement import OK, Measurement, Reading, orders
from peers.options import Options
from peers.scenarios import demands_of


def test_every_subject_runs_once_per_round_and_once_at_every_position_of_a_turn():
    rounds = orders("abcd", 8, seed=3)
    assert all(sorted(order) == list("abcd") for order in rounds)
    for turn in (rounds[:4], rounds[4:]):
        for position in range(4):
            assert {order[position] for order in turn} == set("abcd")


def test_order_depends_on_the_seed_only():
    assert orders("abcdef", 5, seed=1) == orders("abcdef", 5, seed=1)
    assert orders("abcdef", 5, seed=1) != orders("abcdef", 5, seed=2)
    assert orders("", 2, seed=1) == [[], []]


@pytest.mark.parametrize("is_ratio", [False, True])
def test_estimates_by_hand(is_ratio):
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    expected = [3.0, 3.0 - half, 3.0 + half]
    back = math.exp if is_ratio else float
    found = estimate([back(value) for value in values], is_ratio=is_ratio)
    assert [found.mean, found.low, found.high] == pytest.approx([*map(back, expected)])
    one = estimate([2.0], is_ratio=is_ratio)
    assert (one.mean, one.low) == (pytest.approx(2.0), 0.0 if is_ratio else -math.inf)
    assert (one.high, one.rounds) == (math.inf, 1)


def _measured(scenario: str, subject: str, *readings: Reading, dtype="fp32") -> list[Measurement]:
    """One round per reading."""
    return [
        Measurement(scenario, i, 1, subject, dtype, OK, reading=reading)
        for i, reading in enumerate(readings, start=1)
    ]


def _rounds(subject: str, dtype: str, speeds) -> list[Measurement]:
    readings = (Reading(8, (8 / speed,)) for speed in speeds)
    return _measured("resnet50", subject, *readings, dtype=dtype)


def _demand(text: str, scenario: str = "resnet50") -> Demand:
    (found,) = (d for d in demands_of(Options(scenarios=scenario)) if d.text == text)
    return found


AGAINST_TORCH = "cnnbench fp32 / torch fp32"


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [([12, 12.1, 11.9], "met"), ([10, 10.1, 9.9], "MISSED"), ([10.5, 11.5, 11], "open")],
)
def test_verdict_needs_the_whole_interval_on_one_side(mine, verdict):
    measurements = _rounds("cnnbench", "fp32", mine) + _rounds("torch", "fp32", [10, 10, 10])
    finding = judge(_demand(AGAINST_TORCH), measurements, cpu_has_bf16=True)
    assert finding.verdict == verdict
    assert finding.estimate.mean == pytest.approx(math.prod(m / 10 for m in mine) ** (1 / 3))


def test_pairs_are_formed_within_rounds_that_have_both():
    # Machine twice as slow in the second round: the ratio does not notice.
    measurements = _rounds("cnnbench", "fp32", [12, 6, 3]) + _rounds("torch", "fp32", [10, 5])
    found = judge(_demand(AGAINST_TORCH), measurements, cpu_has_bf16=True).estimate
    assert (found.low, found.high, found.rounds) == (*[pytest.approx(1.2)] * 2, 2)


def test_bf16_is_demanded_only_of_cpus_that_have_it():
    measurements = _rounds("cnnbench", "fp32", [9, 10]) + _rounds("cnnbench", "bf16", [10, 11])
    demand = _demand("cnnbench bf16 / cnnbench fp32")
    assert judge(demand, measurements, cpu_has_bf16=True).verdict == demands.MISSED
    without = judge(demand, measurements, cpu_has_bf16=False)
    assert without.verdict == demands.OPEN
    assert "no bf16 instructions" in without.note


START, IMPORT = "start to first step", "import tensorflow"
LATER = f"{START} - {IMPORT}, s"


@pytest.mark.parametrize(
    ("scenario", "text", "subjects", "mean", "verdict"),
    [
        ("startup", LATER, {START: Reading(seconds=3.5), IMPORT: Reading(seconds=3)}, 0.5, "met"),
        ("startup", LATER, {START: Reading(seconds=6), IMPORT: Reading(seconds=3)}, 3, "MISSED"),
        (
            *("memory", "resident memory, last step / warm-up"),
            *({"cnnbench": Reading(bytes_first=1000, bytes_last=1010)}, 1.01, "met"),
        ),
        (
            *("alexnet", "peak memory, cnnbench fp32 / ancestor fp32"),
            {"cnnbench": Reading(peak_bytes=950), "ancestor": Reading(peak_bytes=1000)},
            *(0.95, "MISSED"),
        ),
        (
            *("exposed", "step with nccl - without, ms"),
            {"none": Reading(document={"wall": 1.0}), "nccl": Reading(document={"wall": 1.5})},
            *(500, ""),
        ),
    ],
)
def test_demands_by_hand(scenario, text, subjects, mean, verdict):
    measurements = [
        m for name, one in subjects.items() for m in _measured(scenario, name, one, one)
    ]
    finding = judge(_demand(text, scenario), measurements, cpu_has_bf16=True)
    assert finding.estimate.mean == pytest.approx(mean)
    assert finding.verdict == verdict


def test_a_busy_machine_is_warned_about():
    quiet = Measurement("memory", 1, 1, "cnnbench", "fp32", OK, others_cpus=0.05)
    busy = Measurement("memory", 2, 1, "cnnbench", "fp32", OK, others_cpus=1.0)
    assert len(table.neighbours([quiet], 2)) == 1
    assert "WARNING" in table.neighbours([quiet, busy], 2)[1]
    assert table.neighbours([], 2) == ["Other processes: unknown"]
