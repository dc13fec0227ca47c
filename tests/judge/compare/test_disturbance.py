"""What disturbed runs, in the reason of what is inconclusive."""

from __future__ import annotations

from cnnbench.judge.compare import Verdict, compare_records
from cnnbench.judge.compare.disturbance import disturbance
from cnnbench.records.parts import ConditionNote, Conditions

NOISY = (90.0, 95.0, 100.0, 105.0, 110.0)


def conditions(others, *ids, steal=0.0):
    notes = tuple(ConditionNote(id=i, when="during", text="x", advice="y") for i in ids)
    during = {"other_cpus": others, "steal_fraction": steal}
    return Conditions(before={}, during=during, notes=notes)


def test_the_reason_names_how_many_and_by_what(runs):
    base = runs.of(*NOISY, conditions=conditions(1.37, "load"))
    calm = runs.of(*NOISY[:4], conditions=conditions(0.02))
    stolen = runs.of(NOISY[4], conditions=conditions(0.5, "load", "steal", steal=0.123))
    (entry,) = compare_records(base, [*calm, *stolen]).entries
    assert entry.main.verdict is Verdict.INCONCLUSIVE
    reason = entry.main.judgement.reason
    assert reason.endswith(
        "; 6 of 10 runs were disturbed: other processes use the CPUs in 6 (others kept at most "
        "1.37 CPUs busy), the hypervisor gives CPU time to other machines in 1 (at most 12.3 %)"
    )


def test_no_remark_and_no_record_of_it(runs):
    calm = runs.of(*NOISY, conditions=conditions(0.02))
    found = disturbance(calm)
    assert found == "none of 5 runs was disturbed (others kept at most 0.02 CPUs busy)"
    assert disturbance(runs.of(*NOISY)) == ""


def test_a_verdict_needs_no_excuse(runs):
    base = runs.of(*[100.0] * 5, conditions=conditions(1.0, "load"))
    (entry,) = compare_records(base, runs.of(*[50.0] * 5)).entries
    assert entry.main.verdict is Verdict.SLOWER
    assert "disturbed" not in entry.main.judgement.reason
