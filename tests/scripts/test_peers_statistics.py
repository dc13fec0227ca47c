"""Orders, ratios with intervals, and verdicts of the comparison with peers."""

from __future__ import annotations

import math

import pytest
from peers import demands
from peers.demands import estimate, judge
from peers.readings import OK, Measurement, Reading, orders
from peers.scenarios import Options, demands_of


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


def judged(scenario, text, subjects, cpu_has_bf16=True):
    """The finding for a demand by the readings of each subject, one per round."""
    measurements = [
        Measurement(scenario, number, 1, name, dtype or "fp32", OK, reading=one)
        for subject, readings in subjects.items()
        for name, _, dtype in [subject.partition(":")]
        for number, one in enumerate(readings, start=1)
    ]
    (demand,) = (one for one in demands_of(Options(scenarios=scenario)) if one.text == text)
    return judge(demand, measurements, cpu_has_bf16)


def speeds(*images_per_sec):
    return [Reading(8, (8 / speed,)) for speed in images_per_sec]


def twice(**values):
    return [Reading(**values)] * 2


AGAINST_TORCH = ("resnet50", "cnnbench fp32 / torch fp32")
START, IMPORT = "start to first step", "import tensorflow"
LATER = ("startup", f"{START} - {IMPORT}, s")
GEOMETRIC = (12 * 12.1 * 11.9) ** (1 / 3) / 10


@pytest.mark.parametrize(
    ("demand", "subjects", "mean", "verdict"),
    [
        # The whole interval has to lie on one side of the bound.
        (
            *(AGAINST_TORCH, {"cnnbench": speeds(12, 12.1, 11.9), "torch": speeds(10, 10, 10)}),
            *(GEOMETRIC, "met"),
        ),
        (AGAINST_TORCH, {"cnnbench": speeds(10, 10), "torch": speeds(10, 10)}, 1, "MISSED"),
        (AGAINST_TORCH, {"cnnbench": speeds(10, 12.1), "torch": speeds(10, 10)}, 1.1, "open"),
        # A machine that is half as fast in the second round; none of torch's in the third.
        (AGAINST_TORCH, {"cnnbench": speeds(12, 6, 3), "torch": speeds(10, 5)}, 1.2, "met"),
        (LATER, {START: twice(seconds=3.5), IMPORT: twice(seconds=3)}, 0.5, "met"),
        (LATER, {START: twice(seconds=6), IMPORT: twice(seconds=3)}, 3, "MISSED"),
        (
            ("memory", "resident memory, last step / warm-up"),
            *({"cnnbench": twice(bytes_first=1000, bytes_last=1010)}, 1.01, "met"),
        ),
        (
            ("alexnet", "peak memory, cnnbench fp32 / ancestor fp32"),
            {"cnnbench": twice(peak_bytes=950), "ancestor": twice(peak_bytes=1000)},
            *(0.95, "MISSED"),
        ),
        (
            ("exposed", "step with nccl - without, ms"),
            {"none": twice(document={"wall": 1.0}), "nccl": twice(document={"wall": 1.5})},
            *(500, ""),
        ),
    ],
)
def test_demands_by_hand(demand, subjects, mean, verdict):
    finding = judged(*demand, subjects)
    assert finding.estimate.mean == pytest.approx(mean)
    assert finding.verdict == verdict


def test_bf16_is_demanded_only_of_cpus_that_have_it():
    demand = ("resnet50", "cnnbench bf16 / cnnbench fp32")
    subjects = {"cnnbench": speeds(9, 10), "cnnbench:bf16": speeds(10, 11)}
    assert judged(*demand, subjects).verdict == demands.MISSED
    without = judged(*demand, subjects, cpu_has_bf16=False)
    assert without.verdict == demands.OPEN
    assert "no bf16 instructions" in without.note


def test_a_busy_machine_is_warned_about():
    quiet = Measurement("memory", 1, 1, "cnnbench", "fp32", OK, others_cpus=0.05)
    busy = Measurement("memory", 2, 1, "cnnbench", "fp32", OK, others_cpus=1.0)
    assert len(demands.other_processes_lines([quiet], 2)) == 1
    assert "WARNING" in demands.other_processes_lines([quiet, busy], 2)[1]
    assert demands.other_processes_lines([], 2) == ["Other processes: unknown"]
