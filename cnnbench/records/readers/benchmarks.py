"""Readers for the JSON files of benchmark programs, such as asv, google/benchmark and hyperfine."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from statistics import fmean
from typing import Any

from cnnbench.base.stats import group_by
from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord, Subject

# asv writes one file per commit to its results folder (version 2).

ASV = "asv"


@register_reader(ASV, rb'"commit_hash": "[\s\S]*"result_columns": \[')
def read_asv(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each benchmark of asv and each combination of its parameters, with the
    value that asv shows.

    The file does not contain the units. They follow from the prefix of the benchmark name, as asv
    defines it. For all of asv's values, less is better.
    """
    content = file.json()
    columns, machine = content["result_columns"], content.get("params") or {}
    environment = {
        "hostname": machine.get("machine"),
        "architecture": machine.get("arch"),
        "cpu_model": machine.get("cpu"),
        "platform": machine.get("os"),
    }
    # For an existing environment, asv writes a path instead of the Python version.
    if re.fullmatch(r"[\d.]+", version := str(content.get("python"))):
        environment["python_version"] = version
    part = 0
    for name, row in content["results"].items():
        of = dict(zip(columns, row, strict=False))
        values, started = of.get("result"), of.get("started_at") or content.get("date")
        if not isinstance(values, list):
            file.skip(0, name, "failed or was not run")
            continue
        for parameters, value in zip(
            itertools.product(*(of.get("params") or ())), values, strict=False
        ):
            part += 1
            yield from file.benchmark(
                ASV,
                name,
                value,
                _asv_unit(name),
                part,
                parameters=dict(enumerate(parameters, start=1)),
                environment=environment,
                subject=Subject(revision=content["commit_hash"]),
                started_at=_asv_time(started),
            )


def _asv_unit(name: str) -> str:
    kind = name.rpartition(".")[2].partition("_")[0].lower()
    return {"time": "s", "timeraw": "s", "mem": "bytes", "peakmem": "bytes"}.get(kind, "number")


def _asv_time(milliseconds: Any) -> str | None:
    if not isinstance(milliseconds, (int, float)):
        return None
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat()


# google/benchmark writes JSON with --benchmark_format=json and with --benchmark_out.

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


# hyperfine writes JSON with --export-json.

HYPERFINE = "hyperfine"


@register_reader(HYPERFINE, rb'^\s*"results": \[\s*\{\s*"command": ')
def read_hyperfine(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each process that hyperfine has timed. Failed processes have no
    value.
    """
    part = 0
    for result in file.json()["results"]:
        name, codes = str(result["command"]), result.get("exit_codes") or []
        # An export without the times of single processes contains only the mean.
        times: list[Any] = result.get("times") or [result.get("mean")]
        for number, seconds in enumerate(times):
            part += 1
            if number < len(codes) and codes[number]:
                file.skip(0, name, f"failed in run {number + 1} with exit code {codes[number]}")
                continue
            parameters = result.get("parameters")
            yield from file.benchmark(HYPERFINE, name, seconds, "s", part, parameters=parameters)


# pyperf writes JSON files with -o and --append.

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


# pytest-benchmark writes files with --benchmark-json and --benchmark-save.

PYTEST_BENCHMARK = "pytest-benchmark"

_NO_COMMITS = ("unknown", "unversioned")
"""Words that pytest-benchmark writes instead of a commit, for example outside of a repository."""


@register_reader(PYTEST_BENCHMARK, rb'"machine_info": \{')
def read_pytest_benchmark(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each test, with the mean time of the test's rounds."""
    content = file.json()
    machine, commit = content["machine_info"], content.get("commit_info") or {}
    cpu = machine.get("cpu") or {}
    environment = {
        "hostname": machine.get("node"),
        "architecture": machine.get("machine"),
        "python_version": machine.get("python_version"),
        "cpu_model": cpu.get("brand_raw") or cpu.get("brand"),
        "logical_cpus": cpu.get("count"),
    }
    subject = Subject()
    if commit.get("id") not in (*_NO_COMMITS, None):
        subject = Subject(
            repository=commit.get("project"), revision=commit["id"], dirty=commit.get("dirty")
        )
    for part, row in enumerate(content["benchmarks"], start=1):
        yield from file.benchmark(
            PYTEST_BENCHMARK,
            str(row["fullname"]),
            row["stats"]["mean"],
            "s",
            part,
            environment=environment,
            subject=subject,
            started_at=content.get("datetime"),
        )
