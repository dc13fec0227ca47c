"""Reads the folder of results of asv: one file for each commit and environment of a machine. There
are two versions of the format.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cnnbench.records.readers import ResultFile, has_keys, is_amount, register_reader, time_text
from cnnbench.records.run import RunRecord
from cnnbench.records.subject import Subject

ASV = "asv"

_HAS_RESULTS = has_keys("commit_hash", "params", "results")
_HAS_MACHINE = has_keys("machine", "arch", "cpu", "os", "ram")


def _is_asv(document: Any) -> bool:
    return _HAS_RESULTS(document) or _has_no_results(document)


def _has_no_results(document: Any) -> bool:
    """Whether a document is machine.json or benchmarks.json. These files contain no results."""
    if not isinstance(document, dict):
        return False
    # benchmarks.json contains not only benchmarks, but also the version of its format.
    rows = [row for row in document.values() if isinstance(row, dict)]
    are_benchmarks = bool(rows) and all(map(has_keys("code", "type", "unit"), rows))
    return are_benchmarks or _HAS_MACHINE(document)


class _Row(NamedTuple):
    """The results of one benchmark.

    Attributes:
      values: a value for each combination of parameters; None if the benchmark failed.
      parameters: the values of each parameter.
      version: version of the benchmark: a digest of its code, or a text that its author chose.
      started_at: start, in milliseconds since 1970.
    """

    values: Any
    parameters: Sequence[Sequence[str]]
    version: Any
    started_at: Any


@register_reader(ASV, fits=_is_asv)
def read_asv(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each benchmark of asv and each combination of its parameters, with the
    value that asv shows.

    The file does not contain the units. They follow from the prefix of the benchmark name, as asv
    defines it. For asv, less is better, unless the user says otherwise.
    """
    content = file.json()
    if _has_no_results(content):
        file.only_describes = True
        return
    environment = _environment(content)
    date = content.get("date")
    subject = Subject(
        revision=str(content["commit_hash"]),
        committed_at=file.time(date / 1000 if is_amount(date) else date),
    )
    part = 0
    for name, row in _rows(content):
        if not isinstance(row.values, list):
            file.skip(0, name, "failed or was not run")
            continue
        combinations = itertools.product(*row.parameters)
        for parameters, value in zip(combinations, row.values, strict=False):
            part += 1
            yield from file.benchmark(
                ASV,
                name,
                value,
                _unit(name),
                part,
                parameters=dict(enumerate(parameters, start=1)),
                environment={**environment, "benchmark_version": row.version},
                subject=subject,
                started_at=_time(row.started_at),
            )


def _rows(content: Mapping[str, Any]) -> Iterator[tuple[str, _Row]]:
    """Yields the name and the results of each benchmark, in either version of the format."""
    columns = content.get("result_columns")
    for name, row in content["results"].items():
        if columns is not None:
            of = dict(zip(columns, row, strict=False))
            version, started = of.get("version"), of.get("started_at")
        else:
            # In version 1, a benchmark without parameters has its value in place of the mapping.
            of = row if isinstance(row, dict) else {"result": row}
            version, started = (
                (content.get(key) or {}).get(name) for key in ("benchmark_version", "started_at")
            )
            if of.get("result") is not None and not isinstance(of["result"], list):
                of = {**of, "result": [of["result"]]}
        yield name, _Row(of.get("result"), of.get("params") or (), version, started)


def _environment(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of machine and software that a file of results contains."""
    machine = content["params"]
    environment = {
        "hostname": machine.get("machine"),
        "architecture": machine.get("arch"),
        "cpu_model": machine.get("cpu"),
        "logical_cpus": machine.get("num_cpu"),
        "platform": machine.get("os"),
        "environment_name": content.get("env_name"),
    }
    # If the environment existed before, asv writes a path in place of the Python version.
    if re.fullmatch(r"[\d.]+", version := str(content.get("python"))):
        environment["python_version"] = version
    requirements = content.get("requirements") or {}
    environment |= {f"requirement_{name}": of or "any" for name, of in requirements.items()}
    return environment | {
        f"env_{name}": value for name, value in (content.get("env_vars") or {}).items()
    }


def _unit(name: str) -> str:
    kind = name.rpartition(".")[2].partition("_")[0].lower()
    return {"time": "s", "timeraw": "s", "mem": "bytes", "peakmem": "bytes"}.get(kind, "")


def _time(milliseconds: Any) -> str | None:
    """Converts a time of asv to ISO 8601; None if the file does not contain it."""
    if milliseconds is None:
        return None
    return (time_text(milliseconds / 1000) if is_amount(milliseconds) else "") or str(milliseconds)
