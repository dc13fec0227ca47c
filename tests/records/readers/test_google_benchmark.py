"""Results of google/benchmark, in the forms of all its versions."""

from __future__ import annotations

import json

import pytest
from imports import benchmark_rows, content, file_rows, read

CONTEXT = {"date": "2024-05-01T10:00:00+00:00", "host_name": "h", "num_cpus": 2}


def document(*rows, **context):
    return {"context": {**CONTEXT, **context}, "benchmarks": list(rows)}


def row(name, time, unit="ns", **more):
    return {"name": name, "real_time": time, "cpu_time": time / 2, "time_unit": unit, **more}


def test_files_of_google_benchmark():
    found = [
        ("Copy/1024", 3.80786677e-08),
        ("Copy/65536", 3.68662828e-06),
        ("Push", 3.27338215e-06),
    ]
    found = [(name, pytest.approx(value), None) for name, value in found]
    assert file_rows("google_benchmark.json") == (found, ["'Fails' failed: no device"])
    rows = content("google_benchmark_repetitions.json")["benchmarks"]
    mean = next(one["real_time"] for one in rows if one["name"] == "Push_mean")
    found = [("Push", pytest.approx(mean * 1e-6), None)]
    assert file_rows("google_benchmark_repetitions.json") == (found, [])


def test_aggregates_up_to_version_1_4_are_no_benchmarks(tmp_path):
    # The rows have neither run_type nor repetition_index.
    rows = [row("a", 10.0), row("a", 20.0), row("a_mean", 15.0), row("a_median", 15.0)]
    rows += [row("a_stddev", 5.0), row("b_mean", 7.0), row("b_median", 6.0), row("b_stddev", 1.0)]
    rows += [row("of_mean", 3.0)]
    records, reasons = read(tmp_path, document(*rows))
    values = {name: value * 1e9 for name, value, _ in benchmark_rows(records)}
    assert values == pytest.approx({"a": 15.0, "b": 7.0, "of_mean": 3.0})
    assert reasons == []


def test_rows_of_complexities_have_no_times(tmp_path):
    old = [
        {"name": "a_BigO", "cpu_coefficient": 1.0, "real_coefficient": 1.0, "big_o": "N"},
        {"name": "a_RMS", "rms": 0.1},
    ]
    new = [
        {**one, "run_name": "a", "run_type": "aggregate", "aggregate_name": name}
        for one, name in zip(old, ("BigO", "RMS"), strict=True)
    ]
    for rows in (old, new):
        first = row("a/8", 8.0, **({} if rows is old else {"run_type": "iteration"}))
        records, reasons = read(tmp_path, document(first, *rows))
        assert [name for name, *_ in benchmark_rows(records)] == ["a/8"]
        assert reasons == []


@pytest.mark.parametrize("index", [{}, {"run_type": "iteration", "repetition_index": 0}])
def test_a_name_that_occurs_twice_is_not_averaged(tmp_path, index):
    records, _ = read(tmp_path, document(row("a", 217_000.0, **index), row("a", 52.0, **index)))
    assert [one.imported.part for one in records] == [*range(1, len(records) + 1)]
    values = [(name, pytest.approx(value)) for name, value, _ in benchmark_rows(records)]
    assert values == [("a", 217e-6), ("a 2", 52e-9)]


def test_infinite_values_lose_only_themselves(tmp_path):
    text = json.dumps(document(row("a", 10.0), row("b", 20.0, rate=1.0)), indent=1)
    text = text.replace('"real_time": 10.0', '"real_time": inf').replace(
        '"rate": 1.0', '"rate": -nan'
    )
    records, reasons = read(tmp_path, text)
    assert [name for name, *_ in benchmark_rows(records)] == ["b"]
    assert reasons == ["'a' has no value: inf"]


def test_cpu_time(call, tmp_path):
    (record,), _ = read(tmp_path, document(row("a", 10.0)), clock="cpu")
    assert record.imported.values["benchmark_seconds"] == pytest.approx(5e-9)
    for clock in ("real", "cpu"):
        to = f"--results={tmp_path}/{clock}"
        call("import", tmp_path / "results.json", to, f"--clock={clock}")
    out = call("compare", tmp_path / "real", tmp_path / "cpu", code=3).out
    assert "clock is real in BASE and cpu in NEW" in " ".join(out.split())


def test_the_context_contains_the_commit_and_the_build(tmp_path):
    context = {
        **{"git_commit": "abc123", "git_commit_date": "2024-04-30T12:00:00+00:00"},
        **{"compiler": "gcc 13", "build_type": "release", "library_version": "v1.8.3"},
        **{"library_build_type": "debug", "note": "x"},
    }
    (record,), _ = read(tmp_path, document(row("a", 10.0), **context))
    assert record.subject.revision == "abc123"
    assert record.subject.committed_at == "2024-04-30T12:00:00+00:00"
    assert record.environment == {
        **{"hostname": "h", "logical_cpus": 2, "clock": "real", "program_version": "v1.8.3"},
        **{"build_compiler": "gcc 13", "build_type": "release"},
        "build_library_build_type": "debug",
    }


def test_the_time_of_early_versions(tmp_path):
    (record,), _ = read(tmp_path, document(row("a", 10.0), date="2016/10/21-22:05:27"))
    assert record.started_at == "2016-10-21T22:05:27+00:00"


def test_a_benchmark_without_one_unit_of_time_is_named(tmp_path):
    rows = [row("a", 1.0, "s"), row("b", 2.0, "min"), row("c", 3.0, "ms"), row("d", 4.0, "us")]
    twice = {"run_type": "iteration", "run_name": "e"}
    rows += [row("e", 5.0, u, repetition_index=i, **twice) for i, u in enumerate(("ns", "ms"))]
    of = {"run_type": "aggregate", "run_name": "f"}
    rows += [row(f"f_{one}", 1.0, aggregate_name=one, **of) for one in ("median", "stddev")]
    records, reasons = read(tmp_path, document(*rows))
    found = [(name, pytest.approx(value)) for name, value, _ in benchmark_rows(records)]
    assert found == [("a", 1.0), ("c", 3e-3), ("d", 4e-6)]
    assert reasons == [f"{name!r} has no mean time in ns, us, ms or s" for name in "bef"]
