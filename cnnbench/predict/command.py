"""``cnnbench allreduce --predict``: from flags to predictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cnnbench.errors import BenchmarkError, ExitCode, FlagError, UsageError
from cnnbench.flags.groups.predict import PREDICT_FLAGS, PredictParams
from cnnbench.models.registry import load_plugin
from cnnbench.predict import output, plot, report
from cnnbench.predict.crossovers import winners
from cnnbench.predict.device_counts import parse_device_counts
from cnnbench.predict.fit import Fit, fit
from cnnbench.predict.formulas import FORMULAS
from cnnbench.predict.gradients import default_batch_size, model_gradients
from cnnbench.predict.host import Host
from cnnbench.predict.host_cost import WORK
from cnnbench.predict.links import parse_link
from cnnbench.predict.network import Network
from cnnbench.predict.packing import Packing, item_bytes
from cnnbench.predict.points import Point, read_points
from cnnbench.predict.predict import Prediction, Workload, predict
from cnnbench.predict.validate import Error, by_devices, by_size, held_out
from cnnbench.text.terminal import print_result
from cnnbench.variable_mgr.all_reduce.registry import names
from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, parse_all_reduce_spec

__all__ = ["PREDICT_FLAGS", "main"]

_DEFAULT_MODEL = "resnet50"
_TWO_LEVELS = ("nccl/xring", "nccl/rechd", "nccl/tree", "psgpu/xring")


@dataclass(frozen=True)
class _Source:
    """Where the parameters come from.

    Attributes:
      model: predicts.
      fit: None if the parameters were given.
      points: that were fitted.
    """

    model: Host | Network
    fit: Fit | None = None

    @property
    def points(self) -> tuple[Point, ...]:
        return () if self.fit is None else self.fit.used


def main(given: Mapping[str, Any], explicit: Collection[str]) -> int:
    """Prints predictions, and writes the files that were asked for.

    Args:
      given: values by flag name: of `PREDICT_FLAGS`, and those flags of `cnnbench
        allreduce` that say what is sent and how: model, data_name, model_plugin, dtype,
        all_reduce_spec (comma-separated text or a list), all_reduce_group_size,
        gradient_repacking, agg_small_grads_max_bytes, wire_dtype (one value each),
        agg_small_grads_max_group, result_json, result_csv. Others are ignored.
      explicit: names of the flags that were given; the others count as not given.

    Returns:
      The exit code.

    Raises:
      FlagError: names flag and value.
      UsageError: neither a link nor points.
      BenchmarkError: a file could not be written.
    """
    flags = {name: value for name, value in given.items() if name in explicit}
    own = {spec.name for spec in PREDICT_FLAGS}
    params = PredictParams(**{name: value for name, value in flags.items() if name in own})
    _check_companions(flags)
    device_counts = parse_device_counts(params.devices)
    output.prepare(flags.get("result_json"), flags.get("result_csv"))
    if params.plot is not None:
        plot.prepare(params.plot)
    workload = _workload(params, flags)
    source = _source(params, flags)
    specs = _specs(flags.get("all_reduce_spec"), source.model)
    predictions = predict(source.model, workload, specs, device_counts)
    ranges = {n: winners(source.model, specs, n) for n in device_counts if n > 1}
    validation = _validation(source)
    try:
        if flags.get("result_json"):
            output.write_json(
                flags["result_json"], source.model, workload, predictions, ranges, validation
            )
        if flags.get("result_csv"):
            output.write_csv(flags["result_csv"], source.model, workload, predictions)
        if params.plot is not None:
            devices = params.plot_devices or _plotted(source.points, device_counts)
            plot.draw(
                params.plot, source.model, specs, workload, predictions, devices, source.points
            )
    except OSError as error:
        raise BenchmarkError(f"the results could not be written: {error}") from error
    _print(source, workload, predictions, ranges, validation)
    return ExitCode.OK


# Flags that change nothing without one of others.
_COMPANIONS = {
    "devices_per_node": ("inter_link",),
    "plot_devices": ("plot",),
    "batch_size": ("step_seconds", "record"),
}


def _check_companions(flags: Mapping[str, Any]) -> None:
    for name, others in _COMPANIONS.items():
        if name in flags and not any(flags.get(other) is not None for other in others):
            needed = " or ".join(f"--{other}" for other in others)
            raise FlagError(name, flags[name], f"changes nothing without {needed}")


def _source(params: PredictParams, flags: Mapping[str, Any]) -> _Source:
    if params.points is not None:
        if params.link is not None:
            raise FlagError("link", params.link, "has no meaning beside --points; give one")
        return _fitted(params, flags)
    if params.link is None:
        raise UsageError(
            "--predict needs parameters: --link=PRESET (such as nvlink3 or roce100), or "
            "--points=FILE that cnnbench allreduce --result_json wrote on this machine"
        )
    return _Source(_network(Network(parse_link("link", params.link)), params))


def _fitted(params: PredictParams, flags: Mapping[str, Any]) -> _Source:
    assert params.points is not None
    paths = [path.strip() for path in params.points.split(",")]
    try:
        fitted = fit(read_points(paths))
    except FlagError:
        raise
    except ValueError as error:
        raise FlagError("points", params.points, str(error)) from error
    model = fitted.model
    if isinstance(model, Network):
        return _Source(_network(model, params), fitted)
    if params.inter_link is not None:
        raise FlagError(
            "inter_link", params.inter_link, "has no meaning for points measured on CPU devices"
        )
    size = int(flags.get("all_reduce_group_size") or 0)
    return _Source(replace(model, group_size=size), fitted)


def _network(network: Network, params: PredictParams) -> Network:
    if params.inter_link is None:
        return network
    far = parse_link("inter_link", params.inter_link)
    return replace(network, far_link=far, per_node=params.devices_per_node)


def _workload(params: PredictParams, flags: Mapping[str, Any]) -> Workload:
    if flags.get("model_plugin"):
        load_plugin(flags["model_plugin"])
    name = flags.get("model") or _DEFAULT_MODEL
    data_name = flags.get("data_name")
    dtype = flags.get("dtype") or "float32"
    tensors = model_gradients(name, data_name, item_bytes(dtype))
    seconds, batch = params.step_seconds, params.batch_size
    if params.record is not None:
        if seconds is not None:
            raise FlagError("step_seconds", seconds, "contradicts --record; give one of the two")
        seconds, recorded = _recorded(params.record)
        batch = batch or recorded
    return Workload(
        name, tensors, _packing(flags), dtype, seconds, batch or default_batch_size(name, data_name)
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


def _packing(flags: Mapping[str, Any]) -> Packing:
    """The packing that the flags ask for."""
    small = "agg_small_grads_max_bytes"
    wire = _only(flags, "wire_dtype")
    return Packing.of(
        {
            "gradient_repacking": _only(flags, "gradient_repacking"),
            small: _bytes(small, _only(flags, small) or 0),
            "agg_small_grads_max_group": flags.get("agg_small_grads_max_group"),
            "compact_dtype": None if wire == "same" else wire,
        }
    )


def _only(flags: Mapping[str, Any], name: str) -> Any:
    """The value of a flag that takes several, for measuring; here there may be only one."""
    value = flags.get(name)
    items = value.split(",") if isinstance(value, str) else value
    items = list(items) if isinstance(items, list | tuple) else [items]
    if len(items) > 1:
        raise FlagError(name, ",".join(map(str, items)), "must be one value with --predict")
    return items[0] if items else None


def _bytes(name: str, value: Any) -> int:
    if isinstance(value, int):
        return value
    from cnnbench.allreduce.sizes import parse_bytes

    parsed = parse_bytes(str(value))
    if parsed is None:
        raise FlagError(name, value, "must be a number of bytes such as 65536 or 64K")
    return parsed


def _specs(given: Any, model: Host | Network) -> tuple[AllReduceSpec, ...]:
    """The specs asked for, or every algorithm that can be predicted."""
    if given is None:
        if isinstance(model, Host):
            texts = list(WORK)
        else:
            texts = [*FORMULAS, *(_TWO_LEVELS if model.far_link is not None else ())]
        return tuple(parse_all_reduce_spec(text) for text in texts)
    texts = given.split(",") if isinstance(given, str) else list(given)
    known = {*names(), *FORMULAS}
    return tuple(dict.fromkeys(parse_all_reduce_spec(text.strip(), known) for text in texts))


def _validation(source: _Source) -> dict[str, list[Error]]:
    if not source.points:
        return {}
    return {
        "held-out sizes": held_out(source.points, by_size),
        "held-out device counts": held_out(source.points, by_devices),
    }


def _plotted(points: Sequence[Point], device_counts: Sequence[int]) -> int:
    measured = [point.devices for point in points]
    return max(measured) if measured else max(2, device_counts[-1])


def _print(
    source: _Source,
    workload: Workload,
    predictions: Sequence[Prediction],
    ranges: Mapping[int, Any],
    validation: Mapping[str, Sequence[Error]],
) -> None:
    blocks = [report.model_lines(source.model) + report.workload_lines(workload)]
    if source.fit is not None:
        blocks.insert(0, report.fit_lines(source.fit))
        blocks += [report.validation_lines(title, errors) for title, errors in validation.items()]
    blocks.append(report.time_lines(predictions))
    if workload.step_seconds is not None:
        blocks.append(report.step_lines(predictions))
    blocks.append(report.winner_lines(ranges))
    print_result("\n\n".join("\n".join(block) for block in blocks))
