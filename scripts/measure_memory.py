"""Compares the memory that cnnbench estimates for runs with the measured memory.

Usage: scripts/measure_memory [MODEL:DATA:BATCH:DEVICES ...]

Every run is a fresh process on the CPU. Without arguments, six networks run with two batch sizes on
one and two devices. The script prints the estimate, the measured peak and their ratio. The exit
status is 0 if all estimates are within 30 % of the measured peak, 1 if not, 2 for wrong use, 4 if a
run failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from command_line import run_script
from measuring import measure

from cnnbench.campaigns.ab.side import AbSide
from cnnbench.errors import BenchmarkError, ExitCode, UsageError

NETWORKS = (
    ("lenet", "imagenet", (256, 1024)),
    ("resnet56", "cifar10", (64, 256)),
    ("alexnet", "imagenet", (32, 128)),
    ("mobilenet", "imagenet", (16, 48)),
    ("resnet50", "imagenet", (8, 24)),
    ("densenet40_k12", "cifar10", (32, 128)),
)
TOLERANCE = 0.3
FLAGS = ("--device=cpu", "--num_warmup_batches=2", "--num_batches=2", "--peak_flops=1e12")


def cases(arguments: Sequence[str]) -> Iterator[tuple[str, str, int, int]]:
    """Returns model, data set, batch size and number of devices of each run.

    Raises:
      UsageError: an argument does not consist of these four parts.
    """
    for argument in arguments:
        try:
            model, data, *numbers = argument.split(":")
            batch, devices = map(int, numbers)
        except ValueError:
            message = f"{argument!r} is not MODEL:DATA:BATCH:DEVICES, such as lenet:imagenet:256:1"
            raise UsageError(message) from None
        yield model, data, batch, devices
    if not arguments:
        for model, data, batches in NETWORKS:
            for batch in batches:
                yield model, data, batch, 1
                yield model, data, batch, 2


def memory_bytes(model: str, data: str, batch: int, devices: int) -> tuple[int, int]:
    """Returns the estimated and the measured number of bytes of one run.

    Raises:
      BenchmarkError: the run failed, or took longer than ten minutes.
    """
    flags = (f"--model={model}", f"--data_name={data}", f"--batch_size={batch}")
    side = AbSide(flags=(*flags, f"--num_gpus={devices}", *FLAGS))
    (ended,) = measure([side], timeout=600)
    found = ended.record.measured
    if ended.message or not found.estimated_memory_bytes or not found.peak_memory_bytes:
        raise BenchmarkError(ended.message or "its memory is unknown")
    return found.estimated_memory_bytes, found.peak_memory_bytes


def main(arguments: Sequence[str]) -> int:
    """Runs all cases, and prints one line for each."""
    worst = 0.0
    for case in [*cases(arguments)]:
        name = "{} {} batch {} devices {}".format(*case)
        try:
            estimate, peak = memory_bytes(*case)
        except BenchmarkError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return ExitCode.FAILED
        ratio = estimate / peak
        worst = max(worst, abs(ratio - 1))
        sizes = f"{estimate / 2**20:7.0f} MiB estimated {peak / 2**20:7.0f} MiB measured"
        print(f"{name:45} {sizes} {ratio:.2f}", flush=True)
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    run_script(main, __doc__)
