"""Reads the JSON that hyperfine writes with --export-json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cnnbench.records.readers import ResultFile, register_reader
from cnnbench.records.run import RunRecord

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
