"""Time, memory and FLOPs of every layer of a step.

The times are shares of the wall time of the step, as in `cnnbench.records.step_profile`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnnbench.base.charts import Axis, DistributionRow, Rows
from cnnbench.base.charts.draw import FORMATS, render
from cnnbench.base.text.numbers import binary, number, percent
from cnnbench.base.text.table import aligned, csv_text
from cnnbench.records.files import write_bytes, write_text
from cnnbench.records.step_profile import GAPS, INPUT_OPERATIONS, REST, TO_INPUT, TO_KERNEL
from cnnbench.run.observe.operations import WallTimes
from cnnbench.run.observe.work import TOWER, Works, backward_operations, layer_of, origin

TABLES = ("txt", "csv")
"""Suffixes of files with a table; those with a plot are `cnnbench.base.charts.draw.FORMATS`."""

_TIMES = (
    "every moment of the step counts once, divided among the operations that run at it; memory and "
    "FLOPs of one device"
)
_MOST_IN_PLOT = 30
_NO_ACTIVATIONS = ("Const", "Placeholder", "ReadVariableOp", "Shape")


@dataclass(frozen=True)
class Layer:
    """One layer, or a scope without the layers inside it.

    Attributes:
      name: name as in its variables; for operations outside of any layer, their kind.
      forward_seconds, backward_seconds: share of the step's wall time, of all devices together.
      memory_bytes: outputs on one device that other layers or the backward pass use.
      flops: FLOPs of one device in one step; 0 where none are counted.
    """

    name: str
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    memory_bytes: int = 0
    flops: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward_seconds + self.backward_seconds


def layers_of(times: WallTimes, works: Works, graph: Any, flops: Mapping[str, int]) -> list[Layer]:
    """Time, memory and FLOPs by layer of a profiled step.

    The layers of `flops` (of one device, 0 for scopes without any) come first, in its order, then
    operations outside of layers by time, the rest of the step, the operations of the input
    pipeline, and the time without operations.
    """
    seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for operation, spent in times.seconds.items():
        part = works(*operation).part
        seconds[part.layer][part.direction in (TO_INPUT, TO_KERNEL)] += spent
    for part, spent in ((INPUT_OPERATIONS, times.other_seconds), (GAPS, times.idle_seconds)):
        seconds[part.layer][0] += spent
    memory = _activations(graph, flops)
    names = [name for name in flops if name]
    last = (REST, INPUT_OPERATIONS.layer, GAPS.layer)
    others = sorted(set(seconds).difference(names, last), key=lambda name: -sum(seconds[name]))
    rows = []
    for name in [*names, *others, *last]:
        ahead, behind = seconds[name]
        rows.append(Layer(name, ahead, behind, memory.get(name, 0), flops.get(name, 0)))
    return [row for row in rows if row.seconds or row.flops]


def _activations(graph: Any, scopes: Collection[str]) -> dict[str, int]:
    """Bytes of the outputs of each layer of the first tower that are used outside of it."""
    sizes: defaultdict[str, int] = defaultdict(int)
    backward = backward_operations(graph)
    for operation in graph.get_operations():
        match = TOWER.search(operation.name)
        if match is None or match[1] != "0" or operation.name in backward:
            continue
        name = layer_of(operation.name, scopes)
        for tensor in operation.outputs:
            # Of a known size, and dependent on the input, unlike weights and constants.
            keeps = origin(tensor).type not in _NO_ACTIVATIONS and tensor.shape.is_fully_defined()
            if keeps and any(
                user.name in backward or layer_of(user.name, scopes) != name
                for user in tensor.consumers()
            ):
                sizes[name] += tensor.shape.num_elements() * tensor.dtype.size
    return dict(sizes)


def write(flag: str, path: str, layers: Sequence[Layer], title: str) -> None:
    """Writes a table (suffixes `TABLES`) or draws a plot (suffixes `charts.draw.FORMATS`)."""
    suffix = Path(path).suffix.lower()[1:]
    if suffix == "csv":
        write_text(flag, path, _csv(layers))
    elif suffix in FORMATS:
        write_bytes(flag, path, render([chart(layers, title)], suffix, title))
    else:
        write_text(flag, path, table(layers, title))


def table(layers: Sequence[Layer], title: str) -> str:
    """Formats the layers as aligned text."""
    total = sum(layer.seconds for layer in layers)
    rows = [["layer", "forward ms", "backward ms", "share", "memory", "GFLOP", "GFLOP/s"]]
    for layer in layers:
        rows.append(
            [
                layer.name,
                number(layer.forward_seconds * 1e3),
                number(layer.backward_seconds * 1e3),
                percent(layer.seconds / total if total else None),
                binary(layer.memory_bytes or None),
                number(layer.flops / 1e9 if layer.flops else None),
                number(_rate(layer)),
            ]
        )
    return "\n".join([title, _TIMES, "", *aligned(rows)]) + "\n"


def chart(layers: Sequence[Layer], title: str) -> Rows:
    """The layers that take the most time, in the order of the network."""
    total = sum(layer.seconds for layer in layers)
    longest = sorted(layers, key=lambda layer: -layer.seconds)[:_MOST_IN_PLOT]
    shown = [layer for layer in layers if layer in longest]
    rows = tuple(
        DistributionRow(
            label=layer.name,
            low=0.0,
            high=layer.seconds * 1e3,
            box=(0.0, layer.forward_seconds * 1e3),
            hint=f"{number(layer.forward_seconds * 1e3)} ms forward",
            text=f"{number(layer.seconds * 1e3)} ms",
        )
        for layer in shown
    )
    note = "box: forward pass; line behind it: backward pass"
    if len(shown) < len(layers):
        share = sum(layer.seconds for layer in shown) / total if total else None
        note += f". The {len(shown)} longest of {len(layers)} rows, {percent(share)} of the time"
    return Rows(title=title, x=Axis(label="time (ms)", zero=True), rows=rows, note=note)


def _rate(layer: Layer) -> float | None:
    return layer.flops / layer.seconds / 1e9 if layer.flops and layer.seconds else None


def _csv(layers: Iterable[Layer]) -> str:
    header = ("forward_seconds", "backward_seconds", "memory_bytes", "flops")
    rows = ((one.name, *(getattr(one, name) for name in header)) for one in layers)
    return csv_text(("layer", *header), rows)
