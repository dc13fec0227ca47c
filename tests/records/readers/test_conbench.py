"""Results of Conbench, as they are sent and as the API returns them."""

from __future__ import annotations

import pytest
from imports import benchmark_rows, read


def result(*values, unit="s", run="r1", **more):
    return {
        **{"batch_id": "b", "run_id": run, "timestamp": "2024-05-01T10:00:00Z"},
        "tags": {"name": "read", "format": "parquet"},
        "stats": {"data": [*values], "unit": unit, "iterations": len(values)},
        **more,
    }


def test_a_result_that_is_sent(tmp_path):
    (record,), reasons = read(
        tmp_path,
        result(
            *(1.0, "3.0"),
            github={"repository": "https://github.com/o/r", "commit": "abc123"},
            machine_info={"name": "h", "cpu_model_name": "Fast", "cpu_thread_count": "8"},
            context={"benchmark_language": "C++", "flags": {"a": 1}},
            info={"compiler": "gcc"},
        ),
    )
    assert reasons == []
    assert benchmark_rows([record]) == [("read parquet", 2.0, "abc123")]
    assert record.subject.repository == "https://github.com/o/r"
    assert record.started_at == "2024-05-01T10:00:00+00:00"
    assert record.environment == {
        **{"hostname": "h", "cpu_model": "Fast", "logical_cpus": "8"},
        **{"context_benchmark_language": "C++", "context_flags": '{"a": 1}'},
        "info_compiler": "gcc",
    }


def test_a_page_of_the_api(tmp_path):
    commit = {"sha": "abc123", "timestamp": "2024-04-30T00:00:00Z", "repository": "o/r"}
    page = {
        "data": [
            result(
                1.0,
                commit=commit,
                hardware={"name": "h"},
                links={"context": "http://localhost/api/contexts/c7/"},
            ),
            result(2.0, commit=commit, run="r2"),
            result(9.0, commit=commit, run="r2"),
            result(commit=commit, error={"stderr": "..."}),
            result(None, commit=commit, run="r3"),
        ],
        "metadata": {"next_page_cursor": None},
    }
    records, reasons = read(tmp_path, page)
    # Two runs are repetitions. The same benchmark twice in a run is not.
    assert benchmark_rows(records) == [
        ("read parquet", 1.0, "abc123"),
        ("read parquet", 2.0, "abc123"),
        ("read parquet 2", 9.0, "abc123"),
    ]
    assert reasons == ["'read' failed", "'read' has no value: None"]
    assert records[0].environment == {"hostname": "h", "context_id": "c7"}
    assert records[0].subject.committed_at == "2024-04-30T00:00:00+00:00"


def test_the_unit_says_what_is_better(tmp_path):
    records, _ = read(tmp_path, [result(7.0, unit="ns"), result(7.0, unit="B/s", run="r2")])
    assert [one.imported.part for one in records] == [*range(1, len(records) + 1)]
    assert [one.imported.kind for one in records] == ["benchmark_seconds", "benchmark_score"]
    assert records[0].imported.values["benchmark_seconds"] == pytest.approx(7e-9)
    assert records[1].environment["unit"] == "B/s"
