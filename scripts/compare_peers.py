"""Compares cnnbench with its peers on this machine; see ``docs/benchmarks.md``.

Every measurement is a fresh process. In every round each subject runs once, in an
order drawn from a seed; ratios are formed within rounds, those of reductions within processes. A
peer that is not installed is reported as not run. The exit status is 0 if something was measured,
whatever the verdicts, 2 for wrong use, 4 if nothing was, 130 if interrupted, with the figures up to
then.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from command_line import options_of
from peers import table
from peers.bounds import demands_of
from peers.demands import judge
from peers.emulated import work_table
from peers.measurement import (
    ENVIRONMENT,
    FAILED,
    NOT_RUN,
    OK,
    CsvFile,
    Measurement,
    Place,
    Reading,
    measure,
    measure_in_turn,
    orders,
)
from peers.options import IN_TURN, Options
from peers.process import ProcessError, run
from peers.programs import CHILDREN, RECORD, Subject
from peers.readers import between_step_lines, is_step_line
from peers.subjects import chosen, scenario_subjects
from peers.turns import Rotation, Turn

from cnnbench.flags.declare import words
from cnnbench.machine.cpu import processor
from cnnbench.machine.host import Host

# After so many failures a subject is not started again.
PATIENCE = 2
PHOTOS = 512
_BF16 = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}


@functools.cache
def absent(python: str, modules: tuple[str, ...]) -> str:
    """Why an interpreter cannot run what needs some modules, in one line; empty when it can."""
    code = (
        "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if not u.find_spec(m)])"
    )
    command = [python, "-c", code, *modules]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True, cwd=os.sep
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{python} does not run: {error}"
    missing = done.stdout.split()
    return f"{python} has no {' and no '.join(missing)}" if missing else ""


def read(
    subject: Subject,
    folder: Path,
    turn: Turn | None = None,
    *,
    timeout: float,
    keep: Path | None = None,
) -> Reading:
    """Runs one subject once in an empty folder.

    Args:
      keep: where its record is written; in the folder by default.
    """
    record = keep or folder / "record.json"
    finished = run(
        [str(record).join(word.split(RECORD)) for word in subject.command],
        timeout=timeout,
        environment={**ENVIRONMENT, **subject.environment},
        folder=str(folder),
        watch_memory=subject.watch_memory,
        turn=turn,
    )
    finished.require(subject.status)
    reading = dataclasses.replace(subject.read(finished, record), peak_bytes=finished.peak_bytes)
    if turn is None:
        return reading
    # What the process itself measured has the time in it that it was stopped.
    steps = between_step_lines(finished)
    if len(steps) < 2:
        raise ValueError("it ended before its turns began; give it more --batches")
    if subject.in_bursts:
        steps = (sum(steps) / len(steps),) * len(steps)
    return dataclasses.replace(reading, step_seconds=steps)


def run_scenario(
    scenario: str, options: Options, csv: CsvFile | None, results: list[Measurement]
) -> None:
    """All rounds of one scenario, appended to `results`; progress goes to standard error."""

    def add(measurement: Measurement) -> None:
        results.append(measurement)
        if csv is not None:
            csv.add(measurement)

    present = []
    for subject in chosen(scenario_subjects(scenario, options), words(options.only)):
        if reason := subject.missing or absent(subject.python, subject.modules):
            add(Measurement(scenario, 0, 0, subject.name, subject.dtype, NOT_RUN, reason))
        else:
            present.append(subject)
    failures: Counter[tuple[str, str]] = Counter()
    for number, order in enumerate(orders(present, options.rounds, options.seed), start=1):
        due: list[tuple[Place, Subject]] = []
        for position, subject in enumerate(order, start=1):
            place = (scenario, number, position, subject.name, subject.dtype)
            if failures[subject.key] >= PATIENCE:
                add(Measurement(*place, NOT_RUN, f"failed {PATIENCE} times before"))
            else:
                due.append((place, subject))
        for together in groups_of(due, options):
            names = ", ".join(f"{subject.name} {subject.dtype}" for _, subject in together)
            print(f"{scenario} {number}/{options.rounds}: {names}", file=sys.stderr, flush=True)
            for (_, subject), measurement in zip(
                together, run_group(together, options), strict=True
            ):
                if measurement.status == FAILED:
                    failures[subject.key] += 1
                    print(f"  failed: {measurement.reason}", file=sys.stderr, flush=True)
                add(measurement)


def groups_of(
    due: Sequence[tuple[Place, Subject]], options: Options
) -> list[list[tuple[Place, Subject]]]:
    """Subjects of a round, grouped by those that run in turn."""
    groups: dict[object, list[tuple[Place, Subject]]] = {}
    for place, subject in due:
        in_turn = options.turn_seconds and place[0] in IN_TURN
        groups.setdefault(subject.group if in_turn else place, []).append((place, subject))
    return list(groups.values())


def run_group(together: Sequence[tuple[Place, Subject]], options: Options) -> list[Measurement]:
    """Runs one subject, or several in turn."""
    # Waits count.
    timeout = options.timeout * len(together)
    places = [place for place, _ in together]
    works = []
    for place, subject in together:
        scenario, number, _, *names = place
        name = "-".join([scenario, *names, str(number)]).replace(" ", "-")
        keep = Path(options.keep, f"{name}.json").resolve() if options.keep else None
        works.append(partial(read, subject, timeout=timeout, keep=keep))
    if len(works) == 1:
        return [measure(places[0], works[0])]
    return measure_in_turn(places, works, Rotation(options.turn_seconds, is_step_line))


@contextmanager
def with_imagenet_files(options: Options) -> Iterator[Options]:
    """Options with a --data_dir where one is needed: generated photographs, removed afterwards.

    Where they cannot be made, the reason goes to standard error and the options stay without.
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
        except (OSError, ProcessError) as error:
            print(f"  failed: {error}", file=sys.stderr, flush=True)
        yield options


def report(measurements: Sequence[Measurement], options: Options) -> list[str]:
    """The lines for standard output."""
    isa = processor(Host()).get("cpu_isa")
    has_bf16 = isinstance(isa, list) and not _BF16.isdisjoint(isa)
    findings = [judge(demand, measurements, has_bf16) for demand in demands_of(options)]
    versions = {
        word: None
        for m in measurements
        if m.reading is not None
        for word in m.reading.versions.split(", ")
        if word
    }
    lines = ["Medians over rounds", *table.subjects_table(measurements), ""]
    lines += work_table(measurements)
    lines += ["Within rounds, averaged over them", *table.demands_table(findings), ""]
    lines.append(f"Versions: {', '.join(versions) or 'unknown'}")
    return lines + table.neighbours(measurements, os.cpu_count() or 1)


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    options = options_of(Options, __doc__, argv, Options.check)
    csv = None
    if options.csv is not None:
        try:
            csv = CsvFile(Path(options.csv))
        except OSError as error:
            print(f"compare_peers: --csv={options.csv}: {error.strerror}", file=sys.stderr)
            return 2
    results: list[Measurement] = []
    interrupted = False
    # So that the process under way is killed too, and what was measured is shown.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with with_imagenet_files(options) as options:
            for scenario in options.chosen:
                run_scenario(scenario, options, csv, results)
    except KeyboardInterrupt:
        interrupted = True
        print("compare_peers: interrupted", file=sys.stderr)
    finally:
        if csv is not None:
            csv.close()
    if not results and not interrupted:
        print(f"compare_peers: --only={options.only} names no subject", file=sys.stderr)
        return 2
    if results:
        print("\n".join(report(results, options)))
    if interrupted:
        return 130
    return 0 if any(m.status == OK for m in results) else 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
