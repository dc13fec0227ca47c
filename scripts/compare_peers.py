"""Compares cnnbench with its peers on this machine; see ``docs/evidence.md``.

Every measurement is a fresh process. Each program runs once per round, in an order drawn from a
seed. Ratios are computed within rounds, and ratios of reductions within processes. A peer that is
not installed is reported as not run. The exit status is 0 if any program was measured, whatever the
verdicts are, 2 for wrong use, 4 if no program was measured, and 130 if interrupted; then the
results of the rounds before are printed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from command_line import parse_options, run_script
from peers.demands import demands_table, judge, other_processes_lines, subjects_table, work_table
from peers.process import Process, ProcessError, run, run_in_turn
from peers.readings import (
    ENVIRONMENT,
    FAILED,
    NOT_RUN,
    OK,
    Key,
    Measurement,
    Measurements,
    Reading,
    between_step_lines,
    orders,
)
from peers.scenarios import (
    CHILDREN,
    RECORD,
    SCENARIOS,
    Options,
    Subject,
    demands_of,
    scenario_subjects,
)

from cnnbench.base.interrupts import handling_signals
from cnnbench.flags.declare import split_comma_separated
from cnnbench.machine.counters import changes, read_counters
from cnnbench.machine.cpu import Host, processor_facts

Due: TypeAlias = tuple[Measurement, Subject]
"""A subject, and its position in the experiment."""

PATIENCE = 2
"""Number of failures after which a subject is not started again."""
PHOTOS = 512


@functools.cache
def missing_modules_message(python: str, modules: tuple[str, ...]) -> str:
    """Returns a line that names the modules that a Python interpreter lacks; "" if it has all."""
    code = (
        "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if not u.find_spec(m)])"
    )
    done = run([python, "-c", code, *modules], timeout=60, folder=os.sep)
    if done.timed_out or done.status != 0:
        return f"{python} does not run: {done.reason}"
    missing = [word for line in done.lines for word in line.text.split()]
    return f"{python} has no {' and no '.join(missing)}" if missing else ""


def run_scenario(scenario: str, options: Options, results: Measurements) -> None:
    """Runs all rounds of one scenario, and appends the measurements to `results`."""
    only = split_comma_separated(options.only)
    present = []
    for subject in scenario_subjects(scenario, options):
        if only and not {subject.name, f"{subject.name}:{subject.dtype}"} & {*only}:
            continue
        if reason := subject.missing or missing_modules_message(subject.python, subject.modules):
            results.append(Measurement(scenario, 0, 0, *subject.key, NOT_RUN, reason))
        else:
            present.append(subject)
    failures: Counter[Key] = Counter()
    for number, order in enumerate(orders(present, options.rounds, options.seed), start=1):
        due: list[Due] = []
        for position, subject in enumerate(order, start=1):
            place = Measurement(scenario, number, position, *subject.key, NOT_RUN)
            if failures[subject.key] >= PATIENCE:
                results.append(dataclasses.replace(place, reason=f"failed {PATIENCE} times before"))
            else:
                due.append((place, subject))
        for together in interleaved_groups(due, options):
            names = ", ".join(" ".join(subject.key) for _, subject in together)
            print(f"{scenario} {number}/{options.rounds}: {names}", file=sys.stderr, flush=True)
            for measurement in measure(together, options):
                if measurement.status == FAILED:
                    failures[measurement.subject, measurement.dtype] += 1
                    print(f"  failed: {measurement.reason}", file=sys.stderr, flush=True)
                results.append(measurement)


def interleaved_groups(due: Sequence[Due], options: Options) -> list[list[Due]]:
    """Groups the subjects of a round: subjects that are interleaved are in one group."""
    groups: dict[object, list[Due]] = {}
    for place, subject in due:
        in_turn = options.turn_seconds and subject.group
        groups.setdefault(subject.group if in_turn else place, []).append((place, subject))
    return list(groups.values())


def measure(together: Sequence[Due], options: Options) -> list[Measurement]:
    """Runs one subject, or several interleaved, in empty folders, and reads their output."""
    turn_seconds = options.turn_seconds if len(together) > 1 else None
    with tempfile.TemporaryDirectory(prefix="compare-peers-") as scratch:
        processes, records = [], []
        for place, subject in together:
            folder = Path(scratch, str(place.order))
            folder.mkdir()
            words = (place.scenario, *subject.key, str(place.round))
            kept = Path(options.keep or "", f"{'-'.join(words).replace(' ', '-')}.json")
            record = kept.resolve() if options.keep else folder / "record.json"
            command = [str(record).join(word.split(RECORD)) for word in subject.command]
            variables = {**ENVIRONMENT, **subject.environment}
            processes.append(Process(command, variables, str(folder), subject.watch_memory))
            records.append(record)
        before = read_counters(Host())
        # The time-out includes the time in which a process waits for the other processes.
        run_in_turn(processes, options.timeout * len(together), turn_seconds)
        # CPU time of processes in the same group does not count as load of other programs.
        meanwhile = changes(before, read_counters(Host()))
        measured = []
        for (place, subject), process, record in zip(together, processes, records, strict=True):
            reading, reason = None, ""
            try:
                reading = read(subject, process, record, in_turn=turn_seconds is not None)
            except ProcessError as error:
                reason = str(error)
            except (OSError, ValueError, KeyError, TypeError) as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
            one = dataclasses.replace(
                place,
                status=FAILED if reason else OK,
                reason=reason,
                load_average=meanwhile.get("load_average"),
                others_cpus=meanwhile.get("other_cpus"),
                reading=reading,
            )
            measured.append(one)
    return measured


def read(subject: Subject, process: Process, record: Path, *, in_turn: bool) -> Reading:
    """Reads the measurement of a process that has ended."""
    process.require(subject.status)
    reading = subject.read(process, record)
    reading = dataclasses.replace(
        reading, peak_bytes=process.peak_bytes, process_seconds=process.seconds
    )
    if not in_turn:
        return reading
    # The step times that a process itself measures include the time in which it was stopped.
    steps = between_step_lines(process)
    if process.turn is None or len(steps) < 2:
        raise ValueError("the process ended before its first time slice; increase --batches")
    if subject.in_bursts:
        steps = (sum(steps) / len(steps),) * len(steps)
    return dataclasses.replace(reading, step_seconds=steps)


@contextmanager
def with_imagenet_files(options: Options) -> Iterator[Options]:
    """Adds a --data_dir with generated photographs to the options, if one is needed.

    If the photographs cannot be created, the reason is printed to standard error, and the options
    are unchanged.
    """
    if "input" not in options.chosen or options.data_dir is not None:
        yield options
        return
    with tempfile.TemporaryDirectory(prefix="compare-peers-photos-") as folder:
        out = Path(folder) / "imagenet"
        print(f"input: making {PHOTOS} photographs", file=sys.stderr, flush=True)
        command = (options.cnnbench_python, str(CHILDREN / "photos.py"), str(out), str(PHOTOS))
        try:
            run(command, timeout=options.timeout, environment=ENVIRONMENT).require()
            options = dataclasses.replace(options, data_dir=str(out))
        except ProcessError as error:
            print(f"  failed: {error}", file=sys.stderr, flush=True)
        yield options


def report(measurements: Sequence[Measurement], options: Options) -> list[str]:
    """Returns the lines of the report for standard output."""
    has_bf16 = "bf16" in str(processor_facts(Host()).get("cpu_isa"))
    findings = [judge(demand, measurements, has_bf16) for demand in demands_of(options)]
    versions = {
        word: None
        for m in measurements
        if m.reading is not None
        for word in m.reading.versions.split(", ")
        if word
    }
    lines = ["Medians over rounds", *subjects_table(measurements, [*SCENARIOS]), ""]
    lines += work_table(measurements)
    lines += ["Within rounds, averaged over them", *demands_table(findings), ""]
    lines.append(f"Versions: {', '.join(versions) or 'unknown'}")
    return lines + other_processes_lines(measurements, os.cpu_count() or 1)


@handling_signals(signal.default_int_handler)  # SIGTERM acts like Ctrl-C.
def main(argv: Sequence[str]) -> int:
    """Compares all subjects; returns the exit status."""
    options = parse_options(Options, __doc__, argv, Options.check)
    try:
        results = Measurements(options.csv)
    except OSError as error:
        print(f"compare_peers: --csv={options.csv}: {error.strerror}", file=sys.stderr)
        return 2
    interrupted = False
    try:
        with with_imagenet_files(options) as options:
            for scenario in options.chosen:
                run_scenario(scenario, options, results)
    except KeyboardInterrupt:
        interrupted = True
        print("compare_peers: interrupted", file=sys.stderr)
    if not results and not interrupted:
        print(f"compare_peers: --only={options.only} names no subject", file=sys.stderr)
        return 2
    if results:
        print("\n".join(report(results, options)))
    if interrupted:
        return 130
    return 0 if any(m.status == OK for m in results) else 4


if __name__ == "__main__":
    run_script(main)
