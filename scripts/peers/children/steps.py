"""What the peers that train step by step have in common; needs the standard library only."""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Callable, Iterable, Sequence


def parse(
    models: Iterable[str], strategies: Iterable[str] = (), of_workers: bool = False
) -> argparse.Namespace:
    """The command line of a peer that knows these models, and strategies if there are any.

    Args:
      models: that it knows.
      strategies: likewise.
      of_workers: whether several workers share the batch.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(models), required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), required=True)
    for name in ("batch_size", "batches", "warmup"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("learning_rate", "weight_decay"):
        parser.add_argument(f"--{name}", type=float, required=True)
    if strategies:
        parser.add_argument("--strategy", choices=sorted(strategies), required=True)
    if of_workers:
        parser.add_argument("--workers", type=int, required=True)
    return parser.parse_args()


def free_hosts(count: int) -> list[str]:
    """Addresses on this machine whose ports nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    hosts = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return hosts


def measure(args: argparse.Namespace, step: Callable[[], object], versions: str) -> None:
    """Times steps and prints the measurement.

    Args:
      args: the command line.
      step: one training step; returns when it is done.
      versions: of what does the work.
    """
    seconds = []
    for number in range(1 - args.warmup, args.batches + 1):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
        if number > 0:
            tell_step(number, args.batch_size / seconds[-1])
    tell(args.batch_size, seconds[args.warmup :], versions)


def tell_step(number: int, speed: float) -> None:
    """Prints the line of a timed step; whoever has programs take turns goes by it.

    Args:
      number: of the step, from 1.
      speed: in images/sec.
    """
    print(f"{number}\timages/sec: {speed:.1f}", flush=True)


def tell(batch: int, seconds: Sequence[float], versions: str) -> None:
    """Prints a measurement.

    Args:
      batch: images of a step.
      seconds: of each step.
      versions: of what does the work.
    """
    result = {"batch": batch, "step_seconds": list(seconds), "versions": versions}
    print("MEASURED " + json.dumps(result), flush=True)
