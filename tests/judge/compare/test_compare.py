"""Comparisons: verdicts, exit codes, metrics, means and notes."""

from dataclasses import replace
from functools import partial

import pytest

from cnnbench.errors import ExitCode
from cnnbench.judge.compare import Criteria, SkippedFile, Verdict, compare_records
from cnnbench.judge.compare.compare import are_comparable
from cnnbench.records.run import Evaluation

BASE = (100.0, 100.2, 99.8, 100.1, 99.9)


def scaled(factor):
    return [speed * factor for speed in BASE]


def suite(runs, factors, **more):
    """Runs of each network, with its factor of speed."""
    return [
        record
        for model, factor in factors.items()
        for record in runs.of(*scaled(factor), flags={"model": model}, **more)
    ]


def only(comparison):
    (entry,) = comparison.entries
    return entry.main


SLOW_CPU = {"cpu_model": "Slow CPU", "logical_cpus": 64}


@pytest.mark.parametrize(
    ("status", "verdict"), [("failed", Verdict.FAILED), ("interrupted", Verdict.INCONCLUSIVE)]
)
def test_what_did_not_succeed_is_no_value_and_is_counted(runs, status, verdict):
    error = ("Error", "out of memory") if status == "failed" else None
    new = [*runs.of(*BASE), *(runs(1.0, error=error, status=status) for _ in range(2))]
    found = compare_records(runs.of(*BASE), new)
    result = only(found)
    assert result.verdict is verdict
    # Both got as far as timed steps, a hundred times slower.
    assert result.new == pytest.approx(BASE)
    assert result.judgement.new_median == pytest.approx(100.0)
    assert len(found.entries[0].new_runs) == 7


def test_the_geometric_mean_is_over_what_was_compared_only(runs):
    # google/benchmark's OVERALL_GEOMEAN took the mean of each side over whatever the side had: an
    # unchanged benchmark and one missing on the right made -90 %.
    base = suite(runs, {"lenet": 1.0, "vgg11": 1.0, "alexnet": 1.0, "resnet20": 1.0})
    new = suite(runs, {"lenet": 1.21, "vgg11": 1.0})
    new += suite(runs, {"alexnet": 0.01}, environment={"cpu_model": "Slow CPU"})
    new += [runs(None, error=("OSError", "no"), flags={"model": "resnet20"})]
    new += suite(runs, {"overfeat": 1.0})
    found = compare_records(base, new)
    mean = found.geometric_means["throughput"]
    # sqrt(1.21 * 1) = 1.1
    assert (mean.change, mean.configurations) == (pytest.approx(0.1), 2)
    assert mean.of == len(found.entries)
    nothing = compare_records(runs.of(*BASE), runs.of(*BASE, flags={"model": "vgg11"}))
    assert nothing.geometric_means == {}


def test_the_worst_come_first_by_value(runs):
    factors = {"a": 0.9, "b": 0.05, "c": 1.1, "d": 1.0, "e": 0.5}
    found = compare_records(suite(runs, dict.fromkeys(factors, 1.0)), suite(runs, factors))
    order = [entry.configuration.flags["model"] for entry in found.by_severity()]
    assert order == ["b", "e", "a", "c", "d"]


def test_a_regression_outranks_failures_and_open_questions(runs):
    failed = runs(None, error=("OSError", "no"), flags={"model": "a"})
    open_question = runs(flags={"model": "b"})
    base = [*runs.of(*BASE), *runs.of(*BASE, flags={"model": "a"}), open_question]
    broken = (SkippedFile("x.json", "empty"),)

    def code(*new, skipped=()):
        return compare_records(base, new, skipped=skipped).exit_code

    assert code(*runs.of(*scaled(0.8)), failed, skipped=broken) is ExitCode.REGRESSION
    assert code(*runs.of(*BASE), failed, skipped=broken) is ExitCode.FAILED
    assert code(*runs.of(*BASE)) is ExitCode.INCONCLUSIVE


def test_a_faulty_file_makes_the_answer_incomplete(runs):
    def code(*skipped):
        return compare_records(runs.of(*BASE), runs.of(*BASE), skipped=skipped).exit_code

    assert code() is ExitCode.OK
    assert code(SkippedFile("a.json", "another kind", defect=False)) is ExitCode.OK
    assert code(SkippedFile("a.json", "empty")) is ExitCode.INCONCLUSIVE
    assert compare_records([], []).exit_code is ExitCode.INCONCLUSIVE


BOTH = ["throughput", "cpu_time"]


def with_cpu_time(runs, *factors):
    """A run of three steps for each factor, which CPU times are multiplied by."""
    return [runs(step_cpu_seconds=tuple(0.1 * factor * n for n in (1, 2, 3))) for factor in factors]


def with_accuracy(runs, *values):
    """A run with an evaluation of each accuracy."""
    more = {"global_step": 1, "top_5": 1.0, "examples": 10, "images_per_sec": 1.0}
    return [runs(evaluations=(Evaluation(top_1=value, **more),)) for value in values]


LITTLE = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0)
MUCH = (1.3, 1.31, 1.29, 1.32, 1.28, 1.3)
NOISY = (1000, 1300, 900, 1200, 1100)


@pytest.mark.parametrize(
    ("metric", "base", "new", "metrics", "words", "code"),
    [
        ("memory", [1000] * 5, [1100] * 5, None, {"throughput": "same", "memory": "more"}, 1),
        # A longer start is a regression only if it is asked for.
        ("startup", [5] * 5, [9] * 5, None, {"throughput": "same", "startup": "longer"}, 0),
        ("startup", [5] * 5, [9] * 5, ["startup"], {"startup": "longer"}, 1),
        ("accuracy", [0.75] * 5, [0.7] * 5, None, {"throughput": "same", "accuracy": "worse"}, 1),
        # CPU time is judged where it is asked for.
        ("cpu_time", LITTLE, MUCH, None, {"throughput": "same"}, 0),
        ("cpu_time", LITTLE, MUCH, BOTH, {"throughput": "same", "cpu_time": "more"}, 1),
        ("cpu_time", LITTLE, MUCH, ["cpu_time"], {"cpu_time": "more"}, 1),
        ("cpu_time", MUCH, LITTLE, ["cpu_time"], {"cpu_time": "less"}, 0),
        # Open questions count only of metrics that are asked for.
        ("memory", NOISY, NOISY, None, {"throughput": "same", "memory": "inconclusive"}, 0),
        ("memory", NOISY, NOISY, ["memory"], {"memory": "inconclusive"}, 3),
    ],
)
def test_further_metrics(runs, metric, base, new, metrics, words, code):
    make = {
        "memory": runs.with_memory,
        "startup": runs.with_startup,
        "cpu_time": partial(with_cpu_time, runs),
        "accuracy": partial(with_accuracy, runs),
    }[metric]
    found = compare_records(make(*base), make(*new), Criteria(metrics=metrics))
    (entry,) = found.entries
    assert {one.metric.name: one.word for one in entry.results} == words
    assert found.exit_code == code


def test_runs_without_cpu_time_compare_with_runs_that_have_it(runs):
    base, new = runs.of(*[100.0] * 6), with_cpu_time(runs, *[1.0] * 6)
    assert compare_records(base, new, Criteria(metrics=["throughput"])).exit_code is ExitCode.OK
    for metrics, other in ((BOTH, base), (BOTH, new), (["cpu_time"], new)):
        found = compare_records(base, other, Criteria(metrics=metrics))
        assert found.entries[0].results[-1].verdict is Verdict.NOT_MEASURED
        assert found.exit_code is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("paired", "counts", "is_paired"),
    [(True, (7, 7), True), (None, (7, 7), True), (False, (8, 7), False)],
)
def test_runs_without_a_partner_are_left_out_of_pairs(runs, paired, counts, is_paired):
    sides = [
        [runs(100.0 + pair, ab={"side": side, "seed": 1, "pair": pair}) for pair in pairs]
        for side, pairs in (("a", range(8)), ("b", range(1, 8)))
    ]
    found = compare_records(*sides, Criteria(paired=paired))
    (entry,) = found.entries
    assert (len(entry.base), len(entry.new)) == counts
    assert (found.paired, entry.main.samples.paired) == (is_paired, is_paired)
    assert found.names == ("A", "B")
    # Runs of no experiment are pairs only if that is asked for.
    plain = compare_records(runs.of(*range(100, 108)), runs.of(*range(100, 108)))
    assert (plain.paired, plain.names) == (False, ("BASE", "NEW"))


@pytest.mark.parametrize(
    ("more", "counts", "paired"),
    [
        ({}, (7, 7), True),
        ({"environment": SLOW_CPU}, (8, 7), False),
        ({"status": "interrupted"}, (8, 7), False),
    ],
)
def test_runs_that_cannot_be_compared_are_no_pairs(runs, more, counts, paired):
    sides = [
        [runs(100.0, ab={"side": side, "seed": 1, "pair": pair}, **parts) for pair in pairs]
        for side, pairs, parts in (("a", range(8), {}), ("b", range(1, 8), more))
    ]
    (entry,) = compare_records(*sides, Criteria(paired=True)).entries
    assert (len(entry.base), len(entry.new), entry.main.samples.paired) == (*counts, paired)


def test_a_further_metric_that_one_side_lacks_has_a_result(machine_runs):
    plain, known = machine_runs.of(*[100.0] * 6), machine_runs.with_memory(*[1000] * 6)

    def results(base, new):
        (entry,) = compare_records(base, new).entries
        return {one.metric.name: one.verdict for one in entry.results}

    for sides in ((plain, known), (known, plain)):
        assert results(*sides)["memory"] is Verdict.INCONCLUSIVE
    assert results(known, machine_runs.with_memory(*[1000] * 6))["memory"] is Verdict.SAME
    assert "memory" not in results(plain, machine_runs.of(*[100.0] * 6))
    # Nor does a metric have one if no run can be compared.
    assert "memory" not in results(known, known)


def test_runs_are_comparable_unless_more_than_what_may_differ_differs(runs):
    run = runs(100.0)
    other = replace(run, environment={**run.environment, "tensorflow_version": "9.9"})
    assert are_comparable([run], [run]) is True
    assert are_comparable([run], [other]) is False
    assert are_comparable([run], [other], Criteria(allow_different=("tensorflow_version",))) is True
    assert are_comparable([run], [runs(None, error=("Error", "no"))]) is False
