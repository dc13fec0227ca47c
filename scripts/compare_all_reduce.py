"""Compares cnnbench's reductions with their peers; see ``docs/all_reduce_benchmark.md``.

Every measurement is a fresh process of ``cnnbench allreduce``, in which the compared
reductions are interleaved. In every round each of these processes runs once, in an order drawn
from a seed; ratios are formed within a process and averaged over rounds. The exit status
is 0 if everything was measured, whatever the verdicts, 2 for wrong use, 4 if something failed,
130 if interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from peers import table
from peers.demands import NOT_MEASURED, Demand, Finding, conclude
from peers.measurement import ENVIRONMENT, OK, Measurement, measure, orders
from peers.options import cnnbench_command, common_parser
from peers.process import run

from cnnbench.records.allreduce import AllReduceRecord, Point

SCENARIOS = ("gradients", "small", "large", "build")

Value: TypeAlias = Callable[[AllReduceRecord], "float | None"]

_OURS = ("copy", "pscpu", "rechd", "xring")
_PEERS = ("collective", "reduction_to_one_device")
_LARGE = (16, 64, 256)
_PACKS = 1
_BUILDS = {"resnet50": (2, 4, 8), "trivial": (8, 16, 32, 64)}
# "Well under a minute".
_BUILD_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Options:
    """What to compare and how long; see ``parse`` for the meaning of each."""

    scenarios: tuple[str, ...]
    devices: tuple[int, ...]
    rounds: int
    batches: int
    seed: int
    timeout: float
    keep: Path | None
    cnnbench_python: str

    @property
    def command(self) -> tuple[str, ...]:
        """`cnnbench allreduce` on CPUs."""
        return (*cnnbench_command(self.cnnbench_python), "allreduce", "--device=cpu")


@dataclasses.dataclass(frozen=True)
class RoundProcess:
    """One process, and the demands on its measurements.

    Attributes:
      demands: The bounds; each demand's ``figure`` takes the record that the process writes.
    """

    scenario: str
    name: str
    flags: tuple[str, ...]
    demands: tuple[Demand, ...]

    def figures(self, record: AllReduceRecord) -> dict[str, float]:
        """The values of the demands, by text, as far as the record has them."""
        found = {demand.text: demand.figure(record) for demand in self.demands}
        return {text: value for text, value in found.items() if value is not None}


def experiments(options: Options) -> list[RoundProcess]:
    """The processes of one round."""
    made = []
    for scenario in options.scenarios:
        if scenario == "build":
            made += [_build(model, counts) for model, counts in _BUILDS.items()]
        else:
            make = {"gradients": _gradients, "small": _small, "large": _large}[scenario]
            made += [make(devices, options.batches) for devices in options.devices]
    return made


def _gradients(devices: int, batches: int) -> RoundProcess:
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
        "--model=resnet50",
        f"--num_gpus={devices}",
        f"--all_reduce_spec={','.join(_OURS)},collective",
        "--peers=reduction_to_one_device",
        f"--num_batches={batches}",
    )
    return RoundProcess("gradients", f"gradients on {devices} devices", flags, tuple(demands))


def _small(devices: int, batches: int) -> RoundProcess:
    demands = [
        Demand(
            "small",
            f"1000 x 4 KiB, {devices} devices: {spec} packed / unpacked",
            (),
            _speed_up(
                lambda point: (point.spec, point.packing.gradient_repacking),
                (spec, _PACKS),
                (spec, 0),
            ),
            3.0,
        )
        for spec in _OURS
    ]
    flags = (
        "--sizes=4K*1000",
        f"--num_gpus={devices}",
        f"--all_reduce_spec={','.join(_OURS)}",
        f"--gradient_repacking=0,{_PACKS}",
        f"--num_batches={batches}",
        "--iters_per_step=2",
    )
    return RoundProcess("small", f"small tensors on {devices} devices", flags, tuple(demands))


def _speed_up(key: Callable[[Point], object], mine: object, other: object) -> Value:
    """How many times as fast the point with one key is as the point with another."""

    def value(record: AllReduceRecord) -> float | None:
        # A wrong sum has no speed.
        times = {key(point): point.median for point in record.rows if not point.failed}
        above, below = times.get(other), times.get(mine)
        return above / below if above and below else None

    return value


def _large(devices: int, batches: int) -> RoundProcess:
    def share(size: int) -> Value:
        def value(record: AllReduceRecord) -> float | None:
            found = [p for p in record.points if p.bytes == size and not p.failed]
            return record.share_of_bound(found[-1]) if found else None

        return value

    demands = [
        Demand(
            "large",
            f"{size} MiB, {devices} devices: xring / memory-copy bound",
            (),
            share(size << 20),
            0.6,
        )
        for size in _LARGE
    ]
    flags = (
        f"--sizes={','.join(f'{size}M' for size in _LARGE)}",
        f"--num_gpus={devices}",
        "--all_reduce_spec=xring",
        f"--num_batches={batches}",
    )
    return RoundProcess("large", f"large tensors on {devices} devices", flags, tuple(demands))


def _build(model: str, counts: Sequence[int]) -> RoundProcess:
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
        limits: dict[str, Any] = {"bound": _BUILD_SECONDS, "at_most": True, "is_ratio": False}
        demands.append(Demand("build", text, (), built(spec, growth=False), **limits))
        text = f"{model}, {first} to {last} devices: {spec} build time over devices"
        demands.append(Demand("build", text, (), built(spec, growth=True), 1.0, at_most=True))
    flags = (
        f"--model={model}",
        f"--num_gpus={','.join(map(str, counts))}",
        f"--all_reduce_spec={','.join(_OURS)}",
        "--build_only",
    )
    return RoundProcess("build", f"build of {model}", flags, tuple(demands))


def parse(argv: Sequence[str]) -> Options:
    """Reads the command line; wrong use ends the process with status 2."""
    parser = common_parser(
        "compare_all_reduce",
        "Measures cnnbench's reductions beside TensorFlow's on logical CPU devices, "
        "each round in fresh processes, and holds them against what is demanded.",
        SCENARIOS,
        "timed calls of every row",
    )
    add = parser.add_argument
    add(
        "--devices",
        type=_counts,
        default=(2, 4),
        help="numbers of logical devices, comma-separated (default: 2,4)",
    )
    add("--keep", type=Path, help="existing folder to keep every process's JSON file in")
    options = Options(**vars(parser.parse_args(argv)))
    if options.keep is not None and not options.keep.is_dir():
        parser.error(f"--keep={options.keep}: there is no such folder")
    return options


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(word) for word in text.split(","))
    if min(counts) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: a reduction needs 2 devices")
    return counts


def run_once(
    experiment: RoundProcess, number: int, options: Options
) -> tuple[Measurement, dict[str, float]]:
    """Runs one experiment once; returns its outcome, and its values by demand."""
    values: dict[str, float] = {}

    def work(scratch: Path) -> None:
        path = (options.keep or scratch).resolve() / f"{experiment.name}-{number}.json"
        path = path.with_name(path.name.replace(" ", "-"))
        command = [*options.command, *experiment.flags, f"--result_json={path}"]
        finished = run(
            command, timeout=options.timeout, environment=ENVIRONMENT, folder=str(scratch)
        )
        # A process that fails half-way has written what it measured until then.
        if path.is_file():
            values.update(experiment.figures(AllReduceRecord.from_json(path.read_bytes())))
        finished.require()

    place = (experiment.scenario, number, 0, experiment.name, "")
    return measure(place, work), values


def judge(demand: Demand, values: Sequence[float], reasons: Sequence[str]) -> Finding:
    """The verdict on a demand, or the reason why there is none."""
    if values:
        return conclude(demand, values)
    return Finding(demand, None, NOT_MEASURED, reasons[0] if reasons else "no such row")


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    options = parse(argv)
    chosen = experiments(options)
    measurements: list[Measurement] = []
    values: dict[tuple[str, str], list[float]] = {}
    try:
        for number, order in enumerate(orders(chosen, options.rounds, options.seed), start=1):
            for experiment in order:
                title = f"{number}/{options.rounds}: {experiment.name}"
                print(title, file=sys.stderr, flush=True)
                measurement, figures = run_once(experiment, number, options)
                measurements.append(measurement)
                if measurement.reason:
                    print(f"  {measurement.reason}", file=sys.stderr, flush=True)
                for text, value in figures.items():
                    values.setdefault((experiment.name, text), []).append(value)
    except KeyboardInterrupt:
        print("compare_all_reduce: interrupted", file=sys.stderr)
        return 130
    findings = []
    for experiment in chosen:
        reasons = [m.reason for m in measurements if m.subject == experiment.name and m.reason]
        for demand in experiment.demands:
            found = values.get((experiment.name, demand.text), [])
            findings.append(judge(demand, found, reasons))
    print("Within processes, averaged over rounds")
    print("\n".join(table.demands_table(findings)))
    print("\n".join(table.neighbours(measurements, os.cpu_count() or 1)))
    return 0 if all(m.status == OK for m in measurements) else 4


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
