"""Curves of predictions as SVG, PNG or PDF; matplotlib is imported when they are drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cnnbench.errors import FlagError
from cnnbench.predict.fit import CostModel
from cnnbench.predict.points import MeasuredReduction
from cnnbench.predict.predict import Prediction
from cnnbench.predict.workload import NotPredictedError, Tensor, TrainingStep
from cnnbench.records.files import resolve_output, write_whole
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec

_FLAG = "plot"
# Without a date, equal predictions give equal files.
_METADATA: dict[str, dict[str, None]] = {
    ".svg": {"Date": None},
    ".png": {},
    ".pdf": {"CreationDate": None},
}
_SMALLEST, _LARGEST = 1024, 1024**3
_POINTS_PER_CURVE = 41

# Curves differ in marker and dashes as well as in colour (Okabe and Ito's palette).
_MARKERS = "os^Dv<>PX*hp"
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (6, 2)))
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def prepare(path: str) -> None:
    """Checks that the file can be written.

    Raises:
      FlagError: an unknown suffix, or the path cannot be written.
    """
    if Path(path).suffix.lower() not in _METADATA:
        raise FlagError(_FLAG, path, f"must end in {', '.join(_METADATA)}")
    resolve_output(_FLAG, path)


def draw(
    path: str,
    model: CostModel,
    specs: Sequence[AllReduceSpec],
    step: TrainingStep,
    predictions: Sequence[Prediction],
    devices: int,
    points: Sequence[MeasuredReduction] = (),
) -> None:
    """Draws time over size on some devices, and efficiency (or time) over devices.

    Args:
      path: an .svg, .png or .pdf file.
      model: predicts the curves.
      specs: a curve each.
      step: of the predictions.
      predictions: for the second axes.
      devices: of the first axes.
      points: measured; those of single tensors on so many devices are drawn as marks.

    Raises:
      OSError: the file could not be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    suffix = Path(path).suffix.lower()
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "cnnbench", "svg.fonttype": "none"}):
        figure = Figure(figsize=(14, 5.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        _over_size(left, model, specs, devices, points)
        _over_devices(right, step, predictions)
        # One legend for both, beside them: the curves fill the axes.
        entries: dict[str, Any] = {}
        for axes in (left, right):
            axes.grid(True, which="major", linewidth=0.4, alpha=0.6)
            handles, labels = axes.get_legend_handles_labels()
            entries = dict(zip(labels, handles, strict=True)) | entries
        if entries:
            figure.legend(entries.values(), entries.keys(), loc="outside right center")
        figure.suptitle(f"All-reduce of {step.model}: cost model of cnnbench")
        figure.savefig(buffer, format=suffix[1:], metadata=_METADATA[suffix], dpi=120)
    write_whole(resolve_output(_FLAG, path), buffer.getvalue())


def style(index: int) -> dict[str, Any]:
    """Marker, dashes and colour of curve `index`; the first twelve have different markers."""
    return {
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "color": _COLOURS[index % len(_COLOURS)],
        "markevery": 4,
        "markersize": 5,
        "linewidth": 1.3,
    }


def _over_size(
    axes: Any,
    model: CostModel,
    specs: Sequence[AllReduceSpec],
    devices: int,
    points: Sequence[MeasuredReduction],
) -> None:
    measured = [
        p for p in points if p.devices == devices and len(p.tensors) == 1 and not p.packing.joins
    ]
    for index, spec in enumerate(specs):
        curve = _curve(model, spec, devices)
        if not curve:
            continue
        styled = style(index)
        axes.plot(*zip(*curve, strict=True), label=str(spec), **styled)
        marks = [(p.bytes, p.seconds) for p in measured if p.spec == spec]
        if marks:
            axes.plot(
                *zip(*marks, strict=True),
                linestyle="none",
                marker=styled["marker"],
                markerfacecolor="none",
                markeredgecolor=styled["color"],
                markersize=9,
                label=f"{spec}, measured",
            )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="size of one tensor (bytes)",
        ylabel="time of the reduction (s)",
        title=f"one tensor on {devices} devices",
    )


def _curve(model: CostModel, spec: AllReduceSpec, devices: int) -> list[tuple[float, float]]:
    curve: list[tuple[float, float]] = []
    for index in range(_POINTS_PER_CURVE):
        size = _SMALLEST * (_LARGEST / _SMALLEST) ** (index / (_POINTS_PER_CURVE - 1))
        tensor = Tensor(round(size / 4))
        try:
            curve.append((tensor.bytes, model.seconds(spec, (tensor,), devices, Packing())))
        except NotPredictedError:
            return []
    return curve


def _over_devices(axes: Any, step: TrainingStep, predictions: Sequence[Prediction]) -> None:
    efficiency = step.step_seconds is not None
    for index, spec in enumerate(dict.fromkeys(p.spec for p in predictions)):
        curve = [
            (p.devices, p.efficiency if efficiency else p.allreduce_seconds)
            for p in predictions
            if p.spec == spec and p.allreduce_seconds is not None and p.devices > 1
        ]
        if curve:
            axes.plot(*zip(*curve, strict=True), label=spec, **{**style(index), "markevery": 1})
    axes.set(xlabel="devices")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    if efficiency:
        axes.set(
            ylim=(0, 1.05),
            ylabel="scaling efficiency (share of the step that computes)",
            title=f"{step.model}, {step.batch_size} images per device, no overlap",
        )
    else:
        axes.set(yscale="log", ylabel="time of the reduction (s)", title=step.model)
