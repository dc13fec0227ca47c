"""JSON of google/benchmark: ``--benchmark_format=json`` and ``--benchmark_out=FILE``."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from cnnbench.base.stats import grouped
from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord

PROGRAM = "google-benchmark"
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@register_reader(PROGRAM, rb'^\s*"context": \{')
def read(file: ResultFile) -> Iterator[RunRecord]:
    """A record for each benchmark: the mean wall time of its repetitions, which are one process.

    Aggregates that the file has are left out, since they follow from the repetitions; without
    repetitions the mean of the file is the value.
    """
    content = file.json()
    context = content["context"]
    environment = {"hostname": context.get("host_name"), "logical_cpus": context.get("num_cpus")}
    rows = grouped(content["benchmarks"], lambda row: str(row.get("run_name", row["name"])))
    for part, (name, alike) in enumerate(rows.items(), start=1):
        if errors := [row for row in alike if row.get("error_occurred") or row.get("skipped")]:
            file.skip(0, name, f"failed: {errors[0].get('error_message', 'skipped')}")
            continue
        single = [row for row in alike if row.get("run_type", "iteration") == "iteration"]
        single = single or [row for row in alike if row.get("aggregate_name") == "mean"]
        units = {row.get("time_unit") for row in single}
        if len(units) != 1 or not units <= _SECONDS.keys():
            file.skip(0, name, "has no mean time in ns, us, ms or s")
            continue
        seconds = fmean(row["real_time"] for row in single) * _SECONDS[units.pop()]
        yield from file.benchmark(
            PROGRAM,
            name,
            seconds,
            "s",
            part,
            environment=environment,
            started_at=context.get("date"),
        )
