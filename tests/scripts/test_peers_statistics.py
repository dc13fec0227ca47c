"""Orders, ratios with intervals, and verdicts of the comparison with peers."""

from __future__ import annotations

import math

import pytest
from peers import demands, table
from peers.demands import Demand, judge, mean_estimate, ratio_estimate
from peers.measurement import FAILED, NOT_RUN, OK, Measurement, Reading, orders
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


def test_mean_of_five_values_by_hand():
    estimate = mean_estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert estimate.mean == 3.0
    assert estimate.low == pytest.approx(3 - half)
    assert estimate.high == pytest.approx(3 + half)


def test_ratios_average_as_logarithms_so_that_inverses_are_inverse():
    ratios = [1.1, 0.9, 1.3]
    there, back = ratio_estimate(ratios), ratio_estimate([1 / r for r in ratios])
    assert there.mean * back.mean == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)


def test_one_round_has_no_finite_interval_and_bad_values_are_refused():
    assert ratio_estimate([2.0]).low == 0
    assert ratio_estimate([2.0]).high == math.inf
    with pytest.raises(ValueError, match="positive"):
        ratio_estimate([1.0, 0.0])
    with pytest.raises(ValueError, match="no values"):
        mean_estimate([])


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


def test_pairs_are_formed_within_rounds():
    # Machine twice as slow in the second round: the ratio does not notice.
    measurements = _rounds("cnnbench", "fp32", [12, 6]) + _rounds("torch", "fp32", [10, 5])
    estimate = judge(_demand(AGAINST_TORCH), measurements, cpu_has_bf16=True).estimate
    assert estimate.low == pytest.approx(1.2)
    assert estimate.high == pytest.approx(1.2)


def test_a_round_without_its_partner_is_left_out():
    measurements = _rounds("cnnbench", "fp32", [12, 6, 3]) + _rounds("torch", "fp32", [10])
    assert judge(_demand(AGAINST_TORCH), measurements, cpu_has_bf16=True).estimate.rounds == 1


def test_a_missing_peer_is_named_with_its_reason():
    measurements = _rounds("cnnbench", "fp32", [12])
    measurements.append(Measurement("resnet50", 0, 0, "torch", "fp32", NOT_RUN, "no torch here"))
    finding = judge(_demand(AGAINST_TORCH), measurements, cpu_has_bf16=True)
    assert finding.verdict == demands.NOT_MEASURED
    assert finding.note == "torch fp32 not run: no torch here"
    assert "no torch here" in "\n".join(table.demands_table([finding]))
    assert "torch fp32 not run: no torch here" in "\n".join(table.subjects_table(measurements))


def test_bf16_is_demanded_only_of_cpus_that_have_it():
    measurements = _rounds("cnnbench", "fp32", [9, 10]) + _rounds("cnnbench", "bf16", [10, 11])
    demand = _demand("cnnbench bf16 / cnnbench fp32")
    assert judge(demand, measurements, cpu_has_bf16=True).verdict == demands.MISSED
    without = judge(demand, measurements, cpu_has_bf16=False)
    assert without.verdict == demands.OPEN
    assert "no bf16 instructions" in without.note


PRODUCT = Reading(flops_per_sec=100e9)
START, IMPORT = "start to first step", "import tensorflow"
LATER = f"{START} - {IMPORT}, s"


@pytest.mark.parametrize(
    ("scenario", "text", "subjects", "mean", "verdict"),
    [
        (
            *("resnet50", "cnnbench fp32 / matmul fp32"),
            {"cnnbench": Reading(8, (2.0,), flops_per_image=20e9), "matmul": PRODUCT},
            *(8 / 2.0 * 20e9 / 100e9, "MISSED"),
        ),
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
            *("overhead", "harness / bare loop"),
            *({"harness": Reading(8, (0.01, 0.01), bare_steps_per_sec=125)}, 0.8, "MISSED"),
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


def test_tables_show_figures_intervals_and_failures():
    measurements = _rounds("cnnbench", "fp32", [12, 12]) + _rounds("torch", "fp32", [10, 10])
    measurements.append(Measurement("resnet50", 1, 3, "keras", "fp32", FAILED, "exit status 1: x"))
    subjects = table.subjects_table(measurements)
    assert subjects[1].split() == ["resnet50", "cnnbench", "fp32", "2", "12.00", "666.67", "ms"]
    assert subjects[-1] == "resnet50, keras fp32 failed: exit status 1: x"
    finding = judge(_demand(AGAINST_TORCH), measurements, cpu_has_bf16=True)
    line = table.demands_table([finding])[1]
    assert line.split()[-8:] == ["1.200", "1.200", "..", "1.200", ">=", "1.10", "2", "met"]


def test_a_busy_machine_is_warned_about():
    quiet = Measurement("memory", 1, 1, "cnnbench", "fp32", OK, others_cpus=0.05)
    busy = Measurement("memory", 2, 1, "cnnbench", "fp32", OK, others_cpus=1.0)
    assert len(table.neighbours([quiet], 2)) == 1
    assert "WARNING" in table.neighbours([quiet, busy], 2)[1]
    assert table.neighbours([], 2) == ["Other processes: unknown"]
