"""Measures how often the interval of `cnnbench run --repeats` contains the mean of many processes.

Reads the records that `cnnbench run --repeats=60 --results=FOLDER` has written. Draws sets of
processes at random, and computes the interval of each set as `cnnbench run --repeats` does. Prints
the share of the sets whose interval contains the mean speed of all processes, and the same share
for all sets of processes that ran one after the other. The exit status is 0, 1 if less than 93 % of
the random sets contain the mean, or 2 for wrong use.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from command_line import parse_options, run_script

from cnnbench.base.stats import CONFIDENCE, mean_interval
from cnnbench.base.text import percent
from cnnbench.errors import ExitCode, UsageError
from cnnbench.flags.declare import flag
from cnnbench.judge.compare import load_records
from cnnbench.judge.metrics.judged import THROUGHPUT
from cnnbench.records.codec import parse_start_time

REQUIRED = 0.93


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line options."""

    results: str | None = flag(None, "Folder of cnnbench run --repeats.", path="folder")
    size: int = flag(6, "Processes of a set.", minimum=3)
    draws: int = flag(2000, "Random sets.", minimum=1)
    seed: int = flag(1, "Seed of the sets.")


def speeds_of_records(folder: str) -> list[float]:
    """Returns the images per second of each successful process, in the order of their start."""
    records = [record for record in load_records([folder]).records if record.status == "ok"]
    records.sort(key=lambda record: parse_start_time(record.started_at))
    return [speed for speed in map(THROUGHPUT.value, records) if speed is not None]


def share_containing(mean: float, sets: Iterable[Sequence[float]]) -> float:
    """Returns the share of the sets whose interval of the mean contains `mean`."""
    intervals = [mean_interval(chosen, CONFIDENCE) for chosen in sets]
    return fmean(found is not None and found[0] <= mean <= found[1] for found in intervals)


def main(argv: Sequence[str]) -> int:
    """Prints the shares; returns the exit status."""
    options = parse_options(Options, __doc__, argv)
    if options.results is None:
        raise UsageError("--results=FOLDER names the folder of cnnbench run --repeats")
    speeds = speeds_of_records(options.results)
    if len(speeds) <= options.size:
        reason = f"{len(speeds)} processes, but a set has {options.size}; use more --repeats"
        raise UsageError(f"--results={options.results}: {reason}")
    mean, draw, size = fmean(speeds), random.Random(options.seed), options.size
    at_random = (draw.sample(speeds, size) for _ in range(options.draws))
    in_order = (speeds[at : at + size] for at in range(len(speeds) - size + 1))
    shares = [share_containing(mean, sets) for sets in (at_random, in_order)]
    print(
        f"{len(speeds)} processes, standard deviation {percent(stdev(speeds) / mean)} of the mean"
    )
    print(f"{percent(shares[0])} of {options.draws} random sets of {size} contain the mean")
    print(f"{percent(shares[1])} of the sets of {size} consecutive processes contain it")
    return ExitCode.OK if shares[0] >= REQUIRED else ExitCode.REGRESSION


if __name__ == "__main__":
    run_script(main)
