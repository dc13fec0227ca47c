"""Reads the JSON that google/benchmark writes with --benchmark_out and --benchmark_format=json."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cnnbench.records.readers import CLOCKS, ResultFile, has_keys, mean_or_invalid, register_reader
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

GOOGLE_BENCHMARK = "google-benchmark"

_UNITS = ("ns", "us", "ms", "s")
_TIMES = dict(zip(CLOCKS, ("real_time", "cpu_time"), strict=True))
# In versions up to 1.4, only the names of aggregates, such as "_mean", distinguish them from
# repetitions.
_AGGREGATE = re.compile(r"(.*)_(mean|median|stddev|cv)")
_COMPLEXITY = re.compile(r".*_(BigO|RMS)")
# The measured program may have added a commit to the context, under such a key.
_COMMIT = re.compile(r"(?:git|vcs)?_?(?:commit|rev|revision|hash|sha)(?:_?(?:id|hash|sha1?))?")
_COMMIT_DATE = re.compile(r"(?:git|commit)_?(?:commit_?)?(?:date|time|timestamp)")
_BUILD = re.compile(r"compiler.*|.*flags|.*version|.*build_?type", re.IGNORECASE)
_OF_PROGRAM = ("library_version", "json_schema_version")


@dataclass
class _Benchmark:
    """The rows of one benchmark: its repetitions, and the aggregates of the repetitions."""

    name: str
    repetitions: list[Mapping[str, Any]] = field(default_factory=list)
    aggregates: dict[str, Mapping[str, Any]] = field(default_factory=dict)


@register_reader(GOOGLE_BENCHMARK, fits=has_keys("context.date", "benchmarks"))
def read_google_benchmark(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each benchmark, with the mean time of the repetitions (all in one
    process). --clock selects the real time or the CPU time.

    Aggregates in the file are ignored, because they follow from the repetitions. If the file
    contains no repetitions, its mean is used.
    """
    content = file.json()
    context, clock = content["context"], file.options.clock
    environment, subject = _environment(context), _subject(file, context)
    for part, benchmark in enumerate(_group_rows(content["benchmarks"]), start=1):
        name, position = benchmark.name, file.position(benchmark.name)
        rows: Sequence[Mapping[str, Any]] = benchmark.repetitions
        every = [*rows, *benchmark.aggregates.values()]
        if errors := [row for row in every if row.get("error_occurred") or row.get("skipped")]:
            file.skip(0, name, f"failed: {errors[0].get('error_message', 'skipped')}")
            continue
        rows = rows or [row for key, row in benchmark.aggregates.items() if key == "mean"]
        units = {row.get("time_unit") for row in rows}
        if len(units) != 1 or not units <= {*_UNITS}:
            file.skip(0, name, "has no mean time in ns, us, ms or s")
            continue
        yield from file.benchmark(
            GOOGLE_BENCHMARK,
            name,
            mean_or_invalid([row.get(_TIMES[clock]) for row in rows]),
            str(units.pop()),
            part,
            position=position,
            environment={**environment, "clock": clock},
            subject=subject,
            started_at=_start(context),
        )


def _group_rows(rows: Sequence[Mapping[str, Any]]) -> Sequence[_Benchmark]:
    """Groups the rows of a file by benchmark. Two benchmarks may have the same name.

    Rows for complexities are left out. They contain no times.
    """
    names = {str(row["name"]) for row in rows}
    made: list[_Benchmark] = []
    last: dict[object, _Benchmark] = {}
    for row in rows:
        name, aggregate = _split_name(row, names)
        if _COMPLEXITY.fullmatch(name) or aggregate in ("BigO", "RMS"):
            continue
        key = name, row.get("family_index"), row.get("per_family_instance_index")
        known = last.get(key)
        if known is None or (not aggregate and not _is_repetition(row, known, names)):
            known = last[key] = _Benchmark(name)
            made.append(known)
        if aggregate:
            known.aggregates[aggregate] = row
        else:
            known.repetitions.append(row)
    return made


def _split_name(row: Mapping[str, Any], names: set[str]) -> tuple[str, str]:
    """Returns the names of the benchmark and the aggregate of a row; "" for a repetition."""
    name = str(row["name"])
    if "run_type" in row:
        is_aggregate = row["run_type"] == "aggregate"
        aggregate = str(row.get("aggregate_name")) if is_aggregate else ""
        return str(row.get("run_name", name)), aggregate
    match = _AGGREGATE.fullmatch(name)
    if match and (
        match[1] in names or names.issuperset(f"{match[1]}_{key}" for key in ("mean", "stddev"))
    ):
        return match[1], match[2]
    return name, ""


def _is_repetition(row: Mapping[str, Any], known: _Benchmark, names: set[str]) -> bool:
    """Whether a row is a further repetition of `known`, and not a benchmark with the same name."""
    if known.aggregates:
        return False
    before = known.repetitions[-1].get("repetition_index")
    if before is not None:
        return bool(row.get("repetition_index", 0) > before)
    # Versions up to 1.4 do not number repetitions; that their mean follows shows that there are
    # several.
    return "run_type" not in row and f"{known.name}_mean" in names


def _environment(context: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of machine and software in the context of a file."""
    return {
        "hostname": context.get("host_name"),
        "logical_cpus": context.get("num_cpus"),
        "cpu_max_mhz": context.get("mhz_per_cpu"),
        "program_version": context.get("library_version"),
        **{
            f"build_{name.removeprefix('build_')}": value
            for name, value in context.items()
            if name not in _OF_PROGRAM and isinstance(value, str) and _BUILD.fullmatch(name)
        },
    }


def _subject(file: ResultFile, context: Mapping[str, Any]) -> Subject:
    """Returns the commit that the measured program added to the context."""
    named = {name.lower().replace("-", "_"): value for name, value in context.items()}
    texts = {name: value for name, value in named.items() if isinstance(value, str) and value}
    revision = next((texts[name] for name in texts if _COMMIT.fullmatch(name)), None)
    date = next((texts[name] for name in texts if _COMMIT_DATE.fullmatch(name)), None)
    return Subject(revision=revision, committed_at=file.time(date) if revision else None)


def _start(context: Mapping[str, Any]) -> object:
    date = context.get("date")
    try:
        # Early versions write times such as 2016/10/21-22:05:27.
        return datetime.strptime(str(date), "%Y/%m/%d-%H:%M:%S").isoformat()
    except ValueError:
        return date
