"""Reads the JSON that google/benchmark writes with --benchmark_out and --benchmark_format=json."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from cnnbench.base.stats import group_by
from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord

GOOGLE_BENCHMARK = "google-benchmark"
_SECONDS_OF_UNIT = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@register_reader(GOOGLE_BENCHMARK, rb'^\s*"context": \{')
def read_google_benchmark(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each benchmark, with the mean wall time of the repetitions (all in one
    process).

    Aggregates in the file are ignored, because they follow from the repetitions. If the file
    contains no repetitions, its mean is used.
    """
    content = file.json()
    context = content["context"]
    environment = {"hostname": context.get("host_name"), "logical_cpus": context.get("num_cpus")}
    rows = group_by(content["benchmarks"], lambda row: str(row.get("run_name", row["name"])))
    for part, (name, alike) in enumerate(rows.items(), start=1):
        if errors := [row for row in alike if row.get("error_occurred") or row.get("skipped")]:
            file.skip(0, name, f"failed: {errors[0].get('error_message', 'skipped')}")
            continue
        single = [row for row in alike if row.get("run_type", "iteration") == "iteration"]
        single = single or [row for row in alike if row.get("aggregate_name") == "mean"]
        units = {row.get("time_unit") for row in single}
        if len(units) != 1 or not units <= _SECONDS_OF_UNIT.keys():
            file.skip(0, name, "has no mean time in ns, us, ms or s")
            continue
        seconds = fmean(row["real_time"] for row in single) * _SECONDS_OF_UNIT[units.pop()]
        yield from file.benchmark(
            GOOGLE_BENCHMARK,
            name,
            seconds,
            "s",
            part,
            environment=environment,
            started_at=context.get("date"),
        )
