"""The order of the subjects in every round."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


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
