"""Functions that programs which train step by step share; standard library only."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any


def parse(models: Iterable[str], **choices: Iterable[str]) -> argparse.Namespace:
    """Parses the command line of a peer with these models; `flags` are unknown words.

    Args:
      choices: values of further options by name.
    """
    parser = argparse.ArgumentParser()
    for option, known in {"model": models, "dtype": ("fp32", "bf16"), **choices}.items():
        parser.add_argument(f"--{option}", choices=sorted(known), required=True)
    for name in ("batch_size", "batches", "warmup"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("learning_rate", "weight_decay"):
        parser.add_argument(f"--{name}", type=float, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--data_dir")
    args, flags = parser.parse_known_args()
    return argparse.Namespace(**vars(args), flags=flags)


def measure(args: argparse.Namespace, step: Callable[[], Any], *modules: ModuleType) -> None:
    """Times steps and prints the measurement.

    Args:
      step: one training step; it is done when its loss can be read.
      modules: what did the work.
    """
    seconds = []
    for number in range(1 - args.warmup, args.batches + 1):
        start = time.perf_counter()
        float(step())
        seconds.append(time.perf_counter() - start)
        if number > 0:
            tell_step(number, args.batch_size / seconds[-1])
    tell(args.batch_size, seconds[args.warmup :], *modules)


def tell_step(number: int, speed: float) -> None:
    """Prints the line of a timed step. The parent process counts these lines."""
    print(f"{number}\timages/sec: {speed:.1f}", flush=True)


def tell(batch: int, seconds: Sequence[float], *modules: ModuleType) -> None:
    """Prints a measurement of steps."""
    versions = ", ".join(f"{one.__name__} {one.__version__}" for one in modules)
    report(batch=batch, step_seconds=list(seconds), versions=versions)


def report(**measured: object) -> None:
    """Prints a measurement as JSON; the keys are attributes of `Reading`."""
    print("\nMEASURED " + json.dumps(measured), flush=True)
