"""Reads the JSON that pyperf writes with -o and --append."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cnnbench.records.readers import ResultFile, has_keys, mean_or_invalid, register_reader
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

PYPERF = "pyperf"
_UNITS = {"second": "s", "byte": "bytes", "integer": ""}
# Versions of pyperf, which was called perf before, do not change what is measured.
_OF_PROGRAM = ("pyperf_version", "perf_version")
_LIBRARY = "_version"


@register_reader(PYPERF, fits=has_keys("benchmarks.runs"))
def read_pyperf(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each process with values. The record contains the mean of the values.
    Calibration processes have no values.
    """
    content, part = file.json(), 0
    for benchmark in content["benchmarks"]:
        # Metadata that all runs have in common is written only once, at the top of the file.
        shared = {**(content.get("metadata") or {}), **(benchmark.get("metadata") or {})}
        position = file.position(str(shared.get("name")))
        for run in benchmark["runs"]:
            part += 1
            facts = {**shared, **(run.get("metadata") or {})}
            name, unit = str(facts.get("name")), str(facts.get("unit", "second"))
            if unit not in _UNITS:
                file.skip(0, name, f"has the unit {unit}, which is not known")
            elif run.get("values"):
                subject = Subject(
                    revision=str(facts["commit_id"]) if facts.get("commit_id") else None,
                    committed_at=file.time(facts.get("commit_date")),
                )
                yield from file.benchmark(
                    PYPERF,
                    name,
                    mean_or_invalid(run["values"]),
                    _UNITS[unit],
                    part,
                    position=position,
                    environment=_environment(facts),
                    subject=subject,
                    started_at=facts.get("date"),
                )


def _environment(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of machine and software in the metadata of a process."""
    environment = {
        "hostname": facts.get("hostname"),
        "platform": facts.get("platform"),
        "cpu_model": facts.get("cpu_model_name"),
        "logical_cpus": facts.get("cpu_count"),
        "python_version": facts["python_version"].split(" ")[0]
        if "python_version" in facts
        else None,
        "python_implementation": facts.get("python_implementation"),
        "python_compiler": facts.get("python_compiler"),
        # The clock "perf_counter(), resolution: 1.00 ns" without its resolution, which is a
        # property of the machine.
        "clock": str(facts["timer"]).partition(",")[0] if "timer" in facts else None,
        # pyperf records the state of the garbage collector only if it is disabled.
        "garbage_collection": False if facts.get("python_gc") == "disabled" else None,
        "program_version": next((facts[name] for name in _OF_PROGRAM if name in facts), None),
        # pyperformance is a suite of benchmarks, with versions of its own.
        "benchmark_version": facts.get("performance_version"),
    }
    # Benchmarks of pyperformance record the libraries that they use, for example as django_version.
    known = (*_OF_PROGRAM, "python_version", "performance_version")
    return environment | {
        f"requirement_{name.removesuffix(_LIBRARY)}": value
        for name, value in facts.items()
        if name.endswith(_LIBRARY) and name not in known
    }
