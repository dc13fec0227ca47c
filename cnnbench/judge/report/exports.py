"""Writes metrics in the formats of other programs, such as MLflow or Prometheus."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from cnnbench.base.escapes import dump_json, to_plain_line, to_terminal_line
from cnnbench.base.stats import ValuesByProcess, group_by
from cnnbench.base.text import boolean_text, count_text, format_interval
from cnnbench.base.values import labels_from_config
from cnnbench.judge.compare import ComparedConfiguration, Comparison
from cnnbench.judge.compare.comparability import MeasurementGroup
from cnnbench.judge.compare.configuration import Configuration, configuration_name
from cnnbench.judge.compare.estimate import usable_values
from cnnbench.judge.compare.judgement import Judgement
from cnnbench.judge.metrics.measurement import Measurement, fact_text
from cnnbench.judge.metrics.origin import Origin, origin_part_text
from cnnbench.records.codec import parse_start_time
from cnnbench.records.exports import Exported, register_export
from cnnbench.records.metric import Metric

BASE, NEW = "base", "new"

_OF_SUBJECT = ("commit", "repository")
"""Labels that are part of the origin of a measurement. Users can set them."""


@dataclass(frozen=True, kw_only=True)
class ExportedMetric:
    """One metric of one configuration, as exported to other programs: the values of all processes
    that measured the same code on the same machine.

    Attributes:
      sample: one value per process; at least one.
      started: start of the first process, in UTC.
      role: BASE or NEW if the value is from a comparison; otherwise "".
      point: if the value is from a history, the name of its point: a commit, day, run or label;
        otherwise "".
      current: whether the newest code was measured: NEW, or the last revision of a history.
    """

    metric: Metric
    sample: ValuesByProcess
    configuration: Configuration
    origin: Origin
    started: datetime
    role: str = ""
    point: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    current: bool = True
    judgement: Judgement | None = None

    @property
    def value(self) -> float:
        """Median of the metric over the processes, in the unit of the metric."""
        assert self.sample.median is not None
        return self.sample.median

    @property
    def series_name(self) -> str:
        """The name of the data series to which other programs add this metric. The name is the same
        for every commit.

        It contains the configuration's name, side A or B of an experiment, the TensorFlow version,
        the machine, and a hash that also covers all flags and the repository. It does not depend on
        the revision, the size of the network, or other metrics.
        """
        origin, parts = self.origin, self.origin.part_texts()
        shown = (
            origin_part_text(name, parts[name]) for name in ("side", "TensorFlow") if parts[name]
        )
        words = ", ".join((configuration_name(self.configuration), *shown))
        subject = (origin.side, origin.repository, origin.tensorflow, origin.machine)
        return to_plain_line(
            f"{words} on {parts['machine']} [{_short_digest(self.configuration.key, *subject)}]"
        )

    def statistics(self) -> dict[str, float]:
        """Returns the known statistics of the metric by name: the median (name ""), its interval,
        the number of processes, and the change with its interval.
        """
        low, high = self.sample.interval or (None, None)
        values = {
            "": self.value,
            "lower": low,
            "upper": high,
            "processes": float(len(self.sample.values)),
            "change": getattr(self.judgement, "change", None),
            "change_lower": getattr(self.judgement, "low", None),
            "change_upper": getattr(self.judgement, "high", None),
        }
        return {name: value for name, value in values.items() if value is not None}

    def code_and_machine_texts(self) -> dict[str, str]:
        """Returns the description of the measured code and machine, as texts by name:
        configuration, revision, TensorFlow version, machine and so on. Unknown values are left out.
        """
        origin = self.origin
        values = {
            "configuration": configuration_name(self.configuration),
            "configuration_key": self.configuration.key,
            "role": self.role,
            "point": "" if self.point == origin.revision else self.point,
            "repository": origin.repository,
            "revision": origin.revision,
            "dirty": "" if origin.dirty is None else boolean_text(origin.dirty),
            "changes": origin.changes,
            "side": origin.side,
            "tensorflow_version": origin.tensorflow,
            "machine": origin.part_texts()["machine"],
            "machine_key": _short_digest(origin.machine),
        }
        return {name: text for name, value in values.items() if (text := to_plain_line(value))}


def _short_digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def shared_labels(labels: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Returns the labels that all processes have in common. Labels such as `commit`, which are part
    of the origin, are left out.
    """
    first, *others = labels
    return {
        name: value
        for name, value in first.items()
        if name not in _OF_SUBJECT and all(other.get(name) == value for other in others)
    }


def comparison_metrics(comparison: Comparison) -> list[ExportedMetric]:
    """Returns an `ExportedMetric` for each metric, configuration and origin in BASE and in NEW.
    Those of NEW contain verdicts.
    """
    return [
        figure
        for entry in comparison.entries
        for role, records in ((BASE, entry.base), (NEW, entry.new))
        for figure in _side_figures(entry, role, records)
    ]


def _side_figures(
    entry: ComparedConfiguration, role: str, records: tuple[Measurement, ...]
) -> Iterable[ExportedMetric]:
    origins = MeasurementGroup(entry.configuration, records).by_origin()
    for origin, members in origins.items():
        good = [record for record in members if record.status == "ok"]
        for result in entry.results:
            values = usable_values(good, result.metric)
            if not values:
                continue
            yield ExportedMetric(
                metric=result.metric,
                sample=ValuesByProcess(values),
                configuration=entry.configuration,
                origin=origin,
                started=min(parse_start_time(record.started_at) for record in good),
                role=role,
                labels=shared_labels(labels_from_config(record.config) for record in good),
                current=role == NEW,
                judgement=result.judgement if role == NEW and len(origins) == 1 else None,
            )


def _newest(figures: Sequence[ExportedMetric]) -> tuple[list[ExportedMetric], str]:
    """Returns the exported metrics of the newest code, and a sentence about omitted values, or ""
    if none are omitted.

    If a measurement was repeated, only the last one is used. The sentence does not count values of
    the base of a comparison.
    """
    last = {
        _figure_key(figure): figure
        for figure in sorted(figures, key=lambda figure: figure.started)
        if figure.current
    }
    wanted = [figure for figure in figures if last.get(_figure_key(figure)) is figure]
    others = sum(figure.role != BASE for figure in figures) - len(wanted)
    if not others:
        return wanted, ""
    values = count_text(others, "other value", "other values")
    if not wanted:
        return wanted, f"the newest commit has no value; {values} left out"
    revision = wanted[0].origin.short_revision or "an unknown revision"
    return wanted, f"the format holds one commit, here {revision}; {values} left out"


def _figure_key(figure: ExportedMetric) -> tuple[str, str]:
    return figure.series_name, figure.metric.name


_LONGEST_NAME = 1024
"""Maximum number of bytes in the name of a Bencher benchmark."""

_PARAMS, _LONGEST = 100, 6000
"""Maximum number of parameters in a request to MLflow, and of characters in each parameter."""

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
    "CPUs": ("", 1.0),
}
"""Maps the unit of a metric to the base unit of OpenMetrics, and the factor for the conversion.
Other units have no base unit.
"""


@register_export("bencher")
def bencher(figures: Sequence[ExportedMetric]) -> Exported:
    """Writes metrics in the Bencher Metric Format (Bencher 0.6.12), for ``bencher run --adapter
    json``.

    Source: https://bencher.dev/docs/reference/bencher-metric-format/ and
    https://bencher.dev/bmf.json. The document maps each benchmark to its measures, and each measure
    to ``value`` and, if known, ``lower_value`` and ``upper_value``. Branch, commit and testbed are
    flags of `bencher`, so only metrics of the newest code are written. The names of measures
    contain the unit, because Bencher has its own measure "throughput", in operations per second.
    """
    wanted, left_out = _newest(figures)
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for figure in wanted:
        name = figure.series_name.encode()[:_LONGEST_NAME].decode(errors="ignore")
        measure = f"{figure.metric.name} ({figure.metric.unit})"
        ends = zip(("lower_value", "upper_value"), figure.sample.interval or (), strict=False)
        benchmarks.setdefault(name, {})[measure] = {"value": figure.value, **dict(ends)}
    return _to_json(benchmarks), left_out


@register_export("github-action-benchmark")
def github_action_benchmark(figures: Sequence[ExportedMetric]) -> Exported:
    """Writes metrics as custom JSON for the action benchmark-action/github-action-benchmark
    (v1.22).

    Source: https://github.com/benchmark-action/github-action-benchmark, README and
    ``src/extract.ts``. The document is a list of objects with ``name``, ``unit``, ``value`` and,
    optionally, ``range`` and ``extra``, which charts show unchanged. A file contains one commit and
    one direction (``tool: customBiggerIsBetter`` or ``customSmallerIsBetter``). The direction is
    that of the first metric; metrics with the opposite direction are left out.
    """
    wanted, left_out = _newest(figures)
    bigger = not wanted or wanted[0].metric.higher_is_better
    entries: list[dict[str, object]] = []
    others: dict[str, None] = {}
    for figure in wanted:
        metric = figure.metric
        if metric.higher_is_better is not bigger:
            others[metric.name] = None
            continue
        name = f"{figure.series_name}: {metric.name}"
        entry: dict[str, object] = {"name": name, "unit": metric.unit, "value": figure.value}
        if figure.sample.interval is not None:
            low, high = figure.sample.interval
            ends = format_interval(low, high, partial(metric.value_text, unit=False))
            entry["range"] = f"95 % interval {ends} {metric.unit_text}"
        lines = [
            f"{name}: {text}"
            for name, text in {**figure.code_and_machine_texts(), **figure.labels}.items()
        ]
        lines.append(f"median of {count_text(len(figure.sample.values), 'process', 'processes')}")
        judgement = figure.judgement
        if judgement is not None and judgement.change is not None:
            change = metric.change_text(judgement.change)
            lines.append(f"change from base: {change}, {judgement.verdict.word(metric)}")
        entries.append({**entry, "extra": "\n".join(lines)})
    remarks = [left_out] if left_out else []
    if others:
        remarks.append(
            f"one file supports one direction, here {'bigger' if bigger else 'smaller'} is better; "
            f"{', '.join(others)} omitted (--metrics={','.join(others)} writes them)"
        )
    return _to_json(entries), "; ".join(remarks)


@register_export("mlflow")
def mlflow(figures: Sequence[ExportedMetric]) -> Exported:
    """Writes the bodies of requests to MLflow's REST API 2.0 (MLflow 3.17), which create one MLflow
    run for each configuration and revision.

    Source: https://mlflow.org/docs/latest/rest-api.html. ``create`` is the body of ``runs/create``
    without ``experiment_id``. Each item of ``log_batch`` is a body of ``runs/log-batch`` without
    the returned ``run_id``. ``update`` is the body of ``runs/update``. docs/integrations.md has a
    loop that sends the requests. MLflow has no units, so they are tags; ends of intervals are
    metrics.
    """
    runs = group_by(
        figures, lambda figure: (figure.configuration.key, figure.role, figure.point, figure.origin)
    )
    return _to_json({"runs": [_mlflow_run(members) for members in runs.values()]}), ""


def _mlflow_run(figures: Sequence[ExportedMetric]) -> dict[str, Any]:
    first = figures[0]
    time = round(first.started.timestamp() * 1000)
    tags = {f"cnnbench.{name}": text for name, text in first.code_and_machine_texts().items()}
    tags |= {f"cnnbench.label.{name}": text for name, text in first.labels.items()}
    if first.origin.revision:
        tags["mlflow.source.git.commit"] = first.origin.revision
    for figure in figures:
        tags[f"cnnbench.unit.{figure.metric.name}"] = figure.metric.unit
        if figure.judgement is not None:
            tags[f"cnnbench.verdict.{figure.metric.name}"] = figure.judgement.verdict.word(
                figure.metric
            )
    name = ", ".join(
        filter(None, (first.series_name, first.role, first.point or first.origin.short_revision))
    )
    metrics = [
        {
            "key": ".".join(filter(None, (figure.metric.name, *part.split("_")))),
            "value": value,
            "timestamp": round(figure.started.timestamp() * 1000),
            "step": 0,
        }
        for figure in figures
        for part, value in figure.statistics().items()
    ]
    flags = first.configuration.non_default_flags
    params = _mlflow_pairs(
        {name: to_terminal_line(fact_text(value)) for name, value in flags.items()}
    )
    further = range(_PARAMS, len(params), _PARAMS)
    return {
        "create": {"run_name": name, "start_time": time, "tags": _mlflow_pairs(tags)},
        "log_batch": [
            {"metrics": metrics, "params": params[:_PARAMS]},
            *({"params": params[start : start + _PARAMS]} for start in further),
        ],
        "update": {"status": "FINISHED", "end_time": time},
    }


def _mlflow_pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": text[:_LONGEST]} for name, text in values.items()]


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""Characters that must be escaped in the texts of OpenMetrics."""


@register_export("openmetrics")
def openmetrics(figures: Sequence[ExportedMetric]) -> Exported:
    """Writes metrics as OpenMetrics 1.0 text for Prometheus, for ``promtool tsdb create-blocks-from
    openmetrics``.

    Source: https://prometheus.io/docs/specs/om/open_metrics_spec/. Each quantity is a family with
    TYPE, UNIT and HELP. Samples with the same labels are consecutive and ordered by time, and the
    text ends with ``# EOF``. Names end with the base unit. Timestamps are seconds since 1970, at
    the start of the first process. The families are gauges: median, interval, number of processes,
    and change.
    """
    metrics = {figure.metric.name: figure.metric for figure in figures}
    lines = [line for metric in metrics.values() for line in _metric_families(metric, figures)]
    return "\n".join([*lines, "# EOF"]) + "\n", ""


def _metric_families(metric: Metric, figures: Sequence[ExportedMetric]) -> Iterator[str]:
    own = [(figure, figure.statistics()) for figure in figures if figure.metric is metric]
    base, factor = _UNITS.get(metric.unit, ("", 1.0))
    name, better = metric.name, "higher" if metric.higher_is_better else "lower"
    kind = "as a share of the base" if metric.relative else "as a difference"
    for part, unit, about in (
        ("", base, f"{name}, median over processes; {better} is better"),
        ("lower", base, f"{name}, lower end of the 95 % interval of the median"),
        ("upper", base, f"{name}, upper end of the 95 % interval of the median"),
        ("processes", "", f"{name}, number of processes"),
        ("change", "ratio", f"change of {name} from base to new, {kind}"),
        ("change_lower", "ratio", f"lower end of the interval of the change of {name}"),
        ("change_upper", "ratio", f"upper end of the interval of the change of {name}"),
    ):
        scale = factor if unit == base else 1.0
        samples = [(figure, values[part] * scale) for figure, values in own if part in values]
        if not samples:
            continue
        full = "_".join(filter(None, ("cnnbench", name, part)))
        if unit and not full.endswith(f"_{unit}"):
            full += f"_{unit}"
        yield f"# TYPE {full} gauge"
        if unit:
            yield f"# UNIT {full} {unit}"
        yield f"# HELP {full} {about.translate(_ESCAPES)}"
        rows = (
            (_openmetrics_labels(figure), figure.started.timestamp(), value)
            for figure, value in samples
        )
        for labels, time, value in sorted(rows):
            yield f"{full}{{{labels}}} {value!r} {time:.3f}"


def _openmetrics_labels(figure: ExportedMetric) -> str:
    """Returns the OpenMetrics labels of an exported metric as text: NAME="TEXT", separated by
    commas. Labels that users set are named label_NAME.
    """
    labels = {
        f"label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": to_plain_line(text)
        for name, text in figure.labels.items()
    }
    judgement = figure.judgement
    if judgement is not None:
        labels["verdict"] = judgement.verdict.word(figure.metric)
    labels |= figure.code_and_machine_texts()
    return ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())


def _to_json(document: object) -> str:
    return dump_json(document, indent=1) + "\n"
