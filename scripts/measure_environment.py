"""Measures the environment variables that `cnnbench tune` varies on CPUs, on eight networks.

Every measurement is a new process on the CPU. In each round, one process of each setting runs, and
the processes take turns in time slices, in random order. The script prints the speed as a ratio to
the process without the setting in the same round (geometric mean with a 95 % interval over the
rounds) and the median of the peak memory, as rows of a Markdown table. The last column is
the largest number of CPUs that other programs used during the timed steps. The exit status is 0, 2
for wrong use, or 4 if a process failed.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from command_line import parse_options, run_script
from measuring import measure

from cnnbench.base.stats import mean_interval, median
from cnnbench.campaigns.ab.side import AbSide
from cnnbench.campaigns.tune import environment
from cnnbench.errors import BenchmarkError, ExitCode, UsageError
from cnnbench.flags.declare import flag, split_comma_separated
from cnnbench.machine.cpu import Host, convolution_kernels
from cnnbench.records.run import RunRecord

NETWORKS = {
    "resnet20": "--data_name=cifar10 --batch_size=128 --num_batches=20",
    "resnet50": "--batch_size=8 --num_batches=6",
    "vgg16": "--batch_size=8 --num_batches=4",
    "inception3": "--batch_size=8 --num_batches=5",
    "mobilenet": "--batch_size=32 --num_batches=6",
    "densenet40_k12": "--data_name=cifar10 --batch_size=64 --num_batches=8",
    "vit_b16": "--batch_size=8 --num_batches=4",
    "lenet": "--batch_size=256 --num_batches=60",
}
"""Flags of each network: about three seconds of timed steps on two cores."""

Setting = Mapping[str, str]
TIMEOUT_SECONDS, TURN_SECONDS = 600.0, 0.5


@dataclass(frozen=True)
class Options:
    """Command-line options."""

    models: str = flag("", "Comma-separated networks; all by default.")
    rounds: int = flag(6, "Processes of each setting.", minimum=3)
    seed: int = flag(1, "Seed of the order.")


def check_models(options: Options) -> None:
    """Raises UsageError for an unknown network."""
    if unknown := sorted({*split_comma_separated(options.models)} - {*NETWORKS}):
        raise UsageError(f"--models={unknown[0]}: choose from {', '.join(NETWORKS)}")


def settings() -> list[Setting]:
    """Returns the settings that have an effect on this machine; the first one is empty."""
    every: list[Setting] = [{}]
    for dimension in environment.dimensions({}):
        for setting in dimension:
            if not any(environment.why_unusable(*pair) for pair in setting.items()):
                every.append(setting)
    return every


def measure_round(model: str, order: Sequence[Setting]) -> list[RunRecord]:
    """Runs one process of each setting, interleaved. BenchmarkError if one of them fails."""
    flags = (f"--model={model}", "--device=cpu", "--num_warmup_batches=3", *NETWORKS[model].split())
    sides = [AbSide(flags=flags, variables=setting) for setting in order]
    ended = measure(sides, TIMEOUT_SECONDS, TURN_SECONDS)
    for setting, process in zip(order, ended, strict=True):
        if process.message:
            raise BenchmarkError(f"{model} {dict(setting)}: {process.message}")
    return [process.record for process in ended]


def print_rows(model: str, options: Options) -> None:
    """Measures one network, and prints a row of the table for each setting."""
    draw = random.Random(f"{model} {options.seed}")
    every = settings()
    records: list[list[RunRecord]] = [[] for _ in every]
    for _ in range(options.rounds):
        order = draw.sample(range(len(every)), len(every))
        measured = measure_round(model, [every[number] for number in order])
        for number, record in zip(order, measured, strict=True):
            records[number].append(record)
    for setting, runs in zip(every, records, strict=True):
        name = " ".join(environment.short_text(*pair) for pair in setting.items()) or "none"
        others = max(run.condition("other_cpus") or 0 for run in runs)
        memory = median([run.measured.peak_memory_bytes or 0 for run in runs]) / 2**20
        speed = speed_text(runs, records[0]) if setting else "1"
        print(f"| {model} | `{name}` | {speed} | {memory:,.0f} MiB | {others:.2f} |", flush=True)


def speed_text(runs: Sequence[RunRecord], base: Sequence[RunRecord]) -> str:
    """Returns the ratio of speeds in the same rounds, by median step times, with its interval."""
    logs = [
        math.log(median(other.step_seconds) / median(run.step_seconds))
        for run, other in zip(runs, base, strict=True)
    ]
    low, high = (math.exp(end) for end in mean_interval(logs, 0.95) or (0.0, math.inf))
    return f"{math.exp(math.fsum(logs) / len(logs)):.3f} ({low:.3f} to {high:.3f})"


def main(arguments: Sequence[str]) -> int:
    """Measures the networks one after the other."""
    options = parse_options(Options, __doc__, arguments, check_models)
    print(f"convolutions without a setting: {convolution_kernels(Host())}")
    try:
        for model in split_comma_separated(options.models) or NETWORKS:
            print_rows(model, options)
    except BenchmarkError as error:
        print(error, file=sys.stderr)
        return ExitCode.FAILED
    return 0


if __name__ == "__main__":
    run_script(main)
