"""Rounds of measurements: their order, and one measurement in an empty folder."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from cnnbench.machine.host import Host
from cnnbench.machine.sampling import Interval, take
from peers.measurement import FAILED, OK, Measurement, Reading
from peers.process import ProcessError

T = TypeVar("T")

# No GPU is used, and TensorFlow prints no start-up messages.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}


def orders(subjects: Sequence[T], rounds: int, seed: int) -> list[list[T]]:
    """One order per round: rotations of a shuffled list, shuffled anew after a full turn.

    Within a full turn every subject stands once at every position, so that
    neither the first place nor the slow drift of a machine favours anybody; the
    shuffling changes who follows whom.
    """
    generator = random.Random(seed)
    current = list(subjects)
    result: list[list[T]] = []
    for index in range(rounds):
        turn = index % len(current) if current else 0
        if turn == 0:
            generator.shuffle(current)
        result.append(current[turn:] + current[:turn])
    return result


def measure(
    place: tuple[str, int, int, str, str], work: Callable[[Path], Reading | None]
) -> Measurement:
    """Does some work in an empty folder and records what else the machine did meanwhile.

    Args:
      place: scenario, round, order, subject and dtype of the measurement.
      work: runs a process in the folder and returns its reading; a ProcessError, OSError,
        ValueError, KeyError or TypeError makes the measurement a failed one.
    """
    reading, reason, before = None, "", take(Host())
    with tempfile.TemporaryDirectory(prefix="compare-peers-") as folder:
        try:
            reading = work(Path(folder))
        except ProcessError as error:
            reason = str(error)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
    meanwhile = Interval.between(before, take(Host()))
    status = FAILED if reason else OK
    return Measurement(
        *place, status, reason, meanwhile.load_average, meanwhile.other_cpus, reading
    )
