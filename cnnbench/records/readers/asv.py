"""Reads the results of asv: one file for each commit, environment and machine, in version 2 of the
format.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord, Subject

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
