"""cnnbench's reductions alone, beside TensorFlow's.

A subject is a process of ``cnnbench allreduce`` in which the compared reductions are interleaved:
ratios are formed within it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from cnnbench.records.allreduce import AllReduceRecord, Point
from peers.demands import Demand, Key, Round
from peers.measurement import Reading
from peers.options import ALONE, Options, cnnbench_command
from peers.process import EndedProcess
from peers.programs import RECORD, Subject, ours

Value: TypeAlias = Callable[[AllReduceRecord], "float | None"]

_OURS = ("copy", "pscpu", "rechd", "xring")
_PEERS = ("collective", "reduction_to_one_device")
_LARGE = (16, 64, 256)
_PACKS = 1
_BUILDS = {"resnet50": (2, 4, 8), "trivial": (8, 16, 32, 64)}
# "Well under a minute".
_BUILD_SECONDS = 30.0


def reduction_subjects(scenario: str, options: Options) -> list[Subject]:
    """The processes of a scenario."""
    allreduce = (*cnnbench_command(options.cnnbench_python), "allreduce", "--device=cpu")
    result = f"--result_json={RECORD}"
    return [
        ours(name, (*allreduce, *flags, result), options, read_reductions)
        for name, flags, _ in _experiments(scenario, options)
    ]


def reduction_demands(options: Options) -> Iterator[Demand]:
    """What is asked of the processes."""
    for scenario in ALONE:
        for name, _, demands in _experiments(scenario, options):
            key = name, "fp32"
            for one in demands:
                figure = functools.partial(_of_round, one.figure, key)
                yield dataclasses.replace(one, subjects=(key,), figure=figure)


def _of_round(value: Value, key: Key, readings: Round) -> float | None:
    return value(readings[key].document)


def read_reductions(_: EndedProcess, path: Path) -> Reading:
    """The record of a process."""
    return Reading(document=AllReduceRecord.from_json(path.read_bytes()))


Experiment: TypeAlias = tuple[str, tuple[str, ...], list[Demand]]
"""Name and flags of a process, and the demands on it, whose figures take its record."""


def _experiments(scenario: str, options: Options) -> list[Experiment]:
    if scenario == "build":
        return [_build(model, counts) for model, counts in _BUILDS.items()]
    make = {"gradients": _gradients, "small": _small, "large": _large}[scenario]
    return [make(devices, f"--num_batches={options.batches}") for devices in options.devices]


def _gradients(devices: int, batches: str) -> Experiment:
    demands = [
        Demand(
            "gradients",
            f"ResNet-50, {devices} devices: speed of {mine} / {other}",
            (),
            _speed_up(lambda point: point.spec, mine, other),
            1.0,
        )
        for mine, other in itertools.product(_OURS, _PEERS)
    ]
    flags = (
        *("--model=resnet50", f"--num_gpus={devices}", batches),
        *(f"--all_reduce_spec={','.join(_OURS)},collective", "--peers=reduction_to_one_device"),
    )
    return f"gradients on {devices} devices", flags, demands


def _small(devices: int, batches: str) -> Experiment:
    def key(point: Point) -> object:
        return point.spec, point.packing.gradient_repacking

    demands = [
        Demand(
            "small",
            f"1000 x 4 KiB, {devices} devices: {spec} packed / unpacked",
            (),
            _speed_up(key, (spec, _PACKS), (spec, 0)),
            3.0,
        )
        for spec in _OURS
    ]
    flags = (
        *("--sizes=4K*1000", f"--num_gpus={devices}", batches, "--iters_per_step=2"),
        *(f"--all_reduce_spec={','.join(_OURS)}", f"--gradient_repacking=0,{_PACKS}"),
    )
    return f"small tensors on {devices} devices", flags, demands


def _speed_up(key: Callable[[Point], object], mine: object, other: object) -> Value:
    """How many times as fast the point with one key is as the point with another."""

    def value(record: AllReduceRecord) -> float | None:
        # A wrong sum has no speed.
        times = {key(point): point.median for point in record.rows if not point.failed}
        above, below = times.get(other), times.get(mine)
        return above / below if above and below else None

    return value


def _large(devices: int, batches: str) -> Experiment:
    def share(size: int) -> Value:
        def value(record: AllReduceRecord) -> float | None:
            found = [p for p in record.points if p.bytes == size and not p.failed]
            return record.share_of_bound(found[-1]) if found else None

        return value

    text = f"MiB, {devices} devices: xring / memory-copy bound"
    demands = [Demand("large", f"{size} {text}", (), share(size << 20), 0.6) for size in _LARGE]
    sizes = f"--sizes={','.join(f'{size}M' for size in _LARGE)}"
    flags = (sizes, f"--num_gpus={devices}", "--all_reduce_spec=xring", batches)
    return f"large tensors on {devices} devices", flags, demands


def _build(model: str, counts: Sequence[int]) -> Experiment:
    first, last = counts[0], counts[-1]

    def built(spec: str, growth: bool) -> Value:
        def value(record: AllReduceRecord) -> float | None:
            found = {p.devices: p.build_seconds for p in record.points if p.spec == spec}
            if not all(found.get(count) for count in counts):
                return None
            times = {count: found[count] or 0.0 for count in counts}
            return times[last] / times[first] * first / last if growth else times[last]

        return value

    demands = []
    for spec in _OURS:
        text = f"{model}, {last} devices: {spec} traced and built, s"
        value = built(spec, growth=False)
        demands.append(Demand("build", text, (), value, _BUILD_SECONDS, True, is_ratio=False))
        text = f"{model}, {first} to {last} devices: {spec} build time over devices"
        demands.append(Demand("build", text, (), built(spec, growth=True), 1.0, at_most=True))
    flags = (
        *(f"--model={model}", f"--num_gpus={','.join(map(str, counts))}", "--build_only"),
        f"--all_reduce_spec={','.join(_OURS)}",
    )
    return f"build of {model}", flags, demands
