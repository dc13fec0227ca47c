"""Results of pytest-benchmark."""

from __future__ import annotations

import json

from imports import IMPORTS, benchmark_rows, content, file_rows, read

from cnnbench.records.readers import read_results


def results(*seconds, python="3.11.7", compiler="GCC 12", timer="perf_counter", disable_gc=False):
    """A file with one test for each value, all with the same name."""
    options = {"timer": timer, "disable_gc": disable_gc}
    of_python = {"python_version": python, "python_compiler": compiler}
    return {
        "machine_info": {**of_python, "cpu": {"brand_raw": "Fast"}},
        "commit_info": {"id": "a" * 40, "time": "2024-05-01T10:00:00+02:00", "dirty": False},
        "datetime": "2024-05-02T08:00:00.123456+00:00",
        "benchmarks": [
            {"fullname": "t.py::test_sum", "options": options, "stats": {"mean": one}}
            for one in seconds
        ],
    }


def test_files_of_pytest_benchmark():
    document = content("pytest_benchmark.json")
    commit = document["commit_info"]["id"]
    found = [(one["fullname"], one["stats"]["mean"], commit) for one in document["benchmarks"]]
    assert len(found) == 3
    assert file_rows("pytest_benchmark.json") == (found, [])
    record = read_results(str(IMPORTS / "pytest_benchmark.json"))[0][0]
    assert record.environment["cpu_model"] == "AMD EPYC"
    assert record.environment["clock"] == "perf_counter"
    assert record.started_at == document["datetime"]
    of_commit = (record.subject.committed_at, record.subject.dirty)
    assert of_commit == (document["commit_info"]["time"], document["commit_info"]["dirty"])
    # Outside of a repository there is no commit.
    found, reasons = file_rows("pytest_benchmark_parameters.json")
    assert [(name, commit) for name, _, commit in found] == [
        (f"test_prog.py::test_sum[{kind}-{size}]", None)
        for kind in ("list", "tuple")
        for size in (100, 1000)
    ]
    assert reasons == []


def test_a_name_that_occurs_twice_is_not_averaged(tmp_path):
    records, _ = read(tmp_path, results(1.0, 5.0))
    assert [one.imported.part for one in records] == [*range(1, len(records) + 1)]
    names = [(name, value) for name, value, _ in benchmark_rows(records)]
    assert names == [("t.py::test_sum", 1.0), ("t.py::test_sum 2", 5.0)]


def test_versions_of_python_and_clocks_are_not_pooled(call, tmp_path):
    variants = {
        "old": {},
        "python": {"python": "3.12.1"},
        "unknown": {"python": None},
        "compiler": {"compiler": "Clang 19"},
        "clock": {"timer": "process_time"},
        "collector": {"disable_gc": True},
    }
    for name, of in variants.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(results(1.0, **of)))
        call("import", tmp_path / f"{name}.json", f"--results={tmp_path}/all/{name}")
    words = {
        "python": "python_version is 3.11.7 in BASE and 3.12.1 in NEW",
        "unknown": "python_version is 3.11.7 in BASE and not recorded in NEW",
        "compiler": "python_compiler is GCC 12 in BASE and Clang 19 in NEW",
        "clock": "clock is perf_counter in BASE and process_time in NEW",
        "collector": "garbage_collection is true in BASE and false in NEW",
    }
    for name, text in words.items():
        out = call("compare", tmp_path / "all" / "old", tmp_path / "all" / name, code=3).out
        assert text in " ".join(out.split())
    out = call("history", tmp_path / "all", "--metric=benchmark_seconds", "--format=json").out
    assert [len(one["points"]) for one in json.loads(out)["series"]] == [1] * 6
