"""``cnnbench allreduce --predict``: predictions from flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cnnbench.base.text.table import wrapped
from cnnbench.base.text.terminal import print_result, print_warning
from cnnbench.errors import ExitCode, FlagError, UsageError
from cnnbench.flags.groups.allreduce import (
    AllReduceParams,
    model_gradients,
    params_of,
    parse_packings,
    parse_specs,
)
from cnnbench.flags.groups.predict import PREDICT_FLAGS, PredictParams
from cnnbench.lab.predict import plot, report
from cnnbench.lab.predict.formulas import FORMULAS
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.links import LARGEST_DOMAIN, parse_link
from cnnbench.lab.predict.predict import (
    COLUMNS,
    FastestByDevices,
    PredictionDocument,
    fastest_by_size,
    predict,
)
from cnnbench.lab.predict.workload import TrainingStep, gradient_tensors
from cnnbench.records.load import load_run
from cnnbench.records.outputs import Output
from cnnbench.records.result_files import CsvTable, ResultFiles
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import parse_all_reduce_spec
from cnnbench.variable_mgr.sizes import DTYPE_BYTES

_DEFAULT_MODEL = "resnet50"
_TWO_LEVELS = ("nccl/xring", "nccl/rechd", "nccl/tree", "psgpu/xring")
_MOST_DEVICES = 1_000_000
_PACKINGS = ("agg_small_grads_max_bytes", "gradient_bucket_bytes", "wire_dtype")
# Flags that have no effect without one of others.
_COMPANIONS = {
    "devices_per_node": ("inter_link",),
    "plot_devices": ("plot",),
    "batch_size": ("step_seconds", "record"),
}
_TABLE = CsvTable("result_csv", COLUMNS, PredictionDocument.schema)


def main(given: Mapping[str, Any]) -> int:
    """Prints predictions, and writes the requested files.

    `given` has the values of `PREDICT_FLAGS`, and those of ``cnnbench allreduce`` for what is sent
    and how, with at most one packing.
    """
    params = PredictParams(**{s.name: given[s.name] for s in PREDICT_FLAGS if s.name in given})
    sent = params_of(given)
    for name, others in _COMPANIONS.items():
        if name in given and not any(given.get(other) is not None for other in others):
            needed = " or ".join(f"--{other}" for other in others)
            raise FlagError(name, given[name], f"has no effect without {needed}")
    device_counts = parse_device_counts(params.devices)
    files = ResultFiles(sent.result_json, sent.result_csv, _TABLE, PredictionDocument.kind)
    files.prepare([Output("plot", params.plot, suffixes=plot.SUFFIXES)], [params.record])
    step = _step(params, sent)
    model = _model(params)
    if params.inter_link is None:
        _warn_of_domain(params.link, device_counts[-1])
    every = (*FORMULAS, *(_TWO_LEVELS if model.inter_link is not None else ()))
    specs = parse_specs(sent.all_reduce_spec) or tuple(map(parse_all_reduce_spec, every))
    result = PredictionDocument(
        model=step.model,
        parameters=model,
        rows=tuple(predict(model, step, specs, device_counts)),
        fastest=tuple(
            FastestByDevices(devices=count, ranges=fastest_by_size(model, specs, count))
            for count in device_counts
            if count > 1
        ),
    )
    files.write(result, lambda: map(asdict, result.rows))
    if params.plot is not None:
        devices = params.plot_devices or max(2, device_counts[-1])
        plot.draw(params.plot, model, specs, step, result.rows, devices)
    _print(model, step, result)
    return ExitCode.OK


def _warn_of_domain(link: str | None, devices: int) -> None:
    largest = LARGEST_DOMAIN.get((link or "").split(",")[0].strip())
    if largest is not None and devices > largest:
        print_warning(
            f"--link={link}: connects at most {largest} GPUs, not {devices}; for more say "
            "what is between nodes, as in --inter_link=ndr --devices_per_node=8"
        )


def parse_device_counts(text: str) -> tuple[int, ...]:
    """Numbers of devices, ascending and without duplicates, from a comma-separated list.

    An item is a number, or ``FIRST..LAST`` for FIRST and its doubles up to LAST.
    """
    counts: set[int] = set()
    for piece in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:\.\.([0-9]{1,7}))?\s*", piece)
        if match is None:
            raise FlagError(
                "devices", text, f"{piece!r} is no number of devices; write 8,12,16 or 8..16384"
            )
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if not 1 <= first <= last <= _MOST_DEVICES:
            raise FlagError(
                "devices", text, f"{piece!r} must be from 1 to {_MOST_DEVICES}, and a range rise"
            )
        while first <= last:
            counts.add(first)
            first *= 2
    return tuple(sorted(counts))


def _model(params: PredictParams) -> Interconnect:
    if params.link is None:
        raise UsageError("--predict needs parameters: --link=PRESET (such as nvlink3 or roce100)")
    link = parse_link("link", params.link)
    if params.inter_link is None:
        return Interconnect(link)
    return Interconnect(link, parse_link("inter_link", params.inter_link), params.devices_per_node)


def _step(params: PredictParams, sent: AllReduceParams) -> TrainingStep:
    name = sent.model or _DEFAULT_MODEL
    model, shapes = model_gradients(name, sent.data_name, sent.model_plugin)
    seconds, batch = params.step_seconds, params.batch_size
    if params.record is not None:
        if seconds is not None:
            raise FlagError("step_seconds", seconds, "contradicts --record; give one of the two")
        seconds, recorded = _recorded(params.record)
        batch = batch or recorded
    return TrainingStep(
        name,
        gradient_tensors(shapes, DTYPE_BYTES[sent.dtype]),
        _packing(sent),
        sent.dtype,
        seconds,
        batch or model.batch_size,
    )


def _recorded(path: str) -> tuple[float, int]:
    try:
        record = load_run(path)
    except UsageError as error:
        raise FlagError("record", path, str(error).removeprefix(f"{path}: ")) from error
    if record.placement is None or record.batch is None or not record.step_seconds:
        raise FlagError("record", path, f"holds no steps: the run ended as {record.status}")
    devices = record.placement.num_towers
    if devices != 1:
        raise FlagError(
            "record", path, f"was measured on {devices} devices; give a run on one device"
        )
    return sum(record.step_seconds) / len(record.step_seconds), record.batch.per_device


def _packing(sent: AllReduceParams) -> Packing:
    """The packing that the flags ask for; flags for several are refused."""
    repacking = ",".join(map(str, sent.gradient_repacking))
    texts = {"gradient_repacking": repacking, **{name: getattr(sent, name) for name in _PACKINGS}}
    for name, text in texts.items():
        if "," in text:
            raise FlagError(name, text, "must be one value with --predict")
    return parse_packings(sent)[0]


def _print(model: Interconnect, step: TrainingStep, result: PredictionDocument) -> None:
    about = wrapped(report.step_line(step), more="#   ")
    blocks = [[*report.model_lines(model), *about], report.time_lines(result.rows)]
    if step.step_seconds is not None:
        blocks.append(report.step_lines(result.rows))
    blocks.append(report.fastest_lines(result.fastest))
    print_result("\n\n".join("\n".join(block) for block in blocks))
