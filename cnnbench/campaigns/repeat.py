"""``cnnbench run --repeats``: measures a run in several new processes, and prints their mean speed.

Steps of one process do not show how much the speed differs between processes: memory layout,
threads and other programs make one process faster than the next. Therefore a process is one
observation, and the interval of the mean is computed from the processes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import fmean

from cnnbench.base.document import Paragraph, make_table, numeric_cell
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.stats import median
from cnnbench.base.terminal import ChildProcessReporter, print_result
from cnnbench.campaigns.ab.asking import identity_of, resolve_flags
from cnnbench.campaigns.ab.lengths import LENGTHS, StepCountEstimate
from cnnbench.campaigns.ab.side import RESERVED, AbSide, make_process_request, refuse_flags
from cnnbench.campaigns.processes import (
    LOGS,
    Campaign,
    CampaignIdentity,
    CampaignKind,
    ProcessRequests,
    ResultsFolder,
    measure_process,
)
from cnnbench.errors import FlagError
from cnnbench.flags import ONLY_CHECK
from cnnbench.flags.groups.repeat import RepeatFlags
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.judge.report.results import speed_and_certainty
from cnnbench.machine import facts as environment
from cnnbench.plan import ADDRESSES
from cnnbench.records.run import RunRecord

REPEATS = CampaignKind(command="run", subfolders=(LOGS,))
"""Kind of campaign for repeated runs. DIR/rNUMBER.json is the record of a process."""

FEWEST_STEPS, MOST_STEPS = 10, 100_000
"""Limits of the number of timed steps that is chosen for --seconds. The first process, which
measures the time of a step, times the fewest.
"""


def measure_repeatedly(options: RepeatFlags, flags: Sequence[str], folder: str) -> None:
    """Measures the run that `flags` describe in new processes, and prints each and their mean.

    `folder` is the results folder. Raises UsageError before the first process if the run cannot be
    repeated, and BenchmarkError after a failed process. Then, and after an interrupt, what was
    measured before is printed nevertheless.
    """
    side = AbSide(flags=tuple(flags))
    _check_flags(options, side)
    reporter = ChildProcessReporter(sys.stderr)
    side = resolve_flags(side)
    for notice in side.resolved.notices:
        reporter.notice(notice)
    plans = {"": identity_of(side)}
    identity = CampaignIdentity(plans=plans, facts=environment.collect(), policy={})
    records: list[RunRecord] = []
    with ResultsFolder(REPEATS, folder, identity) as results:
        results.add_session_start()
        reporter.notice(f"{options.repeats} processes, records in {results.folder}")
        campaign = Campaign(reporter, identity=identity)
        try:
            campaign.run_requests(_requests(results, side, options, records, reporter))
        finally:
            if records:
                print_result(_result_text(records))


def _check_flags(options: RepeatFlags, side: AbSide) -> None:
    if options.repeats is None:
        name, value = ("results", options.results)
        if options.seconds is not None:
            name, value = ("seconds", f"{options.seconds:g}")
        raise FlagError(name, value, "needs --repeats=N, such as --repeats=6")
    refuse_flags(side, RESERVED, "cannot be used with --repeats; each process has a record")
    refuse_flags(side, (*ADDRESSES, ONLY_CHECK), "cannot be used with --repeats")
    if options.seconds is not None:
        refuse_flags(side, [*LENGTHS], "cannot be used with --seconds, which chooses the length")


def _requests(
    results: ResultsFolder,
    side: AbSide,
    options: RepeatFlags,
    records: list[RunRecord],
    reporter: ChildProcessReporter,
) -> ProcessRequests[None]:
    """Yields the processes to run. After each process, adds its record to `records`."""
    names = [f"r{number}" for number in range(1, (options.repeats or 0) + 1)]

    def measure(name: str, side: AbSide, later: Sequence[str]) -> ProcessRequests[RunRecord]:
        path = results.folder / f"{name}.json"
        target = path if name in names else None
        request = make_process_request(results, name, side, key="", target=target, failed=path)
        standing = ""
        if target is not None:
            standing = f"process {len(records) + 1}/{len(names)}"
            speeds = [speed for speed in map(THROUGHPUT.value, records) if speed is not None]
            if speeds:
                standing += f", {THROUGHPUT.value_text(fmean(speeds))} so far"
        return measure_process(results, request, math.inf, [""] * len(later), standing)

    if options.seconds is not None:
        short = side.with_added_flags({"num_batches": FEWEST_STEPS})
        first = yield from measure("burn-in", short, names)
        if first.step_seconds:  # An evaluation always uses the whole validation data.
            step = median(first.step_seconds)
            count = StepCountEstimate(options.seconds, step, FEWEST_STEPS, MOST_STEPS)
            reporter.notice(str(count))
            side = side.with_added_flags({"num_batches": count.number_of_steps()})
    for place, name in enumerate(names, start=1):
        records.append((yield from measure(name, side, names[place:])))


def _result_text(records: Sequence[RunRecord]) -> str:
    """A line for each process, and the mean speed with its certainty."""
    # The speed of a process does not depend on what happened in another process.
    speeds = [*map(THROUGHPUT.value, records)]
    table = make_table(
        (
            {
                "process": numeric_cell(number),
                "images/sec": numeric_cell(speed),
                "timed steps": numeric_cell(record.steps),
            }
            for number, (record, speed) in enumerate(zip(records, speeds, strict=True), start=1)
        ),
        whole=True,
    )
    mean, certainty = speed_and_certainty([speed for speed in speeds if speed is not None])
    return sections_to_text([[table, Paragraph(f"{mean}: {certainty}", hanging=2)]])
