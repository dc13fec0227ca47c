"""Time, memory and FLOPs of every layer in a step, as a table or a plot (--profile_layers)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cnnbench.base.charts import Axis, DistributionRow, RowChart
from cnnbench.base.charts.draw import FORMATS, render_chart_file
from cnnbench.base.tables import align_table, csv_text
from cnnbench.base.text import billions, format_bytes, milliseconds, percent
from cnnbench.records.files import write_bytes, write_text
from cnnbench.records.profiles import GAPS, INPUT_OPERATIONS, REST, TO_INPUT, TO_KERNEL
from cnnbench.run.observe.operations import WallTimes
from cnnbench.run.observe.work import (
    TOWER,
    OperationWorkFinder,
    find_backward_operations,
    find_original_operation,
    layer_of_operation,
)

SUFFIXES = ("txt", "csv", *FORMATS)
"""Suffixes of files with a table (txt, csv) or a plot."""

_TIMES = (
    "the wall time of the step is divided among the operations that run at each moment; memory and "
    "FLOPs are those of one device"
)
_MOST_IN_PLOT = 30
_NO_ACTIVATIONS = ("Const", "Placeholder", "ReadVariableOp", "Shape")


class Layer(NamedTuple):
    """Time, memory and FLOPs of one layer in a step, or of a scope without the layers inside it.

    Attributes:
      name: name as in the layer's variables. For operations outside of layers, their kind.
      forward_seconds, backward_seconds: shares of the step's wall time, of all devices together.
      memory_bytes: bytes of outputs on one device that other layers or the backward pass use.
      flops: FLOPs of one device in one step; 0 for layers without counted FLOPs.
    """

    name: str
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    memory_bytes: int = 0
    flops: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of the forward and the backward pass together."""
        return self.forward_seconds + self.backward_seconds


def layers_of_step(
    times: WallTimes, work_finder: OperationWorkFinder, graph: Any, flops: Mapping[str, int]
) -> list[Layer]:
    """Computes time, memory and FLOPs of a profiled step, by layer.

    The layers in `flops` (FLOPs of one device, 0 for scopes without FLOPs) come first, in the order
    of `flops`. Then follow operations outside of layers (sorted by time), the rest of the step,
    operations of the input pipeline, and time without operations.
    """
    seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for operation, spent in times.seconds.items():
        part = work_finder(*operation).part
        seconds[part.layer][part.direction in (TO_INPUT, TO_KERNEL)] += spent
    for part, spent in ((INPUT_OPERATIONS, times.other_seconds), (GAPS, times.idle_seconds)):
        seconds[part.layer][0] += spent
    memory = _activation_bytes(graph, flops)
    names = [name for name in flops if name]
    last = (REST, INPUT_OPERATIONS.layer, GAPS.layer)
    outside = sorted(set(seconds).difference(names, last), key=lambda name: -sum(seconds[name]))
    rows = []
    for name in [*names, *outside, *last]:
        ahead, behind = seconds[name]
        rows.append(Layer(name, ahead, behind, memory.get(name, 0), flops.get(name, 0)))
    return [row for row in rows if row.seconds or row.flops]


def _activation_bytes(graph: Any, scopes: Collection[str]) -> dict[str, int]:
    """Bytes of each layer's outputs that other layers or the backward pass use, in tower 0."""
    sizes: defaultdict[str, int] = defaultdict(int)
    backward = find_backward_operations(graph)
    for operation in graph.get_operations():
        match = TOWER.search(operation.name)
        if match is None or match[1] != "0" or operation.name in backward:
            continue
        name = layer_of_operation(operation.name, scopes)
        for tensor in operation.outputs:
            # Weights, constants and tensors of unknown size are not counted as activations.
            keeps = (
                find_original_operation(tensor).type not in _NO_ACTIVATIONS
                and tensor.shape.is_fully_defined()
            )
            if keeps and any(
                user.name in backward or layer_of_operation(user.name, scopes) != name
                for user in tensor.consumers()
            ):
                sizes[name] += tensor.shape.num_elements() * tensor.dtype.size
    return dict(sizes)


def write_layers(flag: str, path: str, layers: Sequence[Layer], title: str) -> None:
    """Writes the layers as a table or a plot, depending on the suffix of the path (`SUFFIXES`)."""
    suffix = Path(path).suffix.lower()[1:]
    if suffix == "csv":
        columns = ("forward_seconds", "backward_seconds", "memory_bytes", "flops")
        rows = ((layer.name, *(getattr(layer, name) for name in columns)) for layer in layers)
        write_text(flag, path, csv_text(("layer", *columns), rows))
    elif suffix in FORMATS:
        write_bytes(flag, path, render_chart_file([layer_chart(layers, title)], suffix, title))
    else:
        write_text(flag, path, layer_table(layers, title))


def layer_table(layers: Sequence[Layer], title: str) -> str:
    """Formats the layers as a table of aligned text."""
    total = sum(layer.seconds for layer in layers)
    rows = [["layer", "forward ms", "backward ms", "share", "memory", "GFLOP", "GFLOP/s"]]
    for layer in layers:
        timed = layer.flops and layer.seconds
        rows.append(
            [
                layer.name,
                milliseconds(layer.forward_seconds),
                milliseconds(layer.backward_seconds),
                percent(layer.seconds / total if total else None),
                format_bytes(layer.memory_bytes or None),
                billions(layer.flops or None),
                billions(layer.flops / layer.seconds if timed else None),
            ]
        )
    return "\n".join([title, _TIMES, "", *align_table(rows)]) + "\n"


def layer_chart(layers: Sequence[Layer], title: str) -> RowChart:
    """Creates a chart of the layers that take the most time, in the order of the network."""
    total = sum(layer.seconds for layer in layers)
    longest = sorted(layers, key=lambda layer: -layer.seconds)[:_MOST_IN_PLOT]
    shown = [layer for layer in layers if layer in longest]
    rows = tuple(
        DistributionRow(
            label=layer.name,
            low=0.0,
            high=layer.seconds * 1e3,
            box=(0.0, layer.forward_seconds * 1e3),
            hint=f"{milliseconds(layer.forward_seconds)} ms forward",
            text=f"{milliseconds(layer.seconds)} ms",
        )
        for layer in shown
    )
    note = "box: forward pass; line behind it: backward pass"
    if len(shown) < len(layers):
        share = sum(layer.seconds for layer in shown) / total if total else None
        note += f". The {len(shown)} longest of {len(layers)} rows, {percent(share)} of the time"
    return RowChart(title=title, x=Axis(label="time (ms)", zero=True), rows=rows, note=note)
