"""Holds cnnbench's reductions against their peers; ``docs/all_reduce_benchmark.md`` says how.

Every measurement is a fresh process of ``cnnbench allreduce``, in which all reductions that
are compared take turns. In every round each of these processes runs once, in an order drawn
from a seed; ratios are formed within a process and averaged over rounds. The exit status
is 0 if everything was measured, whatever the verdicts, 2 for wrong use, 4 if something failed,
130 if interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from peers import table
from peers.all_reduce import Experiment, Options, experiments, parse, read
from peers.demands import NOT_MEASURED, Demand, Finding, conclude
from peers.measurement import OK, Measurement
from peers.process import run
from peers.rounds import ENVIRONMENT, measure, orders


def run_once(
    experiment: Experiment, number: int, options: Options
) -> tuple[Measurement, dict[str, float]]:
    """Runs one experiment once; what happened, and its values by the text of their demand."""
    values: dict[str, float] = {}

    def work(scratch: Path) -> None:
        path = (options.keep or scratch).resolve() / f"{experiment.name}-{number}.json"
        path = path.with_name(path.name.replace(" ", "-"))
        command = [*options.command, *experiment.flags, f"--result_json={path}"]
        finished = run(
            command, timeout=options.timeout, environment=ENVIRONMENT, folder=str(scratch)
        )
        # A process that fails half-way has written what it measured until then.
        if path.is_file():
            values.update(experiment.figures(read(path)))
        finished.require()

    place = (experiment.scenario, number, 0, experiment.name, "")
    return measure(place, work), values


def judge(demand: Demand, values: Sequence[float], reasons: Sequence[str]) -> Finding:
    """The verdict on a demand; says why there is none without a single value."""
    if values:
        return conclude(demand, values)
    return Finding(demand, None, NOT_MEASURED, reasons[0] if reasons else "no such row")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    options = parse(argv)
    chosen = experiments(options)
    measurements: list[Measurement] = []
    values: dict[tuple[str, str], list[float]] = {}
    try:
        for number, order in enumerate(orders(chosen, options.rounds, options.seed), start=1):
            for experiment in order:
                title = f"{number}/{options.rounds}: {experiment.name}"
                print(title, file=sys.stderr, flush=True)
                measurement, figures = run_once(experiment, number, options)
                measurements.append(measurement)
                if measurement.reason:
                    print(f"  {measurement.reason}", file=sys.stderr, flush=True)
                for text, value in figures.items():
                    values.setdefault((experiment.name, text), []).append(value)
    except KeyboardInterrupt:
        print("compare_all_reduce: interrupted", file=sys.stderr)
        return 130
    findings = []
    for experiment in chosen:
        reasons = [m.reason for m in measurements if m.subject == experiment.name and m.reason]
        for demand in experiment.demands:
            found = values.get((experiment.name, demand.text), [])
            findings.append(judge(demand, found, reasons))
    print("Within processes, averaged over rounds")
    print("\n".join(table.demands_table(findings)))
    print("\n".join(table.neighbours(measurements, os.cpu_count() or 1)))
    return 0 if all(m.status == OK for m in measurements) else 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
