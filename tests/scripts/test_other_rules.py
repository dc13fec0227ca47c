"""The rules of other tools: what each of them calls slower, and what all make of a drift."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import validate_gate
from validation import other_rules
from validation.other_rules import CNNBENCH, TOOLS
from validation.studies import simulate_and_sum

STEADY = 1 + 0.001 * np.random.default_rng(1).standard_normal((16, 20))
NOISY = 1 + 0.02 * np.random.default_rng(2).standard_normal((16, 1)) + 0 * STEADY


@pytest.mark.parametrize(
    ("tool", "found"),
    [
        ("asv, factor 1.1", {1.2}),
        ("asv, factor 1.03", {1.05, 1.2}),
        ("benchstat", {1.01, 1.05, 1.2}),
        ("hyperfine", {1.01, 1.05, 1.2}),
        ("pyperf compare_to", {1.01, 1.05, 1.2}),
        ("criterion", {1.05, 1.2}),
        ("two runs, 3 %", {1.05, 1.2}),
    ],
)
def test_each_rule_has_its_own_smallest_change(tool, found):
    decide = TOOLS[tool].decide
    assert {factor for factor in (1.0, 1.01, 1.05, 1.2) if decide(STEADY, factor * STEADY)} == found
    assert not decide(1.2 * STEADY, STEADY)  # B is faster.


def test_a_deviation_hides_a_change_from_hyperfine_only():
    decided = {tool: TOOLS[tool].decide(NOISY, 1.02 * NOISY) for tool in TOOLS}
    assert not decided["hyperfine"]
    assert decided["benchstat"]
    assert decided["pyperf compare_to"]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_drift_makes_equal_programs_slower_for_rules_that_measure_a_first(tool):
    found = simulate_and_sum(other_rules.simulate_tool, (tool, "drift of 20 %", 0.0), 10, 1)
    assert found["slower"] >= 9


def test_pairs_in_random_order_withstand_a_drift():
    for truth, least, most in ((0.0, 0, 0), (0.10, 10, 10)):
        case = (CNNBENCH, "drift of 20 %", truth)
        found = simulate_and_sum(other_rules.simulate_tool, case, 10, 1)
        assert least <= found["slower"] <= most
        assert found["processes"] <= 10 * 32


def test_the_table_of_shares_has_each_rule_with_each_slowdown(tmp_path):
    path = tmp_path / "rules.csv"
    assert validate_gate.main([f"--shares={path}", "--draws=2"]) == 0
    with path.open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    rule, noise, slowdown, share = other_rules.SHARE_COLUMNS
    steady = [row for row in rows if row[noise] == "normal, 3 %"]
    assert {row[rule] for row in rows} == {row[rule] for row in steady} == {CNNBENCH, *TOOLS}
    assert {row[slowdown] for row in steady} == {"0", "1", "2", "3", "5", "7", "10"}
    assert len(rows) == len(TOOLS) * 9 + 9
    drift = {row[rule]: float(row[share]) for row in rows if row[noise] == "drift of 20 %"}
    assert drift.pop(CNNBENCH) == 0
    assert {*drift.values()} == {100}
