"""Measures time and memory of `history`, `report` and `compare` with many records.

Measures one run of lenet, and creates similar records of 100 steps: for three batch sizes, twelve
commits per day and eight processes of each; every 40th day, the speed changes by 4 %. Prints a
table with wall seconds, CPU seconds, largest memory and output of every command. An existing folder
is used without its table of cached values. The exit status is 0, or 4 if a command failed.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from command_line import parse_options, run_script
from peers.process import run

from cnnbench.errors import BenchmarkError, ExitCode
from cnnbench.flags.declare import flag
from cnnbench.judge.history.cache import FILE
from cnnbench.records.codec import json_text

BATCHES, COMMITS_A_DAY, PROCESSES = (8, 16, 32), 12, 8
STEPS = 100
DAYS_OF_A_LEVEL = 40
CNNBENCH = (sys.executable, "-m", "cnnbench")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line options: what to measure, and in which folder."""

    records: int = flag(
        20_000, "Records for history; report and compare use at most 2,000.", minimum=2
    )
    folder: str | None = flag(None, "Where the records are, or are made.", path="folder")


def template(folder: Path) -> dict[str, Any]:
    """Runs cnnbench for `STEPS` steps; returns the record. BenchmarkError if the run fails."""
    path = folder / "template.json"
    flags = ("--device=cpu", "--model=lenet", f"--num_batches={STEPS}", f"--result_json={path}")
    run_and_print_cost("a run", *flags)
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return document


def records(like: dict[str, Any], number: int) -> Iterator[tuple[str, str]]:
    """Yields paths and texts of records; equal arguments yield equal records."""
    draw = random.Random(1)
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)
    of_commit = len(BATCHES) * PROCESSES
    for index in range(number):
        commit, place = divmod(index, of_commit)
        day, batch = commit // COMMITS_A_DAY, BATCHES[place % len(BATCHES)]
        level = 0.001 * batch * (1.04 if day // DAYS_OF_A_LEVEL % 2 else 1.0)
        level *= 1 + draw.gauss(0, 0.01)
        revision = f"{commit * 2654435761 % 2**160:040x}"
        config = {**like["config"], "batch_size": batch, "result_label": f"commit={revision}"}
        at = start + timedelta(hours=2 * commit, minutes=2 * place)
        document = {
            **like,
            "run_id": f"{index:032x}",
            "started_at": at.isoformat(),
            "config": config,
            "subject": {"repository": None, "revision": revision, "dirty": None, "side": None}
            | {"labels": {"commit": revision}},
            "batch": {"per_device": batch, "global": batch},
            "step_seconds": [level * (1 + draw.gauss(0, 0.02)) for _ in range(STEPS)],
        }
        yield f"{at:%Y-%m-%d}/{index}.json", json_text(document)


def make_records_folder(folder: Path, number: int) -> Path:
    """Returns a folder with records; creates the folder if it does not exist."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for path, text in records(template(folder), number):
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
    for table in folder.glob(f"{FILE}*"):
        table.unlink()
    return folder


def run_and_print_cost(title: str, *arguments: str | Path) -> None:
    """Runs a command and prints time and memory; raises BenchmarkError if it fails."""
    done = run([*CNNBENCH, *map(str, arguments)], timeout=math.inf)
    if done.status not in (ExitCode.OK, ExitCode.REGRESSION, ExitCode.INCONCLUSIVE):
        raise BenchmarkError(f"{title}: {done.reason}")
    output = sum(len(line.text.encode()) + 1 for line in done.lines)
    print(
        f"{title:34} {done.seconds:7.1f} s {done.cpu_seconds:7.1f} s CPU "
        f"{(done.peak_bytes or 0) / 2**20:6.0f} MiB {output:10,} bytes",
        flush=True,
    )


def main(argv: Sequence[str]) -> int:
    """Creates the folders, and prints one line for each command."""
    options = parse_options(Options, __doc__, argv)
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(options.folder or scratch)
        few = min(options.records, 2000)
        try:
            folder = make_records_folder(top / f"history-{options.records}", options.records)
            title = f"history, {options.records:,} records"
            run_and_print_cost(f"{title}, first", "history", folder)
            run_and_print_cost(f"{title}, again", "history", folder)
            some = make_records_folder(top / f"report-{few}", few)
            page = Path(scratch, "page.html")
            run_and_print_cost(f"report, {few:,} records", "report", some, f"--output={page}")
            print(f"  a page of {page.stat().st_size:,} bytes")
            sides = [make_records_folder(top / f"side-{side}", few // 2) for side in "ab"]
            run_and_print_cost(f"compare, {few // 2:,} each", "compare", *sides)
        except BenchmarkError as error:
            print(f"measure_results: error: {error}", file=sys.stderr)
            return ExitCode.FAILED
    return ExitCode.OK


if __name__ == "__main__":
    run_script(main)
