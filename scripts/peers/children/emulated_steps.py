"""Runs one program on emulated GPUs, and counts what host and GPUs do in each step.

Programs print a line per step. The work of steps is counted from the line of the first timed step
to the line of the last step. The process must have loaded the emulator with a trace
(``HOSTGPU_TRACE``).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from bare_network import (  # type: ignore[import-not-found] # the file beside this
    MODELS,
    make_step,
    make_step_by_hand,
)
from steps import measure, parse, report, tell_step  # type: ignore[import-not-found] # likewise

PROGRAMS = ("cnnbench", "bare", "mirrored", "keras")
# Names of the values of `hostgpu_counters`, with three kinds of copies and their bytes.
_COUNTERS = """
    kernels synchronous htod htod_bytes dtoh dtoh_bytes dtod dtod_bytes deepest busy_ns
""".split()
_STEP_LINE = re.compile(r"^(\d+)\timages/sec: ", re.MULTILINE)


class Meter:
    """Replaces standard output, and records the counters at the lines of two steps.

    Attributes:
      at: numbers of the two steps.
    """

    def __init__(self, stream: TextIO, gpus: int, at: tuple[int, int]) -> None:
        self.stream, self.gpus, self.at = stream, gpus, at
        self._library = ctypes.CDLL(os.environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"])
        self._states: list[dict[str, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Writes text. The line of a step must be written in one call."""
        for found in _STEP_LINE.findall(text):
            if int(found) in self.at:
                self._states.append(self._state())
        return self.stream.write(text)

    def _state(self) -> dict[str, float]:
        # The emulator runs GPU streams in threads, whose CPU time is not the host's.
        streams = sum(_cpu_ns(task) for task in Path("/proc/self/task").iterdir())
        found: dict[str, float] = defaultdict(float)
        found["cpu"] = time.process_time() - 1e-9 * streams
        found["wall"] = time.time()
        for gpu in range(self.gpus):
            values = (ctypes.c_int64 * len(_COUNTERS))()
            self._library.hostgpu_counters(gpu, values)
            for name, value in zip(_COUNTERS, values, strict=True):
                found[name] += value
        return found

    def measured(self) -> dict[str, float]:
        """Work per step: counts and bytes over all GPUs, seconds, and idle share of the GPUs.

        Raises:
          ValueError: the lines of the two steps were not written.
        """
        if len(self._states) != 2:
            raise ValueError(f"the lines of steps {self.at} were not written")
        first, last = self._states
        steps = self.at[1] - self.at[0]
        result = {name: (last[name] - first[name]) / steps for name in first}
        busy = _busy_seconds(first["wall"], last["wall"])
        result["idle"] = 1 - busy / (self.gpus * (last["wall"] - first["wall"]))
        return result


def _cpu_ns(task: Path) -> int:
    """CPU time in nanoseconds of a thread that runs a GPU stream; 0 for other threads."""
    try:
        if (task / "comm").read_text() != "hostgpu\n":
            return 0
        return int((task / "schedstat").read_text().split()[0])
    except OSError:  # The thread has ended.
        return 0


def _busy_seconds(start: float, end: float) -> float:
    """Seconds during which GPUs ran kernels, on any stream, summed over the GPUs."""
    work = defaultdict(list)
    trace = Path(os.environ["HOSTGPU_TRACE"], f"{os.getpid()}.tsv")
    for line in trace.read_text().splitlines():
        device, _, what, _, *times = line.split("\t")
        if what == "kernel":
            began, ended = (min(max(1e-9 * int(one), start), end) for one in times)
            work[device].append((began, ended))
    total = 0.0
    for spans in work.values():
        until = start
        for began, ended in sorted(spans):
            total += max(ended - max(began, until), 0.0)
            until = max(until, ended)
    return total


def bare_step(args: argparse.Namespace, devices: Sequence[str]) -> Callable[[], Any]:
    """Creates a step by hand: one tf.function, one copy of variables per GPU, and NCCL."""
    import tensorflow as tf

    def means(number: int, values: list[tf.Tensor]) -> Iterator[tf.Tensor]:
        for device, value in zip(devices, values, strict=True):
            with tf.device(device):
                if len(devices) > 1:
                    value = tf.raw_ops.NcclAllReduce(
                        input=value,
                        reduction="sum",
                        num_devices=len(devices),
                        shared_name=f"gradient{number}",
                    )
                yield value / float(len(devices))

    return cast(Callable[[], Any], make_step_by_hand(args, devices, means, device="gpu"))


def mirrored_step(args: argparse.Namespace, devices: Sequence[str]) -> Callable[[], Any]:
    """Creates a step by hand for tf.distribute.MirroredStrategy."""
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(devices)
    return cast(Callable[[], Any], make_step(args, strategy, device="gpu"))


def fit(args: argparse.Namespace, devices: Sequence[str]) -> None:
    """Trains with Keras's `fit` and a MirroredStrategy over all GPUs."""
    import keras
    import tensorflow as tf
    from keras_steps import compiled  # type: ignore[import-not-found] # likewise

    class Lines(keras.callbacks.Callback):  # type: ignore[misc] # Keras has no types
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch >= args.warmup:
                tell_step(batch + 1 - args.warmup, 0.0)

    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        model = compiled("resnet50", args)
    rows = tf.zeros([args.batch_size, 224, 224, 3]), tf.zeros([args.batch_size], tf.int32)
    data = tf.data.Dataset.from_tensors(rows).repeat()
    steps = args.warmup + args.batches
    model.fit(data, steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[Lines()])


def ours(args: argparse.Namespace) -> None:
    """Runs cnnbench with further flags."""
    from cnnbench.cli.commands import run

    run.main(
        [
            *(f"--model={args.model}", "--device=gpu", f"--num_gpus={args.workers}"),
            *(f"--batch_size={args.batch_size // args.workers}", f"--num_batches={args.batches}"),
            *(f"--num_warmup_batches={args.warmup}", "--optimizer=sgd", "--display_every=1"),
            # The other programs do not compute the L2 loss of weight decay.
            "--loss_type_to_report=base_loss",
            f"--init_learning_rate={args.learning_rate}",
            f"--weight_decay={args.weight_decay}",
            *args.flags,
        ]
    )


def main() -> None:
    """Runs one program; --workers is the number of GPUs."""
    args = parse(MODELS, program=PROGRAMS)
    meter = Meter(sys.stdout, args.workers, (1, args.batches))
    sys.stdout = cast(TextIO, meter)
    devices = [f"/gpu:{gpu}" for gpu in range(args.workers)]
    if args.program == "cnnbench":
        ours(args)
    elif args.program == "keras":
        fit(args, devices)
    else:
        step = (bare_step if args.program == "bare" else mirrored_step)(args, devices)
        measure(args, step)
    report(**meter.measured())


if __name__ == "__main__":
    main()
