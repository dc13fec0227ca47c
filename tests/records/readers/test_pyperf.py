"""Results of pyperf."""

from __future__ import annotations

import json

import pytest
from imports import benchmark_rows, content, file_rows, read


def suite(*values, benchmark=None, **metadata):
    """A file of pyperf with a process for each list of values."""
    runs = [{"metadata": {"date": "2024-05-01 10:00:00.5"}, "values": one} for one in values]
    return {
        "benchmarks": [{"metadata": {"name": "sum", **(benchmark or {})}, "runs": runs}],
        "metadata": metadata,
        "version": "1.0",
    }


def test_files_of_pyperf():
    found = [
        (one["metadata"]["name"], pytest.approx(sum(run["values"]) / len(run["values"])), None)
        for one in content("pyperf.json")["benchmarks"]
        for run in one["runs"]
        if "values" in run
    ]
    assert len(found) == 4
    assert file_rows("pyperf.json") == (found, [])
    found = [("timeit", 12558336.0, None), ("timeit", 12562432.0, None)]
    assert file_rows("pyperf_memory.json") == (found, [])


def test_commit_time_and_environment(tmp_path):
    metadata = {
        **{"commit_id": "abc123", "commit_date": "2024-04-30T12:00:00+02:00"},
        **{"python_version": "3.12.1 (64-bit)", "python_implementation": "cpython"},
        **{"timer": "perf_counter(), resolution: 1.00 ns", "pyperf_version": "2.6.0"},
        **{"performance_version": "1.11.0", "django_version": "3.2.4", "cpu_count": 4},
        "python_gc": "disabled",
    }
    (record,), reasons = read(tmp_path, suite([1.0, 3.0], **metadata))
    assert reasons == []
    assert benchmark_rows([record]) == [("sum", 2.0, "abc123")]
    assert record.subject.committed_at == "2024-04-30T12:00:00+02:00"
    assert record.started_at == "2024-05-01T10:00:00.500000+00:00"
    assert record.environment == {
        **{"python_version": "3.12.1", "python_implementation": "cpython", "logical_cpus": 4},
        **{"clock": "perf_counter()", "program_version": "2.6.0", "benchmark_version": "1.11.0"},
        **{"requirement_django": "3.2.4", "garbage_collection": False},
    }


def test_each_commit_is_a_point_at_the_date_of_its_run(call, tmp_path):
    (tmp_path / "files").mkdir()
    for day in range(10):
        document = suite([1.0 + day], commit_id=str(day) * 40)
        (run,) = document["benchmarks"][0]["runs"]
        run["metadata"]["date"] = f"2024-05-{20 - day} 10:00:00.5"
        (tmp_path / "files" / f"{day}.json").write_text(json.dumps(document))
    err = call("import", tmp_path / "files", f"--results={tmp_path}/r").err
    assert "no time of the run" not in err
    out = call("history", tmp_path / "r", "--metric=benchmark_seconds", "--format=json").out
    (series,) = json.loads(out)["series"]
    assert [point["commit"][0] for point in series["points"]] == [*"9876543210"]
    assert [point["value"] for point in series["points"]] == [10.0 - day for day in range(10)]


def test_a_name_that_occurs_twice_is_not_averaged(tmp_path):
    document = suite([1.0])
    document["benchmarks"] += suite([5.0])["benchmarks"]
    records, _ = read(tmp_path, document)
    assert [one.imported.part for one in records] == [*range(1, len(records) + 1)]
    assert benchmark_rows(records) == [("sum", 1.0, None), ("sum 2", 5.0, None)]


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_value_with_many_digits_is_named(tmp_path, digits):
    text = '{"benchmarks": [{"metadata": {"name": "sum"}, "runs": [{"values": [1, 1%s]}]}]}'
    records, reasons = read(tmp_path, text % ("0" * digits))
    assert not records
    assert len(reasons) == 1
