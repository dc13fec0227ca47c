"""cnnbench's reductions alone, compared with TensorFlow's.

A subject is a process of ``cnnbench allreduce`` in which the compared reductions are interleaved:
ratios are formed within it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cnnbench.records.all_reduce import AllReduceRecord, Point
from peers.demands import Demand
from peers.measurement import Reading, over
from peers.process import Process
from peers.programs import RESULT, Subject, cnnbench

if TYPE_CHECKING:
    from peers.options import Options

Figure: TypeAlias = Callable[[Reading], "float | None"]

_OURS = ("copy", "pscpu", "rechd", "xring")
_PEERS = ("collective", "reduction_to_one_device")
_LARGE = (16, 64, 256)
_PACKS = 1
_BUILDS = {"resnet50": (2, 4, 8), "trivial": (8, 16, 32, 64)}
# "Well under a minute".
_BUILD_SECONDS = 30.0


def read_reductions(_: Process, path: Path) -> Reading:
    """The record of a process."""
    return Reading(document=AllReduceRecord.from_json(path.read_bytes()))


def _alone(
    options: Options,
    name: str,
    specs: Sequence[str],
    work: str,
    devices: Sequence[int],
    *flags: str,
    demands: Sequence[Demand],
) -> Subject:
    words = (
        *("allreduce", "--device=cpu", work, f"--num_gpus={','.join(map(str, devices))}"),
        *(f"--all_reduce_spec={','.join(specs)}", *flags, RESULT),
    )
    return cnnbench(options, name, *words, read=read_reductions, demands=demands)


def gradients(options: Options) -> Iterator[Subject]:
    """The gradients of ResNet-50, by each algorithm and by TensorFlow."""
    specs, batches = (*_OURS, "collective"), f"--num_batches={options.batches}"
    for devices in options.devices:
        text = f"ResNet-50, {devices} devices: speed of"
        demands = [
            Demand(_speed_up(lambda point: point.spec, *pair), 1.0, f"{text} {' / '.join(pair)}")
            for pair in itertools.product(_OURS, _PEERS)
        ]
        name, flags = (
            f"gradients on {devices} devices",
            ("--peers=reduction_to_one_device", batches),
        )
        yield _alone(options, name, specs, "--model=resnet50", [devices], *flags, demands=demands)


def small(options: Options) -> Iterator[Subject]:
    """Small tensors, packed and not."""
    flags = (
        *(f"--num_batches={options.batches}", "--iters_per_step=2"),
        f"--gradient_repacking=0,{_PACKS}",
    )

    def key(point: Point) -> object:
        return point.spec, point.packing.gradient_repacking

    for devices in options.devices:
        text = f"1000 x 4 KiB, {devices} devices:"
        demands = [
            Demand(
                _speed_up(key, (spec, _PACKS), (spec, 0)), 3.0, f"{text} {spec} packed / unpacked"
            )
            for spec in _OURS
        ]
        name = f"small tensors on {devices} devices"
        yield _alone(options, name, _OURS, "--sizes=4K*1000", [devices], *flags, demands=demands)


def _speed_up(key: Callable[[Point], object], mine: object, other: object) -> Figure:
    """Speed of the point with one key relative to the point with another."""

    def figure(reading: Reading) -> float | None:
        # A wrong sum has no speed.
        rows = reading.document.rows
        times = {key(point): point.median for point in rows if not point.failed}
        return over(times.get(other), times.get(mine))

    return figure


def large(options: Options) -> Iterator[Subject]:
    """Large tensors, beside the estimate by copies of memory."""

    def share(size: int) -> Figure:
        def figure(reading: Reading) -> float | None:
            record: AllReduceRecord = reading.document
            found = [p for p in record.points if p.bytes == size << 20 and not p.failed]
            return record.share_of_estimate(found[-1]) if found else None

        return figure

    sizes = f"--sizes={','.join(f'{size}M' for size in _LARGE)}"
    batches = f"--num_batches={options.batches}"
    for devices in options.devices:
        text = f"MiB, {devices} devices: xring / memory-copy estimate"
        demands = [Demand(share(size), 0.6, f"{size} {text}") for size in _LARGE]
        name = f"large tensors on {devices} devices"
        yield _alone(options, name, ["xring"], sizes, [devices], batches, demands=demands)


def build(options: Options) -> Iterator[Subject]:
    """Tracing and building a step on more and more devices."""

    def seconds(spec: str, counts: Sequence[int], growth: bool) -> Figure:
        def figure(reading: Reading) -> float | None:
            points: Sequence[Point] = reading.document.points
            found = {p.devices: p.build_seconds or 0.0 for p in points if p.spec == spec}
            first, *_, last = (found.get(count, 0.0) for count in counts)
            if not all(found.get(count) for count in counts):
                return None
            return last / first * counts[0] / counts[-1] if growth else last

        return figure

    for model, counts in _BUILDS.items():
        first, last = counts[0], counts[-1]
        demands = []
        for spec in _OURS:
            text = f"{model}, {last} devices: {spec} traced and built, s"
            time = seconds(spec, counts, growth=False)
            demands.append(Demand(time, _BUILD_SECONDS, text, at_most=True, is_ratio=False))
            text = f"{model}, {first} to {last} devices: {spec} build time over devices"
            growth = seconds(spec, counts, growth=True)
            demands.append(Demand(growth, 1.0, text, at_most=True))
        name, work = f"build of {model}", f"--model={model}"
        yield _alone(options, name, _OURS, work, counts, "--build_only", demands=demands)
