"""JSON of airspeed velocity: the files of a commit in its folder of results (version 2)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord, Subject

PROGRAM = "asv"


@register_reader(PROGRAM, rb'"commit_hash": "[\s\S]*"result_columns": \[')
def read(file: ResultFile) -> Iterator[RunRecord]:
    """A record for each benchmark and each of its parameters, with the value that asv shows.

    Units are in another file, benchmarks.json: they follow from the prefix of the name, as asv
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
    # The Python of an existing environment is a path.
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
                PROGRAM,
                name,
                value,
                _unit(name),
                part,
                parameters=dict(enumerate(parameters, start=1)),
                environment=environment,
                subject=Subject(revision=content["commit_hash"]),
                started_at=_time(started),
            )


def _unit(name: str) -> str:
    kind = name.rpartition(".")[2].partition("_")[0].lower()
    return {"time": "s", "timeraw": "s", "mem": "bytes", "peakmem": "bytes"}.get(kind, "number")


def _time(milliseconds: Any) -> str | None:
    if not isinstance(milliseconds, (int, float)):
        return None
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat()
