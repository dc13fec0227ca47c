"""Shared parts of the peers that train step by step; standard library only."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

_PLACE = "CNNBENCH_PEER"


def parse(models: Iterable[str], **choices: Iterable[str]) -> argparse.Namespace:
    """The command line of a peer that has these models; `flags` are those that it does not know.

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


def free_hosts(count: int) -> list[str]:
    """Addresses on this machine with unused ports."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    hosts = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return hosts


@contextlib.contextmanager
def tasks_of(
    hosts: Mapping[str, Sequence[str]],
    others: Iterable[tuple[str, int]],
    stdout: Callable[[str, int], int | None] = lambda job, index: None,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts this program again for each task of a cluster; kills these processes on leaving.

    Args:
      hosts: addresses by the name of the job.
      others: job and index of the tasks to start.
      stdout: standard output of each; None for that of this process.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        for job, index in others:
            place = json.dumps([hosts, job, index])
            environment = {**os.environ, _PLACE: place, "CUDA_VISIBLE_DEVICES": ""}
            command, output = [sys.executable, *sys.argv], stdout(job, index)
            started.append(subprocess.Popen(command, env=environment, stdout=output))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()  # so that what it used counts as this process's


def own_task() -> tuple[dict[str, list[str]], str, int] | None:
    """Hosts, job and index of a task that `tasks_of` has started; None in the first process."""
    place = os.environ.get(_PLACE)
    if place is None:
        return None
    hosts, job, index = json.loads(place)
    return hosts, job, index


def serve() -> None:
    """Runs a TensorFlow server for the first process, in a task that `tasks_of` started."""
    task = own_task()
    if task is not None:
        import tensorflow as tf

        hosts, job, index = task
        tf.distribute.Server(tf.train.ClusterSpec(hosts), job_name=job, task_index=index).join()


def leave() -> NoReturn:
    """Ends this process; TensorFlow would wait for the servers."""
    sys.stdout.flush()
    os._exit(0)


def measure(args: argparse.Namespace, step: Callable[[], Any], *modules: ModuleType) -> None:
    """Times steps and prints the measurement.

    Args:
      step: one training step; it is done when its loss can be read.
      modules: modules that did the work, for their versions.
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
    """Prints the line of a timed step, which ends turns."""
    print(f"{number}\timages/sec: {speed:.1f}", flush=True)


def tell(batch: int, seconds: Sequence[float], *modules: ModuleType) -> None:
    """Prints a measurement."""
    versions = ", ".join(f"{one.__name__} {one.__version__}" for one in modules)
    report(batch=batch, step_seconds=list(seconds), versions=versions)


def report(**measured: object) -> None:
    """Prints a measurement: attributes of a reading."""
    print("\nMEASURED " + json.dumps(measured), flush=True)
