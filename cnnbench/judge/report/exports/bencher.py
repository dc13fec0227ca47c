"""Bencher Metric Format, for ``bencher run --adapter json`` (bencher.dev, as of Bencher 0.6.12).

Source: https://bencher.dev/docs/reference/bencher-metric-format/ and https://bencher.dev/bmf.json:
an object of benchmarks, each an object of measures with ``value`` and, where known, ``lower_value``
and ``upper_value``. Branch, commit and testbed are flags of `bencher`, so only the newest subject
is written. Names of measures have the unit, because Bencher has its own measure "throughput", in
operations per second.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from cnnbench.judge.report.exports import Export
from cnnbench.judge.report.exports.figures import Figure, newest

_LONGEST = 1024
"""Largest number of bytes in the name of a benchmark."""


def render(figures: Sequence[Figure]) -> Export:
    """The newest subject: a benchmark per configuration and machine."""
    wanted, left_out = newest(figures)
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for figure in wanted:
        name = figure.title.encode()[:_LONGEST].decode(errors="ignore")
        measure = f"{figure.metric.name} ({figure.metric.unit})"
        benchmarks.setdefault(name, {})[measure] = _metric(figure)
    return Export(json.dumps(benchmarks, indent=1, allow_nan=False) + "\n", left_out)


def _metric(figure: Figure) -> dict[str, float]:
    interval = figure.sample.interval
    if interval is None:
        return {"value": figure.value}
    return {"value": figure.value, "lower_value": interval[0], "upper_value": interval[1]}
