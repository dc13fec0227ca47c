"""Reads the JSON that pyperf writes with -o and --append."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord

PYPERF = "pyperf"
_PYPERF_UNITS = {"second": "s", "byte": "bytes", "integer": "number"}


@register_reader(PYPERF, rb'"perf_version":|"calibrate_loops":')
def read_pyperf(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each process with values. The record contains the mean of the values.
    Calibration processes have no values.
    """
    content, part = file.json(), 0
    for benchmark in content["benchmarks"]:
        # pyperf writes the metadata that all runs have in common only once, at the top of the file.
        shared = {**(content.get("metadata") or {}), **(benchmark.get("metadata") or {})}
        for run in benchmark["runs"]:
            part += 1
            facts = {**shared, **(run.get("metadata") or {})}
            name, unit = str(facts.get("name")), str(facts.get("unit", "second"))
            if unit not in _PYPERF_UNITS:
                file.skip(0, name, f"has the unit {unit}, which is not known")
            elif run.get("values"):
                yield from file.benchmark(
                    PYPERF,
                    name,
                    fmean(run["values"]),
                    _PYPERF_UNITS[unit],
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
