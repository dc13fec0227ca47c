"""Reads the JSON lines of NVIDIA's DLLogger, which NVIDIA's Deep Learning Examples write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cnnbench.records.launchers import Line, with_prefixes
from cnnbench.records.readers import ResultFile, parse_object, register_reader, scalars
from cnnbench.records.run import RunRecord

DLLOGGER = "dllogger"

_MARK = "DLLL "
_TIMES = ("s", "ms", "us", "ns")
# The seed and the number of the process differ between repetitions of a run.
_OF_REPETITION = ("seed", "local_rank", "rank")


@register_reader(DLLOGGER, with_prefixes(_MARK + r'\{"'))
def read_dllogger(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each metric in the summary of a run, which is the line with an empty
    step. The parameters of the run are part of its configuration, except seeds and paths.
    """
    part = 0
    for lines, _ in file.processes(_MARK):
        metadata: dict[str, Mapping[str, Any]] = {}
        parameters: dict[str, Any] = {}
        started: object = None
        for content in _contents(file, lines):
            data, step = content.get("data"), content.get("step")
            started = started or _time(content)
            if content.get("type") == "METADATA":
                metadata[str(content.get("metric"))] = content.get("metadata") or {}
            elif step == "PARAMETER" and isinstance(data, dict):
                # A program that appends to the file begins each run with its parameters.
                parameters, started = dict(scalars(data)), _time(content)
            elif step in ([], "") and isinstance(data, dict):
                for name, value in data.items():
                    part += 1
                    yield from _records(
                        file, name, value, part, metadata.get(name) or {}, parameters, started
                    )
    if not part:
        file.skip(0, _MARK.strip(), "no line is a summary (a line with an empty step)")


def _contents(file: ResultFile, lines: Iterable[Line]) -> Iterator[Mapping[str, Any]]:
    """Yields the content of each line of DLLogger. Lines of other programs are ignored."""
    for number, text in lines:
        if text.startswith(_MARK):
            content = parse_object(text.removeprefix(_MARK))
            if content is None:
                file.skip(number, text)
            else:
                yield content


def _records(
    file: ResultFile,
    name: str,
    value: object,
    part: int,
    metadata: Mapping[str, Any],
    parameters: Mapping[str, Any],
    started: object,
) -> Iterator[RunRecord]:
    """Yields the record of one metric. Yields nothing if its direction is unknown."""
    unit, goal = str(metadata.get("unit") or ""), str(metadata.get("GOAL") or "").upper()
    higher = goal == "MAXIMIZE" or (unit.endswith("/s") and goal != "MINIMIZE")
    known = higher or goal == "MINIMIZE" or unit in _TIMES
    if not known and not file.says_higher_is_better(name):
        reason = "has no unit of time, no rate and no GOAL"
        file.skip(0, name, f"{reason}; --higher_is_better={name} says that larger is better")
        return
    yield from file.benchmark(
        DLLOGGER,
        name,
        value,
        unit,
        part,
        higher_is_better=higher,
        environment={
            f"context_{key}": text
            for key, text in parameters.items()
            if key not in _OF_REPETITION and "/" not in str(text)
        },
        started_at=started,
    )


def _time(content: Mapping[str, Any]) -> object:
    """Returns the time of a line: seconds since 1970 or, in early versions, a text."""
    try:
        return float(content["timestamp"])
    except (KeyError, OverflowError, TypeError, ValueError):
        return content.get("datetime")
