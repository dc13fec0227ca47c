"""GPUs that no longer respond."""

from __future__ import annotations

import contextlib
import threading
import time

import tensorflow as tf

SECONDS = 6.0
"""Limit for an addition and two copies of a number, on a possibly busy machine."""


def silent_gpus(seconds: float = SECONDS) -> list[str]:
    """The GPUs of this process that do not add two numbers in time, such as "GPU:1"."""
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    asked = {gpu: threading.Thread(target=_add, args=(gpu,), daemon=True) for gpu in gpus}
    for thread in asked.values():
        thread.start()
    end = time.monotonic() + seconds
    for thread in asked.values():
        thread.join(max(0.0, end - time.monotonic()))
    return [gpu.rpartition("/device:")[2] for gpu, thread in asked.items() if thread.is_alive()]


def _add(gpu: str) -> None:
    # In a function, whose caller lets other threads of Python run; an eager copy does not.
    def add(number: tf.Tensor) -> tf.Tensor:
        with tf.device(gpu):
            total = number + number
        with tf.device("CPU:0"):
            return tf.identity(total)

    with contextlib.suppress(Exception), tf.device("CPU:0"):  # an error is a response
        tf.function(add, autograph=False)(tf.constant(1.0))
