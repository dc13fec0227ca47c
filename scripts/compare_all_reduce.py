"""Holds cnnbench's reductions against their peers; ``docs/all_reduce_benchmark.md`` says how.

Every measurement is a fresh process of ``cnnbench allreduce``, in which all reductions that
are compared take turns. In every round each of these processes runs once, in an order drawn
from a seed; ratios are formed within a process and averaged over rounds. The exit status
tells whether the comparison could be made, not how it came out.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from peers import machine, table
from peers.all_reduce import Experiment, Options, experiments, parse, read
from peers.demands import NOT_MEASURED, Demand, Finding, conclude
from peers.measurement import OK, Measurement
from peers.process import run
from peers.schedule import orders

# Nobody may find a GPU or print TensorFlow's start-up messages.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
FAILED = "failed"


def measure(
    experiment: Experiment, number: int, options: Options
) -> tuple[Measurement, dict[str, float]]:
    """Runs one experiment once; what happened, and its figures by the text of their demand."""
    watch = machine.Watch()
    figures: dict[str, float] = {}
    reason = ""
    with tempfile.TemporaryDirectory(prefix="compare-all-reduce-") as scratch:
        folder = scratch if options.keep is None else str(options.keep.resolve())
        path = Path(folder) / f"{experiment.name.replace(' ', '-')}-{number}.json"
        try:
            finished = run(
                [*options.command, *experiment.flags, f"--result_json={path}"],
                timeout=options.timeout,
                environment=ENVIRONMENT,
                folder=scratch,
            )
            if finished.timed_out or finished.status != 0:
                reason = finished.reason
            if path.is_file():
                figures = experiment.figures(read(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
    others_cpus = watch.others_cpus()
    status = FAILED if reason else OK
    measurement = Measurement(
        experiment.scenario,
        number,
        0,
        experiment.name,
        "",
        status,
        reason,
        watch.load_average,
        others_cpus,
    )
    return measurement, figures


def judge(demand: Demand, values: Sequence[float], reasons: Sequence[str]) -> Finding:
    """The verdict on a demand; says why there is none without a single value."""
    if values:
        return conclude(demand, values)
    return Finding(demand, None, NOT_MEASURED, reasons[0] if reasons else "no such row")


def main(argv: Sequence[str]) -> int:
    """Entry point; 0 when everything was measured, 4 when something failed."""
    options = parse(argv)
    chosen = experiments(options)
    measurements: list[Measurement] = []
    values: dict[tuple[str, str], list[float]] = {}
    try:
        for number, order in enumerate(orders(chosen, options.rounds, options.seed), start=1):
            for experiment in order:
                title = f"{number}/{options.rounds}: {experiment.name}"
                print(title, file=sys.stderr, flush=True)
                measurement, figures = measure(experiment, number, options)
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
