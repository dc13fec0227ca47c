"""For how long `cnnbench allreduce` measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long to measure.

    Attributes:
      chain: reductions in one call.
      warmup: calls before the timed ones.
      rounds: timed calls of every way.
      seed: of data and order.
      build_only: nothing is called after the first time.
    """

    chain: int
    warmup: int
    rounds: int
    seed: int
    build_only: bool = False
