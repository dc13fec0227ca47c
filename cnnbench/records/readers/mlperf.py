"""Reads the logs of MLPerf Training: lines that begin with :::MLLOG or, in the first rounds, with
:::MLPv0.5.0 and :::MLPv0.6.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cnnbench.records.launchers import Line, lines_of_processes, prefixed_pattern
from cnnbench.records.readers import (
    MIXED,
    ResultFile,
    is_amount,
    mean_or_invalid,
    parse_json_object,
    register_reader,
    scalars,
)
from cnnbench.records.run import RunRecord

MLPERF = "mlperf"

_MARK = ":::MLLOG "
_KNOWN = r":::MLLOG \{|:::MLPv0\.[56]\.\d "
_EARLY = re.compile(
    r":::MLPv0\.[56]\.\d (\S{1,80}) (\d{1,15}\.\d{1,9}) \([^)]{0,400}\) (\w{1,80})(?:: (.*))?$"
)
_BATCH = "global_batch_size"
_BEGINNINGS = ("cache_clear", "init_start", "run_start")
# Keys of values that describe the submission, or that differ between repetitions of a run.
_NO_CONTEXT = re.compile(r"submission_\w+|\w*seed|cache_clear|global_batch_size|\w+_(?:start|stop)")


class _Event(NamedTuple):
    """A line of the log; `seconds` is its time since 1970."""

    key: str
    value: Any
    metadata: Mapping[str, Any]
    seconds: float
    benchmark: str = ""


@dataclass
class _Run:
    """The values of one run."""

    benchmark: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    throughputs: list[Any] = field(default_factory=list)
    started: float | None = None
    seconds: float | None = None
    status: str = "has no end (run_stop)"

    def add(self, event: _Event) -> None:
        """Adds an event that belongs to the run."""
        value = event.value
        self.benchmark = event.benchmark or self.benchmark
        if event.key == "submission_benchmark":
            self.benchmark = str(value)
        if event.key == "run_start":
            self.started = event.seconds
        elif event.key == "run_stop" and self.seconds is not None:
            self.status = MIXED  # A run must end only once.
        elif event.key == "run_stop" and self.started is not None:
            self.seconds = event.seconds - self.started
            is_success = isinstance(value, dict) and value.get("success") is True
            status = event.metadata.get("status", "success" if is_success else "unknown")
            self.status = "" if status == "success" else f"ended with the status {status}"
        elif event.key == "throughput":
            self.throughputs.append(value)
        elif event.key == "tracked_stats" and isinstance(value, dict) and "throughput" in value:
            self.throughputs.append(value["throughput"])
        elif self.started is None or event.key == _BATCH:
            self.values[event.key] = value


@register_reader(MLPERF, prefixed_pattern(_KNOWN), after=("tf_cnn_benchmarks",))
def read_mlperf(file: ResultFile) -> Iterator[RunRecord]:
    """Creates two records for each run that reached its quality target: the time to train and, if
    the log contains it, the mean throughput. If a log contains several processes of a job, only one
    process is read. Whether a higher eval_accuracy is better differs between benchmarks and is not
    in the log, so it is not read.
    """
    # If the processes of a job all log the run, their lines are equal, so one is read.
    of_processes = (
        [*_runs(_events(file, lines))] for lines, _ in lines_of_processes(file.text, _KNOWN)
    )
    runs = next(filter(None, of_processes), [])
    if any(run.status == MIXED for run in runs):
        return file.skip(0, MLPERF, MIXED)
    for number, run in enumerate(runs):
        name = run.benchmark or "run"
        if run.status:
            file.skip(0, name, run.status)
            continue
        values: list[tuple[str, object, str]] = [("time to train", run.seconds, "s")]
        if run.throughputs:
            values.append(("throughput", mean_or_invalid(run.throughputs), "samples/s"))
        for place, (metric, value, unit) in enumerate(values, start=1):
            yield from file.benchmark(
                MLPERF,
                f"{name} {metric}",
                value,
                unit,
                2 * number + place,
                higher_is_better=unit.endswith("/s"),
                parameters=_parameters(run),
                environment=_environment(run),
                started_at=run.started,
            )
    return None


def _runs(events: Iterable[_Event]) -> Iterator[_Run]:
    """Splits the events of a process into its runs. Values may follow the end of their run."""
    run = _Run()
    for event in events:
        if run.started is not None and event.key in _BEGINNINGS:
            yield run
            again = event.key == "run_start"  # Restarted with equal settings.
            run = _Run(benchmark=run.benchmark, values=run.values if again else {})
        run.add(event)
    if run.started is not None:
        yield run


def _events(file: ResultFile, lines: Iterable[Line]) -> Iterator[_Event]:
    """Yields the events of a process. Lines of other programs are ignored."""
    for number, text in lines:
        if not text.startswith(":::ML"):
            continue
        content = parse_json_object(text.removeprefix(_MARK)) if text.startswith(_MARK) else None
        time = None if content is None else content.get("time_ms")
        # A script that clears the caches before a run logs the time 0.
        if content is not None and (is_amount(time) or time == 0):
            metadata = content.get("metadata")
            yield _Event(
                str(content.get("key")),
                content.get("value"),
                metadata if isinstance(metadata, dict) else {},
                time / 1000,
            )
        elif early := _EARLY.match(text):
            value = parse_json_object(early[4] or "") or early[4]
            yield _Event(early[3], value, {}, float(early[2]), early[1])
        else:
            file.skip(number, text)


def _parameters(run: _Run) -> dict[str, Any]:
    batch = run.values.get(_BATCH)
    return {} if batch is None else {_BATCH: batch}


def _environment(run: _Run) -> dict[str, Any]:
    """Returns the system, and the hyperparameters and settings that were logged before the run."""
    return {
        "environment_name": run.values.get("submission_platform"),
        **{
            f"context_{key}": value
            for key, value in scalars(run.values)
            if not _NO_CONTEXT.fullmatch(key)
        },
    }
