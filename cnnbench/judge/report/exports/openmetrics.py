"""OpenMetrics 1.0 text, for Prometheus: ``promtool tsdb create-blocks-from openmetrics``.

Source: https://prometheus.io/docs/specs/om/open_metrics_spec/: a family per quantity with its TYPE,
UNIT and HELP, all samples of a label set together and ordered by time, ``# EOF`` at the end. Names
end with the base unit; timestamps are seconds since 1970, the start of the first process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cnnbench.base.text.escape import plain
from cnnbench.judge.metrics.registry import Metric
from cnnbench.judge.report.exports import Export
from cnnbench.judge.report.exports.figures import Figure

_UNITS: dict[str, tuple[str, float]] = {
    "images/sec": ("images_per_second", 1.0),
    "images/CPU second": ("images_per_second", 1.0),
    "GB/s": ("bytes_per_second", 1e9),
    "FLOP/s": ("flops_per_second", 1.0),
    "bytes": ("bytes", 1.0),
    "seconds": ("seconds", 1.0),
    "s": ("seconds", 1.0),
    "J": ("joules", 1.0),
    "share": ("ratio", 1.0),
    "share of the peak": ("ratio", 1.0),
    "top-1": ("ratio", 1.0),
    "loss": ("", 1.0),
}
"""Base unit and factor of each unit of metrics."""

_Sample = tuple[Figure, float]


def render(figures: Sequence[Figure]) -> Export:
    """Gauges of all subjects: median, interval, number of processes, and change."""
    metrics = {figure.metric.name: figure.metric for figure in figures}
    lines = [line for metric in metrics.values() for line in _metric(metric, figures)]
    return Export("\n".join([*lines, "# EOF"]) + "\n")


def _metric(metric: Metric, figures: Sequence[Figure]) -> Iterator[str]:
    own = [figure for figure in figures if figure.metric is metric]
    unit, factor = _UNITS[metric.unit]
    name, better = metric.name, "higher" if metric.higher_is_better else "lower"
    about = f"{name}, median over processes; {better} is better"
    yield from _family(name, unit, about, [(one, one.value * factor) for one in own])
    for place, end in enumerate(("lower", "upper")):
        about = f"{name}, {end} end of the 95 % interval of the median"
        ends = [(one, both[place] * factor) for one in own if (both := one.sample.interval)]
        yield from _family(f"{name}_{end}", unit, about, ends)
    counts = [(one, float(len(one.sample.values))) for one in own]
    yield from _family(f"{name}_processes", "", f"{name}, number of processes", counts)
    kind = "as a share of the base" if metric.relative else "as a difference"
    for suffix, field, about in (
        ("", "change", f"change of {name} from base to new, {kind}"),
        ("_lower", "low", f"lower end of the interval of the change of {name}"),
        ("_upper", "high", f"upper end of the interval of the change of {name}"),
    ):
        found = ((one, getattr(one.judgement, field, None)) for one in own)
        known = [(one, value) for one, value in found if value is not None]
        yield from _family(f"{name}_change{suffix}", "ratio", about, known)


def _family(name: str, unit: str, about: str, samples: Sequence[_Sample]) -> Iterator[str]:
    if not samples:
        return
    full = f"cnnbench_{name}"
    if unit and not full.endswith(f"_{unit}"):
        full += f"_{unit}"
    yield f"# TYPE {full} gauge"
    if unit:
        yield f"# UNIT {full} {unit}"
    yield f"# HELP {full} {_escaped(about)}"
    rows = sorted((_labels(figure), figure.started.timestamp(), value) for figure, value in samples)
    for labels, time, value in rows:
        yield f"{full}{{{labels}}} {value!r} {time:.3f}"


def _labels(figure: Figure) -> str:
    """Labels of a figure; user labels are named label_NAME."""
    found = {
        f"label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": plain(text)
        for name, text in figure.labels.items()
    }
    judgement = figure.judgement
    if judgement is not None:
        found["verdict"] = judgement.verdict.word(figure.metric)
    found |= figure.subject()
    return ",".join(f'{name}="{_escaped(text)}"' for name, text in found.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
