"""Reads the JSON that hyperfine writes with --export-json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cnnbench.records.readers import ResultFile, has_keys, register_reader
from cnnbench.records.run import RunRecord

HYPERFINE = "hyperfine"


@register_reader(HYPERFINE, fits=has_keys("results.command"))
def read_hyperfine(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each timed process. Those that failed or were killed have no value."""
    part = 0
    for result in file.json()["results"]:
        name, codes = str(result["command"]), result.get("exit_codes") or []
        parameters = result.get("parameters")
        position = file.position(name, parameters)
        # If the export contains no times of single processes, only the mean is known.
        times: list[Any] = result.get("times") or [result.get("mean")]
        for number, seconds in enumerate(times):
            part += 1
            code = codes[number] if number < len(codes) else 0
            if code != 0:
                # For a process that a signal has ended, hyperfine writes null.
                how = "was killed" if code is None else f"failed with exit code {code}"
                file.skip(0, name, f"{how} (run {number + 1})")
                continue
            yield from file.benchmark(
                HYPERFINE, name, seconds, "s", part, position=position, parameters=parameters
            )
