"""Memory copy rate of the machine, measured in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from cnnbench.base.text.numbers import binary
from cnnbench.machine.cpu import available_cores

_BYTES = 256 << 20
"""Size of the memory that is read: larger than caches."""

_REPETITIONS = 8


class CopyRate(NamedTuple):
    """Bytes read and written per second, added, and the source of the number."""

    bytes_per_sec: float
    source: str


def measured(device_kind: str, device: str) -> CopyRate:
    """The best of several copies of 256 MiB, in about a second; `device_kind` is "cpu" or "gpu".

    On a CPU with a thread per usable processor, into memory that is in use already. (A step's
    operations write into fresh memory, whose pages the system has to provide first.)
    """
    if device_kind == "cpu":
        threads = available_cores()
        seconds, how = _of_host(threads), f"{threads} threads"
    else:
        seconds, how = _of_gpu(device), "one GPU"
    return CopyRate(2 * _BYTES / seconds, f"measured: copying {binary(_BYTES)}, {how}")


def _of_host(threads: int) -> float:
    source = np.ones(_BYTES // 4, np.float32)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return _best(lambda: list(pool.map(lambda part: np.copyto(*part), parts)))


def _of_gpu(device: str) -> float:
    import tensorflow as tf

    with tf.device(device):
        source = tf.ones([_BYTES // 4])

        def copy() -> None:
            copied = tf.raw_ops.DeepCopy(x=source)
            copied[:1].numpy()  # comes when the copy is there

        return _best(copy)


def _best(copy: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        copy()
        times.append(time.perf_counter() - start)
    return min(times)
