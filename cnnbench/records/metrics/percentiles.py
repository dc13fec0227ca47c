"""Percentiles of step times, and of batch latencies in forward-only runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from cnnbench.base.stats import FEWEST_FOR_P99, nearest_rank, p99
from cnnbench.base.text import number
from cnnbench.records.metric import QUICKER, Summary, register_metric
from cnnbench.records.run import RunRecord

_Series: TypeAlias = Callable[[RunRecord], Sequence[float]]

_SHARES = {50: 0.03, 90: 0.05, 99: 0.1}
"""Percentiles and their thresholds. Outer percentiles vary more, so their thresholds are larger."""


def _latencies(record: RunRecord) -> Sequence[float]:
    if not record.config.get("forward_only"):
        return ()
    # On a GPU, the next step is launched before a step completes. A step time is therefore the time
    # between two completions.
    on_cpu = record.placement is None or record.placement.kind == "cpu"
    return record.latency_seconds or (_single_steps(record) if on_cpu else ())


def _single_steps(record: RunRecord) -> Sequence[float]:
    """Times of single steps; none if the run has several steps per execution."""
    return record.step_seconds if record.steps_per_execution == 1 else ()


def _percentile(series: _Series, share: int, record: RunRecord) -> float | None:
    seconds = series(record)
    if not seconds:
        return None
    return p99(seconds) if share == 99 else nearest_rank(seconds, share / 100)


def _line(name: str, title: str, advice: str, summary: Summary) -> str:
    seconds_by_share = {share: summary[f"{name}_p{share}_seconds"] for share in _SHARES}
    if name == "step" and seconds_by_share[50] == summary.latency_p50_seconds:
        return ""  # On a CPU, both metrics come from the same series.
    known = [
        f"p{share} {number(s * 1e3)} ms" for share, s in seconds_by_share.items() if s is not None
    ]
    return f"{title}: {', '.join(known)}{'' if seconds_by_share[99] else advice}" if known else ""


def _register(
    name: str, title: str, about: str, series: _Series, advice: str = "", **rules: Any
) -> None:
    for share, threshold in _SHARES.items():
        few = f"; unknown for fewer than {FEWEST_FOR_P99}" if share == 99 else ""
        register_metric(
            "s",
            name=f"{name}_p{share}_seconds",
            about=f"{about} that {share} % do not exceed (nearest rank){few}",
            threshold=threshold,
            line=partial(_line, name, title, advice) if share == 50 else None,
            **rules,
            **QUICKER,
        )(partial(_percentile, series, share))


_register(
    "latency",
    "latency of a batch by itself",
    "Of a `--forward_only` run, time from fetching a batch to its result, with no other batch "
    "running,",
    _latencies,
    f"; p99 takes --num_batches={FEWEST_FOR_P99} or more",
)
_register(
    *("step", "step times", "Wall time of a timed step", _single_steps),
    section="throughput",
)
