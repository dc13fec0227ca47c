"""Reads the JSON lines of NVIDIA's DLLogger, which NVIDIA's Deep Learning Examples write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cnnbench.records.launchers import Line, lines_of_processes, prefixed_pattern
from cnnbench.records.readers import ResultFile, parse_json_object, register_reader, scalars
from cnnbench.records.run import RunRecord

DLLOGGER = "dllogger"

_MARK = "DLLL "
_TIMES = ("s", "ms", "us", "ns")
# Parameters that differ between repetitions of a run: the seed, and the number of the process.
_OF_REPETITION = ("seed", "local_rank", "rank")


class _Summary(NamedTuple):
    """A summary of a run: values by name of the metric, with what the log says about them, and the
    number of the run in the log.
    """

    values: Mapping[str, Any]
    metadata: Mapping[str, Mapping[str, Any]]
    parameters: Mapping[str, Any]
    started_at: object
    run: int


@register_reader(DLLOGGER, prefixed_pattern(_MARK + r'\{"'))
def read_dllogger(file: ResultFile) -> Iterator[RunRecord]:
    """Creates a record for each metric in the summary of a run, which is the line with an empty
    step. The parameters of the run are part of its configuration, except seeds and paths. Of a job,
    one process is read.
    """
    of_processes = (
        [*_summaries(_contents(file, lines))] for lines, _ in lines_of_processes(file.text, _MARK)
    )
    summaries = next(filter(None, of_processes), [])
    rows = ((summary, name) for summary in summaries for name in summary.values)
    for part, (summary, name) in enumerate(rows, start=1):
        yield from _records(file, summary, name, part)
    if not summaries:
        file.skip(0, _MARK.strip(), "no line is a summary (a line with an empty step)")


def _summaries(contents: Iterable[Mapping[str, Any]]) -> Iterator[_Summary]:
    metadata: dict[str, Mapping[str, Any]] = {}
    parameters: dict[str, Any] = {}
    started: object = None
    first_keys: Any = None
    run, is_summarized = 1, False
    for content in contents:
        data, step = content.get("data"), content.get("step")
        started = started or _time(content)
        if content.get("type") == "METADATA":
            metadata[str(content.get("metric"))] = content.get("metadata") or {}
        elif step == "PARAMETER" and isinstance(data, dict):
            # A program may write several lines of parameters. If it appends a run to a file, the
            # new run begins with a key that the file contains already.
            if is_summarized or data.keys() == first_keys:
                run, is_summarized = run + 1, False
                parameters, first_keys, started = {}, None, _time(content)
            first_keys = first_keys or data.keys()
            parameters |= scalars(data)
        elif step in ([], "") and isinstance(data, dict):
            is_summarized = True
            yield _Summary(data, metadata, parameters, started, run)


def _contents(file: ResultFile, lines: Iterable[Line]) -> Iterator[Mapping[str, Any]]:
    """Yields the content of each line of DLLogger. Lines of other programs are ignored."""
    for number, text in lines:
        if text.startswith(_MARK):
            content = parse_json_object(text.removeprefix(_MARK))
            if content is None:
                file.skip(number, text)
            else:
                yield content


def _records(file: ResultFile, summary: _Summary, name: str, part: int) -> Iterator[RunRecord]:
    """Yields the record of one metric. Yields nothing if its direction is unknown."""
    metadata = summary.metadata.get(name) or {}
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
        summary.values[name],
        unit,
        part,
        # If a run has two summaries with the same metric, the second one is not a repetition.
        position=file.position(name, {"run": summary.run}),
        higher_is_better=higher,
        environment={
            f"context_{key}": text
            for key, text in summary.parameters.items()
            if key.lower() not in _OF_REPETITION and "/" not in str(text)
        },
        started_at=summary.started_at,
    )


def _time(content: Mapping[str, Any]) -> object:
    """Returns the time of a line: seconds since 1970 or, in early versions, a text."""
    try:
        return float(content["timestamp"])
    except (KeyError, OverflowError, TypeError, ValueError):
        return content.get("datetime")
