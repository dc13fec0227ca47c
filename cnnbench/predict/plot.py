"""Curves of predictions, as SVG or PNG; matplotlib is imported when one is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cnnbench.errors import FlagError
from cnnbench.predict.fit import CostModel
from cnnbench.predict.network import NotPredictedError
from cnnbench.predict.packing import Packing
from cnnbench.predict.points import Point
from cnnbench.predict.predict import Prediction, Workload
from cnnbench.predict.tensor import Tensor
from cnnbench.records.files import resolve_output, write_whole
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec

_FLAG = "plot"
_FORMATS = (".svg", ".png")
_SMALLEST, _LARGEST = 1024, 1024**3
_POINTS_PER_CURVE = 41

# Told apart by marker and dashes as well as by colour (Okabe and Ito's, for colour-blind eyes).
_MARKERS = "os^Dv<>PX*hp"
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (6, 2)))
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def prepare(path: str) -> None:
    """Proves that the file can be written.

    Raises:
      FlagError: another suffix than .svg or .png, or the path cannot be written.
    """
    if Path(path).suffix.lower() not in _FORMATS:
        raise FlagError(_FLAG, path, f"must end in {' or '.join(_FORMATS)}")
    resolve_output(_FLAG, path)


def draw(
    path: str,
    model: CostModel,
    specs: Sequence[AllReduceSpec],
    workload: Workload,
    predictions: Sequence[Prediction],
    devices: int,
    points: Sequence[Point] = (),
) -> None:
    """Draws time over size on some devices, and efficiency (or time) over devices.

    Args:
      path: an .svg or .png file.
      model: predicts the curves.
      specs: a curve each.
      workload: of the predictions.
      predictions: for the second picture.
      devices: of the first picture.
      points: measured; those of single tensors on so many devices are drawn as marks.

    Raises:
      OSError: the file could not be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    # The same bytes for the same predictions; text stays text.
    matplotlib.rcParams["svg.hashsalt"] = "cnnbench"
    matplotlib.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(14, 5.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _over_size(left, model, specs, devices, points)
    _over_devices(right, workload, predictions)
    # One legend for both, beside them: curves fill the pictures.
    entries: dict[str, Any] = {}
    for axes in (left, right):
        handles, labels = axes.get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True)) | entries
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside right center")
    figure.suptitle(f"All-reduce of {workload.name}: cost model of cnnbench")
    suffix = Path(path).suffix.lower().lstrip(".")
    buffer = io.BytesIO()
    metadata = {"Date": None} if suffix == "svg" else None
    figure.savefig(buffer, format=suffix, metadata=metadata, dpi=120)
    write_whole(resolve_output(_FLAG, path), buffer.getvalue())


def style(index: int) -> dict[str, Any]:
    """Marker, dashes and colour of curve `index`; no two of the first twelve share a marker."""
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
    points: Sequence[Point],
) -> None:
    measured = [
        p for p in points if p.devices == devices and len(p.tensors) == 1 and not p.packing.packs
    ]
    for index, spec in enumerate(specs):
        curve = _curve(model, spec, devices)
        if not curve:
            continue
        look = style(index)
        axes.plot(*zip(*curve, strict=True), label=str(spec), **look)
        mine = [(p.bytes, p.seconds) for p in measured if p.spec == spec]
        if mine:
            axes.plot(
                *zip(*mine, strict=True),
                linestyle="none",
                marker=look["marker"],
                markerfacecolor="none",
                markeredgecolor=look["color"],
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
    _grid(axes)


def _curve(model: CostModel, spec: AllReduceSpec, devices: int) -> list[tuple[float, float]]:
    curve: list[tuple[float, float]] = []
    for step in range(_POINTS_PER_CURVE):
        size = _SMALLEST * (_LARGEST / _SMALLEST) ** (step / (_POINTS_PER_CURVE - 1))
        tensor = Tensor(round(size / 4), 4)
        try:
            curve.append((tensor.bytes, model.seconds(spec, (tensor,), devices, Packing())))
        except NotPredictedError:
            return []
    return curve


def _over_devices(axes: Any, workload: Workload, predictions: Sequence[Prediction]) -> None:
    efficiency = workload.step_seconds is not None
    names = list(dict.fromkeys(p.spec for p in predictions))
    for index, name in enumerate(names):
        curve = [
            (p.devices, p.efficiency if efficiency else p.seconds)
            for p in predictions
            if p.spec == name and p.seconds is not None and p.devices > 1
        ]
        if curve:
            axes.plot(*zip(*curve, strict=True), label=name, **{**style(index), "markevery": 1})
    axes.set(xlabel="devices")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    if efficiency:
        axes.set(
            ylim=(0, 1.05),
            ylabel="scaling efficiency (share of the step that computes)",
            title=f"{workload.name}, {workload.batch_size} images per device, no overlap",
        )
    else:
        axes.set(yscale="log", ylabel="time of the reduction (s)", title=workload.name)
    _grid(axes)


def _grid(axes: Any) -> None:
    axes.grid(True, which="major", linewidth=0.4, alpha=0.6)
