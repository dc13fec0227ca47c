"""Predictions and validation as text; lines that are no table rows begin with ``#``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cnnbench.predict.crossovers import Range
from cnnbench.predict.fit import Fit
from cnnbench.predict.host import RATES, Host
from cnnbench.predict.network import Network
from cnnbench.predict.predict import Prediction, Workload, best
from cnnbench.predict.validate import Error, by_algorithm, distribution

TARGET = 0.15
"""Relative error that held-out points are to stay within."""


def model_lines(model: Host | Network) -> list[str]:
    """The parameters."""
    if isinstance(model, Host):
        return [
            "# fitted parameters of this machine:",
            *(f"#   {name:<10} {model.rates[name]:.3g} {unit}" for name, unit in RATES.items()),
            f"#   caches     {size_text(round(model.cache_bytes))}",
        ]
    lines = [f"# link     {model.link}"]
    if model.far_link is not None:
        lines = [
            f"# within a node of {model.per_node}:  {model.link}",
            f"# between nodes, a link per node:  {model.far_link}",
        ]
    if model.launch:
        lines.append(f"# launch   {model.launch * 1e6:.3g} us per reduction")
    return lines


def workload_lines(workload: Workload) -> list[str]:
    """What is reduced and computed."""
    step = "step time unknown: give --step_seconds or --record for efficiency"
    if workload.step_seconds is not None:
        step = (
            f"step on one device {workload.step_seconds:.6g} s, {workload.batch_size} images "
            "per device"
        )
    return [
        f"# {workload.name}: {len(workload.tensors)} gradients, {workload.bytes} bytes as "
        f"{workload.dtype}, {workload.packing}; {step}"
    ]


def time_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Milliseconds of the reduction by devices and spec, with the fastest."""
    specs = list(dict.fromkeys(p.spec for p in predictions))
    fastest = best(predictions)
    rows: list[list[str]] = [["devices", *specs, "fastest"]]
    by_devices: dict[int, dict[str, Prediction]] = {}
    for prediction in predictions:
        by_devices.setdefault(prediction.devices, {})[prediction.spec] = prediction
    for devices, cells in by_devices.items():
        name = fastest[devices].spec if devices in fastest and devices > 1 else "-"
        rows.append([str(devices), *(_ms(cells[s].seconds) for s in specs), name])
    return ["# predicted time of the reduction, ms", *_table(rows), *_reasons(predictions)]


def step_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Step time, efficiency and images per second with the fastest spec."""
    rows = [
        [
            "devices",
            "spec",
            "reduction_ms",
            "step_ms",
            "efficiency",
            "images/sec",
            "overlapped_step_ms",
            "efficiency",
            "images/sec",
        ]
    ]
    for devices, p in best(predictions).items():
        rows.append(
            [
                str(devices),
                p.spec if devices > 1 else "-",
                _ms(p.seconds),
                _ms(p.step_seconds),
                _percent(p.efficiency),
                _rate(p.images_per_sec),
                _ms(p.overlapped_step_seconds),
                _percent(p.overlapped_efficiency),
                _rate(p.overlapped_images_per_sec),
            ]
        )
    return [
        "# step with the fastest spec: without any overlap of computing and reducing, and the "
        "bound of full overlap",
        *_table(rows),
    ]


def winner_lines(by_devices: Mapping[int, Sequence[Range]]) -> list[str]:
    """Which spec is fastest for which size of one tensor."""
    rows = [["devices", "fastest by size of a single tensor, 1 KiB to 1 GiB"]]
    for devices, ranges in by_devices.items():
        parts = [
            part.spec if part.up_to is None else f"{part.spec} < {size_text(part.up_to)} <="
            for part in ranges
        ]
        rows.append([str(devices), " ".join(parts) or "-"])
    return _table(rows)


def fit_lines(fit: Fit) -> list[str]:
    """How many points were fitted, and which were not and why."""
    lines = [f"# fitted to {len(fit.used)} measured points"]
    reasons = dict.fromkeys(reason for _, reason in fit.left_out)
    for reason in reasons:
        count = sum(reason == other for _, other in fit.left_out)
        lines.append(f"# {count} left out: {reason}")
    return lines


def validation_lines(title: str, errors: Sequence[Error]) -> list[str]:
    """Distribution of the errors by algorithm and over all."""
    if not errors:
        return [f"# {title}: not possible, there is only one"]
    rows = [["spec", "points", "median", "p90", "worst", "within 15 %", "worst point"]]
    groups: list[tuple[str, Sequence[Error]]] = list(by_algorithm(errors).items())
    for name, group in [*groups, ("all", errors)]:
        found = distribution(group)
        within = sum(abs(error.relative) <= TARGET for error in group)
        rows.append(
            [
                name,
                str(found.count),
                _percent(found.median),
                _percent(found.p90),
                _percent(found.worst),
                _percent(within / found.count),
                str(found.worst_point).partition(": ")[2],
            ]
        )
    return [f"# {title}: error of the prediction, relative to the measured time", *_table(rows)]


def size_text(size: int) -> str:
    """Bytes in the unit that keeps the number below 1024, with three digits."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1023.5:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def _reasons(predictions: Iterable[Prediction]) -> list[str]:
    """One line for each spec that has no prediction anywhere or somewhere."""
    found: dict[tuple[str, str], list[int]] = {}
    for prediction in predictions:
        if prediction.reason is not None:
            found.setdefault((prediction.spec, prediction.reason), []).append(prediction.devices)
    return [
        f"# not predicted: {spec} on {', '.join(map(str, devices))} devices: {reason}"
        for (spec, reason), devices in found.items()
    ]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Right-aligned columns, the last one left-aligned; the header behind a ``#``."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for number, row in enumerate(rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[-1] = row[-1] if not _is_numeric(rows, -1) else cells[-1]
        lines.append(("# " if number == 0 else "  ") + "  ".join(cells).rstrip())
    return lines


def _is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    return all(row[column][:1].isdigit() or row[column] == "-" for row in rows[1:])


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _rate(images: float | None) -> str:
    return "-" if images is None else f"{images:.1f}"
