"""The line that a terminal shows while a pair runs: the number of the pair, and the change so far.

The change describes the pairs so far. It is not tested, so it uses no part of the significance
level, and the text contains no word of a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cnnbench.base.stats import median
from cnnbench.records.metric import Metric
from cnnbench.records.run import RunRecord


def standing_text(
    pair: int, pairs: int, records: Mapping[str, Sequence[RunRecord]], metric: Metric
) -> str:
    """Returns a text such as "pair 8/16, throughput +1.2 % so far".

    Args:
      pair: number of the pair that runs, from 1.
      pairs: maximum number of pairs.
      records: records of the complete pairs, by "a" and "b". The change is the median of their
        changes.
      metric: the metric whose change is shown, if it was measured.
    """
    changes = [
        new / base - 1 if metric.relative else new - base
        for base, new in zip(metric.values(records["a"]), metric.values(records["b"]), strict=True)
        if base is not None and new is not None and (base or not metric.relative)
    ]
    so_far = f", {metric.name} {metric.change_text(median(changes))} so far" if changes else ""
    return f"pair {pair}/{pairs}{so_far}"
