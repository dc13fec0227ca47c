"""``cnnbench allreduce --predict``: from flags to predictions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from cnnbench.lab.predict.document import PredictionDocument
from cnnbench.lab.predict.fit import CostModel, Fit, Residual, fit, held_out
from cnnbench.lab.predict.formulas import FORMULAS
from cnnbench.lab.predict.host import WORK, Host
from cnnbench.lab.predict.interconnect import Interconnect
from cnnbench.lab.predict.links import LARGEST_DOMAIN, parse_link
from cnnbench.lab.predict.points import MeasuredReduction, read_points
from cnnbench.lab.predict.predict import fastest_by_size, predict
from cnnbench.lab.predict.workload import TrainingStep, gradient_tensors
from cnnbench.records.outputs import Output
from cnnbench.records.result_files import ResultFiles
from cnnbench.variable_mgr.aggregation.spec import Packing
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, parse_all_reduce_spec
from cnnbench.variable_mgr.sizes import DTYPE_BYTES

_DEFAULT_MODEL = "resnet50"
_TWO_LEVELS = ("nccl/xring", "nccl/rechd", "nccl/tree", "psgpu/xring")
_MOST_DEVICES = 1_000_000


def main(given: Mapping[str, Any]) -> int:
    """Prints predictions, and writes the files that were asked for.

    Args:
      given: values of the flags that were given, by name: of `PREDICT_FLAGS`, and those of
        ``cnnbench allreduce`` for what is sent and how, with one packing at most.

    Returns:
      The exit code.

    Raises:
      FlagError: names flag and value.
      UsageError: neither a link nor points.
      BenchmarkError: a file could not be written.
    """
    params = PredictParams(**{s.name: given[s.name] for s in PREDICT_FLAGS if s.name in given})
    sent = params_of(given)
    _check_companions(given)
    device_counts = parse_device_counts(params.devices)
    kind = PredictionDocument.kind
    files = ResultFiles(sent.result_json, sent.result_csv, report.TABLE, kind)
    read = [*map(str.strip, (params.points or "").split(",")), params.record]
    files.prepare([Output("plot", params.plot, suffixes=plot.SUFFIXES)], read)
    step = _step(params, sent)
    fitted = None if params.points is None else _fit(params.points, params.link)
    points = () if fitted is None else fitted.used
    model = _model(params, sent, fitted)
    if params.inter_link is None:
        _warn_of_domain(params.link, device_counts[-1])
    specs = parse_specs(sent.all_reduce_spec) or _default_specs(model)
    result = report.PredictionReport(
        model,
        step,
        predict(model, step, specs, device_counts),
        {count: fastest_by_size(model, specs, count) for count in device_counts if count > 1},
        _validation(points),
    )
    files.write(result, result.table_rows)
    if params.plot is not None:
        measured = max((point.devices for point in points), default=max(2, device_counts[-1]))
        plot.draw(
            params.plot,
            model,
            specs,
            step,
            result.predictions,
            params.plot_devices or measured,
            points,
        )
    _print(result, fitted)
    return ExitCode.OK


def _warn_of_domain(link: str | None, devices: int) -> None:
    """Says that no machine has so many devices on a link."""
    largest = LARGEST_DOMAIN.get((link or "").split(",")[0].strip())
    if largest is not None and devices > largest:
        print_warning(
            f"--link={link}: connects at most {largest} GPUs, not {devices}; for more say "
            "what is between nodes, as in --inter_link=ndr --devices_per_node=8"
        )


def parse_device_counts(text: str) -> tuple[int, ...]:
    """Numbers of devices, rising, none twice.

    Args:
      text: comma-separated; each a number, or ``FIRST..LAST`` for FIRST and its doubles up
        to LAST.

    Raises:
      FlagError: names the piece that is wrong.
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


# Flags that have no effect without one of others.
_COMPANIONS = {
    "devices_per_node": ("inter_link",),
    "plot_devices": ("plot",),
    "batch_size": ("step_seconds", "record"),
}


def _check_companions(given: Mapping[str, Any]) -> None:
    for name, others in _COMPANIONS.items():
        if name in given and not any(given.get(other) is not None for other in others):
            needed = " or ".join(f"--{other}" for other in others)
            raise FlagError(name, given[name], f"has no effect without {needed}")


def _fit(paths: str, link: str | None) -> Fit:
    if link is not None:
        raise FlagError("link", link, "has no meaning beside --points; give one")
    try:
        return fit(read_points([path.strip() for path in paths.split(",")]))
    except FlagError:
        raise
    except ValueError as error:
        raise FlagError("points", paths, str(error)) from error


def _model(params: PredictParams, sent: AllReduceParams, fitted: Fit | None) -> CostModel:
    """The model with the parameters that were given or fitted."""
    if fitted is not None:
        model = fitted.model
    elif params.link is not None:
        model = Interconnect(parse_link("link", params.link))
    else:
        raise UsageError(
            "--predict needs parameters: --link=PRESET (such as nvlink3 or roce100), or "
            "--points=FILE that cnnbench allreduce --result_json wrote on this machine"
        )
    far = params.inter_link
    if isinstance(model, Host):
        if far is not None:
            raise FlagError("inter_link", far, "has no meaning for points of CPU devices")
        return replace(model, group_size=sent.all_reduce_group_size)
    if far is None:
        return model
    link = parse_link("inter_link", far)
    return replace(model, far_link=link, per_node=params.devices_per_node)


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
    """Mean step time and batch size of a run on one device.

    Raises:
      FlagError: no record, or one of several devices or without steps.
    """
    from cnnbench.records.load import load_run

    try:
        record = load_run(path)
    except UsageError as error:
        raise FlagError("record", path, str(error).removeprefix(f"{path}: ")) from error
    if record.placement is None or record.batch is None or not record.step_seconds:
        raise FlagError("record", path, f"holds no steps: the run ended as {record.status}")
    devices = record.placement.num_towers * record.placement.num_workers
    if devices != 1:
        raise FlagError(
            "record", path, f"was measured on {devices} devices; give a run on one device"
        )
    return sum(record.step_seconds) / len(record.step_seconds), record.batch.per_device


def _packing(sent: AllReduceParams) -> Packing:
    """The packing that the flags ask for; flags for several are refused."""
    values = {
        "gradient_repacking": ",".join(map(str, sent.gradient_repacking)),
        "agg_small_grads_max_bytes": sent.agg_small_grads_max_bytes,
        "wire_dtype": sent.wire_dtype,
    }
    for name, value in values.items():
        if "," in value:
            raise FlagError(name, value, "must be one value with --predict")
    return parse_packings(sent)[0]


def _validation(points: Sequence[MeasuredReduction]) -> dict[str, list[Residual]]:
    if not points:
        return {}
    return {
        "held-out sizes": held_out(points, lambda point: point.bytes),
        "held-out device counts": held_out(points, lambda point: point.devices),
    }


def _default_specs(model: CostModel) -> tuple[AllReduceSpec, ...]:
    """Every algorithm that can be predicted."""
    if isinstance(model, Host):
        texts: tuple[str, ...] = tuple(WORK)
    else:
        texts = (*FORMULAS, *(_TWO_LEVELS if model.far_link is not None else ()))
    return tuple(map(parse_all_reduce_spec, texts))


def _print(result: report.PredictionReport, fitted: Fit | None) -> None:
    step = wrapped(report.step_line(result.step), more="#   ")
    blocks = [[*report.model_lines(result.model), *step]]
    if fitted is not None:
        blocks.insert(0, report.fit_lines(fitted))
        blocks += [report.validation_lines(*item) for item in result.validation.items()]
    blocks.append(report.time_lines(result.predictions))
    if result.step.step_seconds is not None:
        blocks.append(report.step_lines(result.predictions))
    blocks.append(report.fastest_lines(result.fastest))
    print_result("\n\n".join("\n".join(block) for block in blocks))
