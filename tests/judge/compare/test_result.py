"""What a comparison says in its first two lines; golden/sentences.txt has how it says it.

Tests cnnbench/judge/compare/verdicts.py and cnnbench/judge/compare/answers.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from cnnbench.judge.compare import METRICS, Criteria, Verdict, compare_records
from cnnbench.judge.compare.answers import known_text
from cnnbench.judge.compare.result import without_tests
from cnnbench.judge.metrics.rules import Acceptance

FAST, SLOW = 200.0, 36.0


def test_what_is_known_at_an_interim_analysis_contains_no_advice(lenet_runs):
    runs = lenet_runs()
    base, new = runs.of(*range(100, 105)), runs.of(*range(90, 95))
    result = compare_records(base, new, Criteria(paired=True)).entries[0].main
    assert (result.judgement.low, result.judgement.at_least) == (None, 6)
    assert "6 pairs" in result.judgement.reason
    known = known_text(result)
    assert ("-9.8 %" in known, "pairs" in known) == (True, False)


@pytest.mark.parametrize(
    ("milliseconds", "speeds"),
    [
        ((20, 10, 20.2, 10.1, 10.2), (0.0101, 0.0201)),
        ((10, 10, 20), None),  # one process may be slow for another reason
        ((10, 20, 20), None),
        ((10,), None),
        ((10, 10, 15, 15), (0.010, 0.015)),
        ((10, 10, 14.9, 14.9), None),
        # Within each group, processes differ by less than the square root of the ratio.
        ((10, 14.1, 28.2, 28.2), (0.01205, 0.0282)),
        ((10, 14.2, 28.4, 28.4), None),
        ((10, 10, 20, 28.2), (0.010, 0.0241)),
        ((10, 10, 20, 28.4), None),
    ],
)
def test_processes_of_two_speeds(runs, milliseconds, speeds):
    slow = [runs(step_seconds=(ms / 1e3,) * 3, losses=()) for ms in milliseconds]
    expected = None if speeds is None else pytest.approx(speeds)
    for sides in ((slow, [runs()]), ([runs()], slow)):
        (entry,) = compare_records(*sides).entries
        assert entry.two_speeds == expected


ENDS = {"open": "2999-01-01", "ended": "2000-01-01"}


@pytest.mark.parametrize(
    ("verdict", "policy", "parts", "of_all", "sets", "level"),
    [
        ("slower", {}, {}, {}, True, "error"),
        ("faster", {}, {}, {}, False, "notice"),
        ("same", {}, {}, {}, False, ""),
        ("inconclusive", {}, {}, {}, False, "warning"),
        ("inconclusive", {"asked": False}, {}, {}, False, ""),
        ("failed", {}, {}, {}, False, "error"),
        ("failed", {"asked": False}, {}, {}, False, "warning"),
        ("faster", {"fail_on": ("faster",)}, {}, {}, True, "error"),
        # The words of the user come before those of rules.
        ("slower", {"fail_on": ("slower",)}, {}, {"fail_on": ()}, False, "warning"),
        ("slower", {"fail_on": ()}, {}, {"fail_on": ("slower",)}, True, "error"),
        ("slower", {"fail_on": ()}, {}, {}, False, "warning"),
        # Of what nobody asked for, only some metrics set it, unless rules say so.
        ("slower", {"asked": False}, {}, {}, True, "error"),
        ("slower", {"asked": False}, {"gates": False}, {}, False, "warning"),
        ("slower", {"asked": False, "gates": True}, {"gates": False}, {}, True, "error"),
        ("slower", {}, {"gates": False}, {}, True, "error"),
        ("slower", {}, {"accepted": "open"}, {}, False, "warning"),
        ("slower", {}, {"accepted": "ended"}, {}, True, "error"),
        ("changed work", {}, {}, {}, True, "error"),
        ("changed work", {}, {}, {"allow_changed_work": True}, False, "warning"),
        ("changed work", {"asked": False}, {}, {}, True, "error"),
    ],
)
def test_what_sets_the_exit_code(runs, verdict, policy, parts, of_all, sets, level):
    found = compare_records([runs()], [runs()])
    ((entry, result),) = found.results_of_metric(METRICS["throughput"])
    own = dict(parts)
    metric = replace(METRICS["throughput"], gates=own.pop("gates", True))
    result = replace(result, samples=replace(result.samples, metric=metric))
    if "accepted" in own:
        own["accepted"] = Acceptance(commit="1234567", reason="x", until=ENDS[own["accepted"]])
    own["judgement"] = replace(result.judgement, verdict=Verdict(verdict))
    result = replace(result, policy=result.policy.replace(**policy), **own)
    found = replace(found, **of_all)
    assert found.sets_exit_code(entry, result) == sets
    assert found.annotation_level(entry, result).value == level
    # What is only context never does.
    assert (entry.kind, entry.affects_exit_code) == (None, True)
    entry = replace(entry, configuration=replace(entry.configuration, kind="copy"))
    assert (entry.kind, entry.affects_exit_code) == ("copy", False)
    assert not found.sets_exit_code(entry, result)
    bad = verdict in ("slower", "changed work", "failed", "faster")
    assert found.annotation_level(entry, result).value == ("notice" if bad else "")


def noisy(lenet_runs, steps=3, **flags):
    """A comparison that more processes will not decide."""
    runs = lenet_runs({"usable_cpus": 2})
    speeds = [FAST, FAST * 1.02, SLOW, SLOW * 0.98] * 2
    sides = (
        [runs(speed, flags=flags, steps=steps) for speed in some] for some in (speeds, speeds[::-1])
    )
    return compare_records(*sides)


def test_advice_depends_on_the_length_and_the_threads_of_runs(lenet_runs):
    # Medians of the steps of 8 images at 200 and at 36 images/sec are 131 ms.
    texts = [
        noisy(lenet_runs, steps, **flags).advice
        for steps, flags in (
            (30, {}),
            (31, {}),
            (31, {"num_intra_threads": 1}),
            (30, {"num_intra_threads": 1}),
            (31, {"device": "gpu"}),
        )
    ]
    longer = ["five seconds" in text for text in texts]
    threads = ["--num_intra_threads=1" in text for text in texts]
    assert longer == [True, False, False, True, False]
    assert threads == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("base", "new", "told"),
    [
        ((1.0, 2.0), (3.0, 4.0), True),
        ((3.0, 4.0), (1.0, 2.0), True),
        ((1.0, 4.0), (2.0, 3.0), False),
        ((1.0, 2.0), (1.0, 2.0), False),
    ],
)
def test_a_change_that_all_pairs_show(lenet_runs, base, new, told):
    runs = lenet_runs()
    found = compare_records(
        [runs(speed) for speed in base], [runs(speed) for speed in new], Criteria(paired=True)
    )
    (entry,) = found.entries
    joint = replace(entry.main, policy=entry.main.policy.replace(split=0.5))
    entry = replace(entry, results=(joint, *entry.results[1:]))
    with_both = replace(found, entries=(entry,))
    assert ("all 2 pairs" in with_both.answer) == told
    assert "all 2 pairs" not in found.answer


def test_an_unfinished_experiment_has_no_tests(lenet_runs):
    runs = lenet_runs()
    base, new = runs.of(*range(100, 108)), runs.of(*range(80, 88))
    whole = compare_records(base, new)
    compared_main = whole.entries[0].main
    assert compared_main.verdict is Verdict.SLOWER
    found = without_tests(whole, "stopped")
    main = found.entries[0].main
    assert main.verdict is Verdict.INCONCLUSIVE
    assert main.judgement.change == compared_main.judgement.change
    change = main.metric.change_text(main.judgement.change)
    assert main.judgement.reason == f"stopped; so far {change}"
    tested = ("low", "high", "p", "p_adjusted", "needed", "more", "at_least", "decided_by")
    assert {name: getattr(main.judgement, name) for name in tested} == dict.fromkeys(tested)
    # Verdicts that need no test are kept.
    failed = compare_records(base, [*new[1:], runs(error=("E", "x"), step_seconds=(), losses=())])
    kept = without_tests(failed, "stopped")
    assert failed.entries[0].main.verdict is Verdict.FAILED
    assert kept.entries[0].main.judgement == failed.entries[0].main.judgement
