"""Implements ``cnnbench allreduce --predict``: prints and draws predictions of all-reduce times.

Printed lines begin with ``#``, except for rows of tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cnnbench.base import plugins
from cnnbench.base.charts import HIGHER, LOWER, Axis, ChartSeries, LineChart
from cnnbench.base.document import (
    Content,
    Paragraph,
    Row,
    Table,
    TableCell,
    make_table,
    numeric_cell,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.stats import group_by
from cnnbench.base.tables import split_table
from cnnbench.base.terminal import print_result, print_warning
from cnnbench.base.text import format_bytes, number
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags import FlagSpec, flag, specs_of
from cnnbench.flags.groups.all_reduce import (
    AllReduceParams,
    packing_combinations,
    params_from_values,
    parse_all_reduce_specs,
)
from cnnbench.lab.predict.predict import (
    COLUMNS,
    LARGEST_DOMAIN,
    FastestByDevices,
    Interconnect,
    NotPredictedError,
    PredictionDocument,
    TrainingStep,
    fastest_by_size,
    gradient_tensors,
    packing_text,
    parse_link,
    predict_all,
)
from cnnbench.plan import model_gradients
from cnnbench.records.all_reduce import Prediction
from cnnbench.records.files import PICTURES, OutputFile, write_plot
from cnnbench.records.load import load_run
from cnnbench.records.result_files import CsvTable, ResultFiles
from cnnbench.variable_mgr.all_reduce.cost import Tensor
from cnnbench.variable_mgr.all_reduce.registry import cost_formulas, declarations
from cnnbench.variable_mgr.all_reduce.sizes import DTYPE_BYTES
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, parse_all_reduce_spec
from cnnbench.variable_mgr.packing import Packing

_DEFAULT_MODEL = "resnet50"
_MOST_DEVICES = 1_000_000
_TABLE = CsvTable(COLUMNS, PredictionDocument.schema)


@dataclass(frozen=True, kw_only=True)
class PredictParams:
    """Flags of ``cnnbench allreduce --predict``: links, devices, and the training step."""

    predict: bool = flag(
        False,
        "Measure nothing. Predict with a cost model how the time of reducing the gradients of "
        "--model grows with the number of devices. Needs --link.",
    )
    devices: str = flag(
        "8..16384",
        "Numbers of devices of the prediction, such as 8,12,16, or 8..1024 for 8, 16, 32, ..., "
        "1024.",
    )
    link: str | None = flag(
        None,
        "Link of every device: a preset such as nvlink3, pcie4, tcp100, roce100 or hdr; "
        "alpha=SECONDS,bandwidth=BYTES_PER_SECOND[,gamma=SECONDS_PER_ADDED_BYTE]; or a preset "
        "with changed values, as in hdr,alpha=5e-6.",
    )
    inter_link: str | None = flag(
        None,
        "Link between nodes, which all devices of a node share, in the form of --link. With this "
        "flag, --link is the link within a node.",
    )
    devices_per_node: int = flag(
        8,
        "With --inter_link: number of consecutive devices that form a node.",
        minimum=1,
    )
    step_seconds: float | None = flag(
        None, "Time of a training step on one device, without any reduction.", above=0
    )
    record: str | None = flag(
        None,
        "Run record of one device, from which the mean step time and the batch size are read.",
        path="file",
    )
    batch_size: int | None = flag(
        None,
        "Images per device and step. If not given or 0: the batch size of --record or of --model.",
        minimum=0,
    )
    plot: str | None = flag(
        None,
        "Draw predictions into this .svg, .png or .pdf file.",
        path="file",
    )
    plot_devices: int | None = flag(
        None,
        "Number of devices in the plot of time over size. If not given, the largest number in "
        "--devices.",
        minimum=2,
    )


PREDICT_FLAGS: tuple[FlagSpec, ...] = specs_of(PredictParams)

_NEEDS = {
    "devices_per_node": ("inter_link",),
    "batch_size": ("step_seconds", "record"),
    "plot_devices": ("plot",),
}
"""Flags that have no effect without one of other flags."""


def main(values: Mapping[str, Any]) -> int:
    """Runs ``cnnbench allreduce --predict``: prints predictions and writes the requested files.

    `values` contains the values of `PREDICT_FLAGS`, and of the flags of ``cnnbench allreduce`` for
    tensors and packing (at most one).
    """
    params = PredictParams(**{s.name: values[s.name] for s in PREDICT_FLAGS if s.name in values})
    sent = params_from_values(values)
    plugins.load_plugins_of_flags(vars(sent))
    for name, others in _NEEDS.items():
        if name in values and all(values.get(other) is None for other in others):
            needed = " or ".join(f"--{other}" for other in others)
            raise FlagError(name, values[name], f"has no effect without {needed}")
    device_counts = parse_device_counts(params.devices)
    files = ResultFiles(sent.result_json, sent.result_csv, _TABLE, PredictionDocument.kind)
    files.check_writable([OutputFile("plot", params.plot, suffixes=PICTURES)], [params.record])
    step = _training_step(params, sent)
    interconnect = _interconnect(params)
    if params.inter_link is None:
        _warn_of_link(params.link, device_counts[-1])
    specs = parse_all_reduce_specs(sent.all_reduce_spec) or _default_specs(interconnect)
    rows = tuple(predict_all(interconnect, step, specs, device_counts))
    fastest = tuple(
        FastestByDevices(devices=count, ranges=fastest_by_size(interconnect, specs, count))
        for count in device_counts
        if count > 1
    )
    result = PredictionDocument(
        model=step.model, parameters=interconnect, rows=rows, fastest=fastest
    )
    files.write(result, lambda: map(asdict, result.rows))
    if params.plot is not None:
        devices = params.plot_devices or max(2, device_counts[-1])
        draw_predictions(params.plot, interconnect, specs, step, result.rows, devices)
    print_result(sections_to_text(_sections(interconnect, step, result), mark="# "))
    return ExitCode.OK


def _warn_of_link(link: str | None, devices: int) -> None:
    largest = LARGEST_DOMAIN.get((link or "").split(",")[0].strip())
    if largest is not None and devices > largest:
        print_warning(
            f"--link={link}: connects at most {largest} GPUs, not {devices}; add "
            "the link between nodes, as in --inter_link=ndr --devices_per_node=8",
            "link",
        )


def parse_device_counts(text: str) -> tuple[int, ...]:
    """Parses the value of --devices to numbers of devices, ascending and without duplicates.

    Items are separated by commas. An item is a number, or ``FIRST..LAST``, which means FIRST, 2 *
    FIRST, 4 * FIRST and so on up to LAST.
    """
    counts: set[int] = set()
    for piece in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:\.\.([0-9]{1,7}))?\s*", piece)
        if match is None:
            raise FlagError(
                "devices", text, f"{piece!r} is not a number of devices; write 8,12,16 or 8..16384"
            )
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if not 1 <= first <= last <= _MOST_DEVICES:
            raise FlagError(
                "devices",
                text,
                f"{piece!r} must be from 1 to {_MOST_DEVICES}, and a range must increase",
            )
        while first <= last:
            counts.add(first)
            first *= 2
    return tuple(sorted(counts))


def _default_specs(interconnect: Interconnect) -> tuple[AllReduceSpec, ...]:
    """All algorithms with a formula and, with nodes, the two-level algorithms that they declare."""
    names = [*cost_formulas()]
    if interconnect.inter_link is not None:
        declared = declarations().items()
        names += [f"{first}/{second}" for first, one in declared for second in one.second_levels]
    return tuple(map(parse_all_reduce_spec, names))


def _interconnect(params: PredictParams) -> Interconnect:
    if params.link is None:
        raise UsageError("--predict needs --link=PRESET, such as --link=nvlink3 or --link=roce100")
    link = parse_link("link", params.link)
    if params.inter_link is None:
        return Interconnect(link)
    return Interconnect(link, parse_link("inter_link", params.inter_link), params.devices_per_node)


def _training_step(params: PredictParams, sent: AllReduceParams) -> TrainingStep:
    name = sent.model or _DEFAULT_MODEL
    model, shapes = model_gradients(name, sent.data_name)
    seconds, batch = params.step_seconds, params.batch_size
    if params.record is not None:
        if seconds is not None:
            raise FlagError("step_seconds", seconds, "contradicts --record; give one of the two")
        seconds, recorded = _read_step(params.record)
        batch = batch or recorded
    return TrainingStep(
        name,
        gradient_tensors(shapes, DTYPE_BYTES[sent.dtype]),
        _selected_packing(sent),
        sent.dtype,
        seconds,
        batch or model.batch_size,
    )


def _read_step(path: str) -> tuple[float, int]:
    try:
        record = load_run(path)
    except UsageError as error:
        raise FlagError("record", path, str(error).removeprefix(f"{path}: ")) from error
    if record.placement is None or record.batch is None or not record.step_seconds:
        raise FlagError("record", path, f"contains no steps: the run's status is {record.status}")
    devices = record.placement.num_towers
    if devices != 1:
        raise FlagError(
            "record",
            path,
            f"was measured on {devices} devices; give the record of a run on one device",
        )
    return sum(record.step_seconds) / len(record.step_seconds), record.batch.per_device


def _selected_packing(sent: AllReduceParams) -> Packing:
    """Reads from the flags how gradients are packed before they are sent. Raises FlagError if the
    flags select several packings.
    """
    texts = {
        "gradient_repacking": ",".join(map(str, sent.gradient_repacking)),
        "agg_small_grads_max_bytes": sent.agg_small_grads_max_bytes,
        "gradient_bucket_bytes": sent.gradient_bucket_bytes,
        "wire_dtype": sent.wire_dtype,
    }
    for name, text in texts.items():
        if "," in text:
            raise FlagError(name, text, "must be one value with --predict")
    return packing_combinations(sent)[0]


_SMALLEST, _LARGEST = 1024, 1024**3
_POINTS_PER_CURVE = 41
_TIME = Axis(label="time of the reduction (s)", log=True, better=LOWER)


def draw_predictions(
    path: str,
    interconnect: Interconnect,
    specs: Sequence[AllReduceSpec],
    step: TrainingStep,
    predictions: Sequence[Prediction],
    devices: int,
) -> None:
    """Draws two charts: the predicted reduction time by tensor size on `devices` devices, and the
    predicted efficiency by number of devices.

    The second chart shows times instead of the efficiency if the step time is unknown.

    The file `path` is an .svg, .png or .pdf file. A spec has the same colour and mark in both
    charts.
    """
    by_size = _size_chart(interconnect, specs, devices)
    charts = (by_size, _devices_chart(step, predictions))
    write_plot(path, charts, f"All-reduce of {step.model}: cost model of cnnbench")


def _size_chart(
    interconnect: Interconnect, specs: Sequence[AllReduceSpec], devices: int
) -> LineChart:
    curves = [_size_curve(interconnect, spec, devices) for spec in specs]
    return LineChart(
        title=f"Prediction of one tensor on {devices} devices",
        x=Axis(label="size of one tensor", format="bytes", log=True, base=2),
        y=_TIME,
        series=tuple(
            ChartSeries(name=str(spec), points=tuple(curve), marks=False, style=style)
            for style, (spec, curve) in enumerate(zip(specs, curves, strict=True))
            if curve
        ),
    )


def _size_curve(
    interconnect: Interconnect, spec: AllReduceSpec, devices: int
) -> list[tuple[float, float]]:
    curve: list[tuple[float, float]] = []
    for index in range(_POINTS_PER_CURVE):
        size = _SMALLEST * (_LARGEST / _SMALLEST) ** (index / (_POINTS_PER_CURVE - 1))
        tensor = Tensor(round(size / 4))
        try:
            seconds = interconnect.predict_seconds(spec, (tensor,), devices, Packing())
        except NotPredictedError:
            return []
        if seconds > 0:  # A logarithmic axis has no 0.
            curve.append((float(tensor.bytes), seconds))
    return curve


def _devices_chart(step: TrainingStep, predictions: Sequence[Prediction]) -> LineChart:
    efficiency = step.step_seconds is not None
    series = []
    for style, (spec, of) in enumerate(group_by(predictions, lambda p: p.spec).items()):
        values = ((p.devices, p.efficiency if efficiency else p.allreduce_seconds) for p in of)
        curve = [(float(devices), value) for devices, value in values if value and devices > 1]
        if curve:
            series.append(ChartSeries(name=spec, points=tuple(curve), style=style))
    title = f"Prediction of {step.model}"
    if efficiency:
        title += f", {step.batch_size} images per device, no overlap"
    share = Axis(label="scaling efficiency", format="percent", zero=True, better=HIGHER)
    return LineChart(
        title=title,
        x=Axis(label="devices", log=True, base=2),
        y=share if efficiency else _TIME,
        series=tuple(series),
    )


def _sections(
    interconnect: Interconnect, step: TrainingStep, result: PredictionDocument
) -> list[Iterable[Content]]:
    """The blocks of a prediction: links and step, times by number of devices and spec, the step
    with the fastest spec, and the fastest spec by size of a tensor.
    """
    links = (Paragraph(line, whole=True) for line in _link_lines(interconnect))
    return [
        (*links, Paragraph(_step_line(step), hanging=2)),
        _reduction_blocks(result.rows),
        _step_blocks(result.rows) if step.step_seconds is not None else (),
        [_fastest_table(result.fastest)],
    ]


def _link_lines(interconnect: Interconnect) -> list[str]:
    if interconnect.inter_link is None:
        return [f"link {interconnect.link}"]
    return [
        f"link within a node of {interconnect.devices_per_node} devices: {interconnect.link}",
        f"link between nodes, one for each node: {interconnect.inter_link}",
    ]


def _step_line(step: TrainingStep) -> str:
    time = "step time unknown: give --step_seconds or --record for efficiency"
    if step.step_seconds is not None:
        seconds = number(step.step_seconds)
        time = f"step on one device {seconds} s, {step.batch_size} images per device"
    return (
        f"{step.model}: {len(step.tensors)} gradients, {step.bytes} bytes as {step.dtype}, "
        f"{packing_text(step.packing)}; {time}"
    )


def _reduction_blocks(predictions: Sequence[Prediction]) -> Iterator[Content]:
    """Yields the table of reduction times by number of devices and all-reduce algorithm, in parts
    that fit into a terminal, and the reasons for missing times. The last column names the fastest
    spec.
    """
    # Imported late, because measurements of all-reduces do not need it.
    from cnnbench.judge.report.sections.all_reduce import fastest_predictions

    best = fastest_predictions(predictions)
    rows: dict[int, dict[str, TableCell | str]] = {}
    for p in predictions:
        cells = rows.setdefault(p.devices, {"devices": numeric_cell(p.devices)})
        cells[p.spec] = numeric_cell(p.allreduce_seconds, scale=1e3)
    for devices, cells in rows.items():
        cells["fastest"] = best[devices].spec if devices in best and devices > 1 else ""
    table = make_table(rows.values(), whole=True)
    assert table is not None
    yield Paragraph("predicted time of the reduction, ms", whole=True)
    texts = [[title for title, *_ in table.columns]]
    texts += [[cell.text for cell in row] for row in table.rows]
    for head, *_ in split_table(texts, indent=2):
        shown = [texts[0].index(title) for title in head]
        yield replace(
            table,
            columns=tuple(table.columns[at] for at in shown),
            rows=tuple(tuple(row[at] for at in shown) for row in table.rows),
        )
    not_predicted = (p for p in predictions if p.not_predicted is not None)
    for (spec, reason), of in group_by(not_predicted, lambda p: (p.spec, p.not_predicted)).items():
        counts = ", ".join(str(p.devices) for p in of)
        yield Paragraph(f"not predicted: {spec} on {counts} devices: {reason}", whole=True)


def _step_blocks(predictions: Sequence[Prediction]) -> Iterator[Content]:
    """Yields the table of the predicted step time, efficiency and images per second with the
    fastest all-reduce algorithm.
    """
    from cnnbench.judge.report.sections.all_reduce import fastest_predictions, step_cells

    title = "predicted step with the fastest spec: without overlap, and with full overlap"
    yield Paragraph(title, whole=True)
    rows: Iterable[Row] = (
        {
            "devices": numeric_cell(devices),
            "spec": TableCell(p.spec if devices > 1 else "", kinds="number"),
            **step_cells(p),
        }
        for devices, p in fastest_predictions(predictions).items()
    )
    yield make_table(rows, whole=True)


def _fastest_table(by_devices: Sequence[FastestByDevices]) -> Table | None:
    """Makes a table of the fastest algorithm by size of one tensor, by number of devices."""
    title = "fastest by size of a single tensor, 1 KiB to 1 GiB"
    rows: list[Row] = []
    for row in by_devices:
        ends = ["" if of.up_to is None else f" < {format_bytes(of.up_to)} <=" for of in row.ranges]
        text = " ".join(f"{of.spec}{end}" for of, end in zip(row.ranges, ends, strict=True))
        rows.append({"devices": numeric_cell(row.devices), title: text})
    return make_table(rows, whole=True)
