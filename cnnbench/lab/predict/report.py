"""Predictions and validation as printed text, and in --result_json and --result_csv.

Printed lines that are no table rows begin with ``#``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cnnbench.base.text.numbers import NONE, binary, number, percent
from cnnbench.base.text.table import fitted_rows, parts
from cnnbench.lab.predict.document import (
    COLUMNS,
    FastestByDevices,
    HostParameters,
    NetworkParameters,
    PredictionDocument,
    PredictionRow,
    ResidualDocument,
)
from cnnbench.lab.predict.fit import CostModel, Fit, Residual, by_algorithm, distribution
from cnnbench.lab.predict.host import RATES, Host
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.predict import FastestRange, Prediction, fastest
from cnnbench.lab.predict.workload import TrainingStep, packing_text
from cnnbench.records.result_files import CsvTable

TARGET = 0.15
"""Relative error that held-out points are to stay within."""

TABLE = CsvTable("result_csv", COLUMNS, PredictionDocument.schema)


@dataclass(frozen=True)
class PredictionReport:
    """What one command predicted.

    Attributes:
      model: predicted.
      step: what was predicted.
      predictions: a row each.
      fastest: fastest specs by size, for each number of devices.
      validation: residuals by what was held out.
    """

    model: CostModel
    step: TrainingStep
    predictions: Sequence[Prediction]
    fastest: Mapping[int, Sequence[FastestRange]]
    validation: Mapping[str, Sequence[Residual]]

    def rows(self) -> list[PredictionRow]:
        """The values of every prediction."""
        step, model = self.step, self.model
        return [
            PredictionRow(
                model=step.model,
                bytes=step.bytes,
                gradients=len(step.tensors),
                dtype=step.dtype,
                packing=packing_text(step.packing),
                parameters="fitted" if isinstance(model, Host) else _link_names(model),
                devices=one.devices,
                spec=one.spec,
                allreduce_seconds=one.allreduce_seconds,
                compute_seconds=one.compute_seconds,
                step_seconds=one.step_seconds,
                efficiency=one.efficiency,
                images_per_sec=one.images_per_sec,
                overlapped_step_seconds=one.overlapped_step_seconds,
                overlapped_efficiency=one.overlapped_efficiency,
                overlapped_images_per_sec=one.overlapped_images_per_sec,
                not_predicted=one.not_predicted,
            )
            for one in self.predictions
        ]

    def table_rows(self) -> list[dict[str, Any]]:
        """The same by column of the table."""
        return [asdict(row) for row in self.rows()]

    def to_json(self) -> str:
        """The document of --result_json."""
        return PredictionDocument(
            model=self.step.model,
            parameters=_parameters(self.model),
            rows=tuple(self.rows()),
            fastest=tuple(
                FastestByDevices(devices=devices, ranges=tuple(ranges))
                for devices, ranges in self.fastest.items()
            ),
            validation={
                name: tuple(map(_residual, residuals))
                for name, residuals in self.validation.items()
            },
        ).to_json()


def model_lines(model: CostModel) -> list[str]:
    """The parameters."""
    if isinstance(model, Host):
        return [
            "# fitted parameters of this machine:",
            *(f"#   {name:<10} {number(model.rates[name])} {unit}" for name, unit in RATES.items()),
            f"#   caches     {binary(model.cache_bytes)}",
        ]
    lines = [f"# link     {model.link}"]
    if model.far_link is not None:
        lines = [
            f"# within a node of {model.per_node}:  {model.link}",
            f"# between nodes, a link per node:  {model.far_link}",
        ]
    if model.launch:
        lines.append(f"# launch   {number(model.launch * 1e6)} us per reduction")
    return lines


def step_line(step: TrainingStep) -> str:
    """What is reduced and computed."""
    time = "step time unknown: give --step_seconds or --record for efficiency"
    if step.step_seconds is not None:
        time = (
            f"step on one device {number(step.step_seconds)} s, {step.batch_size} images per device"
        )
    return (
        f"# {step.model}: {len(step.tensors)} gradients, {step.bytes} bytes as {step.dtype}, "
        f"{packing_text(step.packing)}; {time}"
    )


def time_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Milliseconds of the reduction by devices and spec, with the fastest."""
    specs = list(dict.fromkeys(p.spec for p in predictions))
    cells = {(p.devices, p.spec): _ms(p.allreduce_seconds) for p in predictions}
    best = fastest(predictions)
    table = [["devices", *specs, "fastest"]]
    for devices in dict.fromkeys(p.devices for p in predictions):
        name = best[devices].spec if devices in best and devices > 1 else NONE
        table.append([str(devices), *(cells[devices, spec] for spec in specs), name])
    lines = ["# predicted time of the reduction, ms"]
    for part in parts(table, indent=2):
        lines += _table(part, *((-1,) if part[0][-1] == "fastest" else ()))
    return [*lines, *_reasons(predictions)]


def step_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Step time, efficiency and images per second with the fastest spec."""
    speed = ("efficiency", "images/sec")
    table = [["devices", "spec", "reduction_ms", "step_ms", *speed, "overlapped step_ms", *speed]]
    table += [
        [
            str(devices),
            p.spec if devices > 1 else NONE,
            _ms(p.allreduce_seconds),
            _ms(p.step_seconds),
            percent(p.efficiency),
            number(p.images_per_sec),
            _ms(p.overlapped_step_seconds),
            percent(p.overlapped_efficiency),
            number(p.overlapped_images_per_sec),
        ]
        for devices, p in fastest(predictions).items()
    ]
    return [
        "# step with the fastest spec: no overlap of computing and reducing, and the bound of full "
        "overlap",
        *_table(table),
    ]


def fastest_lines(by_devices: Mapping[int, Sequence[FastestRange]]) -> list[str]:
    """Which spec is fastest for which size of one tensor."""
    table = [["devices", "fastest by size of a single tensor, 1 KiB to 1 GiB"]]
    for devices, ranges in by_devices.items():
        parts = [
            part.spec if part.up_to is None else f"{part.spec} < {binary(part.up_to)} <="
            for part in ranges
        ]
        table.append([str(devices), " ".join(parts) or NONE])
    return _table(table, -1)


def fit_lines(fit: Fit) -> list[str]:
    """How many points were fitted, and which were not and why."""
    lines = [f"# fitted to {len(fit.used)} measured points"]
    reasons = [reason for _, reason in fit.left_out]
    return lines + [
        f"# {reasons.count(reason)} left out: {reason}" for reason in dict.fromkeys(reasons)
    ]


def validation_lines(title: str, residuals: Sequence[Residual]) -> list[str]:
    """Distribution of the errors by algorithm and over all.

    Args:
      title: what was held out.
      residuals: of all points; none if there was only one group.
    """
    if not residuals:
        return [f"# {title}: not possible, there is only one"]
    table = [["spec", "points", "median", "p90", "worst", "within 15 %", "worst point"]]
    for name, group in {**by_algorithm(residuals), "all": residuals}.items():
        found = distribution(group)
        within = sum(abs(residual.relative) <= TARGET for residual in group)
        shares = (found.median, found.p90, found.worst, within / found.count)
        worst = str(found.worst_point).partition(": ")[2]
        table.append([name, str(found.count), *map(percent, shares), worst])
    return [
        f"# {title}: error of the prediction, relative to the measured time",
        *_table(table, -1),
    ]


def _table(rows: Sequence[Sequence[str]], *left: int) -> list[str]:
    """Aligned rows, the header behind a ``#``."""
    head, *body = fitted_rows(rows, left, indent=2)
    lines = [f"# {line}" for line in head]
    return lines + [f"  {line}" for one in body for line in one]


def _reasons(predictions: Iterable[Prediction]) -> list[str]:
    """One line for each spec that has no prediction on some number of devices."""
    found: dict[tuple[str, str], list[str]] = {}
    for p in predictions:
        if p.not_predicted is not None:
            found.setdefault((p.spec, p.not_predicted), []).append(str(p.devices))
    return [
        f"# not predicted: {spec} on {', '.join(devices)} devices: {reason}"
        for (spec, reason), devices in found.items()
    ]


def _ms(seconds: float | None) -> str:
    return number(None if seconds is None else seconds * 1e3)


def _link_names(model: Interconnect) -> str:
    if model.far_link is None:
        return model.link.name
    return f"{model.per_node} x {model.link.name} + {model.far_link.name}"


def _parameters(model: CostModel) -> HostParameters | NetworkParameters:
    if isinstance(model, Host):
        return HostParameters(**vars(model))
    return NetworkParameters(
        link=model.link,
        inter_link=model.far_link,
        devices_per_node=model.per_node,
        launch=model.launch,
    )


def _residual(residual: Residual) -> ResidualDocument:
    point = residual.point
    return ResidualDocument(
        spec=str(point.spec),
        packing=packing_text(point.packing),
        bytes=point.bytes,
        tensors=len(point.tensors),
        devices=point.devices,
        measured_seconds=point.seconds,
        predicted_seconds=residual.predicted,
        relative_error=residual.relative,
    )
