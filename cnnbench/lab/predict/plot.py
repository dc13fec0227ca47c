"""Charts of predictions as SVG, PNG or PDF."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cnnbench.base.charts import HIGHER, LOWER, Axis, ChartSeries, Lines
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.workload import NotPredictedError, Tensor, TrainingStep
from cnnbench.records.files import write_bytes
from cnnbench.records.prediction import Prediction
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec

SUFFIXES = (".svg", ".png", ".pdf")
_SMALLEST, _LARGEST = 1024, 1024**3
_POINTS_PER_CURVE = 41
_TIME = Axis(label="time of the reduction (s)", log=True, better=LOWER)


def draw(
    path: str,
    model: Interconnect,
    specs: Sequence[AllReduceSpec],
    step: TrainingStep,
    predictions: Sequence[Prediction],
    devices: int,
) -> None:
    """Draws time over size on `devices`, and below it efficiency (or time) over devices.

    Writes an .svg, .png or .pdf file. A spec has the same colour and mark in both charts.
    """
    from cnnbench.base.charts.draw import render

    charts = (_over_size(model, specs, devices), _over_devices(step, predictions))
    label = f"All-reduce of {step.model}: cost model of cnnbench"
    write_bytes("plot", path, render(charts, Path(path).suffix.lower()[1:], label))


def _over_size(model: Interconnect, specs: Sequence[AllReduceSpec], devices: int) -> Lines:
    curves = [_curve(model, spec, devices) for spec in specs]
    return Lines(
        title=f"Prediction of one tensor on {devices} devices",
        x=Axis(label="size of one tensor", format="bytes", log=True, base=2),
        y=_TIME,
        series=tuple(
            ChartSeries(name=str(spec), points=tuple(curve), marks=False, style=style)
            for style, (spec, curve) in enumerate(zip(specs, curves, strict=True))
            if curve
        ),
    )


def _curve(model: Interconnect, spec: AllReduceSpec, devices: int) -> list[tuple[float, float]]:
    curve: list[tuple[float, float]] = []
    for index in range(_POINTS_PER_CURVE):
        size = _SMALLEST * (_LARGEST / _SMALLEST) ** (index / (_POINTS_PER_CURVE - 1))
        tensor = Tensor(round(size / 4))
        try:
            seconds = model.seconds(spec, (tensor,), devices, Packing())
        except NotPredictedError:
            return []
        if seconds > 0:  # the axis is logarithmic
            curve.append((float(tensor.bytes), seconds))
    return curve


def _over_devices(step: TrainingStep, predictions: Sequence[Prediction]) -> Lines:
    efficiency = step.step_seconds is not None
    series = []
    for style, spec in enumerate(dict.fromkeys(p.spec for p in predictions)):
        curve = [
            (float(p.devices), value)
            for p in predictions
            if p.spec == spec and p.devices > 1
            if (value := p.efficiency if efficiency else p.allreduce_seconds)
        ]
        if curve:
            series.append(ChartSeries(name=spec, points=tuple(curve), style=style))
    title = f"Prediction of {step.model}"
    if efficiency:
        title += f", {step.batch_size} images per device, no overlap"
    share = Axis(label="scaling efficiency", format="percent", zero=True, better=HIGHER)
    return Lines(
        title=title,
        x=Axis(label="devices", log=True, base=2),
        y=share if efficiency else _TIME,
        series=tuple(series),
    )
