"""JSON of pyperf, as ``-o FILE`` and ``--append`` write it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord

PROGRAM = "pyperf"
_UNITS = {"second": "s", "byte": "bytes", "integer": "number"}


@register_reader(PROGRAM, rb'"perf_version":|"calibrate_loops":')
def read(file: ResultFile) -> Iterator[RunRecord]:
    """A record for each process with values: their mean. Calibrations have none."""
    content, part = file.json(), 0
    for benchmark in content["benchmarks"]:
        # What all share is listed once.
        shared = {**(content.get("metadata") or {}), **(benchmark.get("metadata") or {})}
        for run in benchmark["runs"]:
            part += 1
            facts = {**shared, **(run.get("metadata") or {})}
            name, unit = str(facts.get("name")), str(facts.get("unit", "second"))
            if unit not in _UNITS:
                file.skip(0, name, f"has the unit {unit}, which is not known")
            elif run.get("values"):
                yield from file.benchmark(
                    PROGRAM,
                    name,
                    fmean(run["values"]),
                    _UNITS[unit],
                    part,
                    environment={
                        "hostname": facts.get("hostname"),
                        "platform": facts.get("platform"),
                        "cpu_model": facts.get("cpu_model_name"),
                        "logical_cpus": facts.get("cpu_count"),
                        "python_version": str(facts["python_version"]).split(" ")[0]
                        if "python_version" in facts
                        else None,
                    },
                )
