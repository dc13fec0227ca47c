"""Predictions as printed text; lines other than table rows begin with ``#``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cnnbench.base.text.numbers import NONE, binary, number, percent
from cnnbench.base.text.table import fitted_rows, parts
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.predict import FastestByDevices, fastest
from cnnbench.lab.predict.workload import TrainingStep, packing_text
from cnnbench.records.prediction import Prediction


def model_lines(model: Interconnect) -> list[str]:
    """The parameters."""
    if model.inter_link is None:
        return [f"# link     {model.link}"]
    return [
        f"# within a node of {model.devices_per_node}:  {model.link}",
        f"# between nodes, a link per node:  {model.inter_link}",
    ]


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
        "# predicted step with the fastest spec: without overlap, and the bound of full overlap",
        *_table(table),
    ]


def fastest_lines(by_devices: Sequence[FastestByDevices]) -> list[str]:
    """Which spec is fastest for which size of one tensor."""
    table = [["devices", "fastest by size of a single tensor, 1 KiB to 1 GiB"]]
    for one in by_devices:
        parts = [
            part.spec if part.up_to is None else f"{part.spec} < {binary(part.up_to)} <="
            for part in one.ranges
        ]
        table.append([str(one.devices), " ".join(parts) or NONE])
    return _table(table, -1)


def _table(rows: Sequence[Sequence[str]], *left: int) -> list[str]:
    head, *body = fitted_rows(rows, left, indent=2)
    lines = [f"# {line}" for line in head]
    return lines + [f"  {line}" for one in body for line in one]


def _reasons(predictions: Iterable[Prediction]) -> list[str]:
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
