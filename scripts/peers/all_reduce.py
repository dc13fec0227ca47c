"""What is demanded of the reductions, and the runs of ``cnnbench allreduce`` that show it."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from peers.demands import Demand
from peers.options import cnnbench_command, common_parser

SCENARIOS = ("gradients", "small", "large", "build")

# Row by (spec, packs, bytes, devices).
Row: TypeAlias = "dict[str, Any]"
Figures: TypeAlias = "dict[str, float]"

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
class Experiment:
    """One process, and what is demanded of its figures.

    Attributes:
      scenario: One of ``SCENARIOS``.
      name: Unique.
      flags: Of ``cnnbench allreduce``.
      demands: The bounds; each demand's text names its figure.
      figures: From the document it writes, the figures that it holds.
    """

    scenario: str
    name: str
    flags: tuple[str, ...]
    demands: tuple[Demand, ...]
    figures: Callable[[Mapping[str, Any]], Figures]


def read(path: Path) -> dict[str, Any]:
    """The document of one process.

    Raises:
      ValueError: It is none.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("kind") != "allreduce":
        raise ValueError(f"{path} is no all-reduce measurement")
    return document


def experiments(options: Options) -> list[Experiment]:
    """The processes of one round."""
    made = []
    for scenario in options.scenarios:
        if scenario == "build":
            made += [_build(model, counts) for model, counts in _BUILDS.items()]
        else:
            make = {"gradients": _gradients, "small": _small, "large": _large}[scenario]
            made += [make(devices, options.batches) for devices in options.devices]
    return made


def _gradients(devices: int, batches: int) -> Experiment:
    pairs = list(itertools.product(_OURS, _PEERS))

    def figures(document: Mapping[str, Any]) -> Figures:
        times = {row["spec"]: _median(row) for row in _right(document)}
        return {
            _faster(mine, other, devices): times[other] / times[mine]
            for mine, other in pairs
            if mine in times and other in times
        }

    flags = (
        "--model=resnet50",
        f"--num_gpus={devices}",
        f"--all_reduce_spec={','.join(_OURS)},collective",
        "--peers=reduction_to_one_device",
        f"--num_batches={batches}",
    )
    demands = tuple(_demand("gradients", _faster(*pair, devices), 1.0) for pair in pairs)
    return Experiment("gradients", f"gradients on {devices} devices", flags, demands, figures)


def _faster(mine: str, other: str, devices: int) -> str:
    return f"ResNet-50, {devices} devices: speed of {mine} / {other}"


def _small(devices: int, batches: int) -> Experiment:
    def figures(document: Mapping[str, Any]) -> Figures:
        times = {
            (row["spec"], row["packing"]["gradient_repacking"]): _median(row)
            for row in _right(document)
        }
        return {
            _packed(spec, devices): times[spec, 0] / times[spec, _PACKS]
            for spec in _OURS
            if (spec, 0) in times and (spec, _PACKS) in times
        }

    flags = (
        "--sizes=4K*1000",
        f"--num_gpus={devices}",
        f"--all_reduce_spec={','.join(_OURS)}",
        f"--gradient_repacking=0,{_PACKS}",
        f"--num_batches={batches}",
        "--iters_per_step=2",
    )
    demands = tuple(_demand("small", _packed(spec, devices), 3.0) for spec in _OURS)
    return Experiment("small", f"small tensors on {devices} devices", flags, demands, figures)


def _packed(spec: str, devices: int) -> str:
    return f"1000 x 4 KiB, {devices} devices: {spec} packed / unpacked"


def _large(devices: int, batches: int) -> Experiment:
    def figures(document: Mapping[str, Any]) -> Figures:
        rates = {copy["bytes"]: _rate(copy) for copy in document["copies"]}
        return {
            _share(row["spec"], row["bytes"] >> 20, devices): (
                2 * (devices - 1) * row["bytes"] / rates[row["bytes"]] / _median(row)
            )
            for row in _right(document)
            if row["bytes"] in rates
        }

    flags = (
        f"--sizes={','.join(f'{size}M' for size in _LARGE)}",
        f"--num_gpus={devices}",
        "--all_reduce_spec=xring",
        f"--num_batches={batches}",
    )
    demands = tuple(_demand("large", _share("xring", size, devices), 0.6) for size in _LARGE)
    return Experiment("large", f"large tensors on {devices} devices", flags, demands, figures)


def _share(spec: str, mebibytes: int, devices: int) -> str:
    return f"{mebibytes} MiB, {devices} devices: {spec} / memory-copy bound"


def _build(model: str, counts: Sequence[int]) -> Experiment:
    def figures(document: Mapping[str, Any]) -> Figures:
        found: Figures = {}
        for spec in _OURS:
            seconds = {
                row["devices"]: row["build_seconds"]
                for row in document["points"]
                if row["spec"] == spec and row["error"] is None
            }
            if set(seconds) >= set(counts):
                first, last = seconds[counts[0]], seconds[counts[-1]]
                found[_built(model, spec, counts[-1])] = last
                found[_growth(model, spec, counts)] = last / first * counts[0] / counts[-1]
        return found

    flags = (
        f"--model={model}",
        f"--num_gpus={','.join(map(str, counts))}",
        f"--all_reduce_spec={','.join(_OURS)}",
        "--build_only",
    )
    demands = []
    for spec in _OURS:
        seconds = _demand("build", _built(model, spec, counts[-1]), _BUILD_SECONDS)
        growth = _demand("build", _growth(model, spec, counts), 1.0)
        demands += [
            dataclasses.replace(seconds, at_most=True, is_ratio=False),
            dataclasses.replace(growth, at_most=True),
        ]
    return Experiment("build", f"build of {model}", flags, tuple(demands), figures)


def _built(model: str, spec: str, devices: int) -> str:
    return f"{model}, {devices} devices: {spec} traced and built, s"


def _growth(model: str, spec: str, counts: Sequence[int]) -> str:
    return f"{model}, {counts[0]} to {counts[-1]} devices: {spec} build time over devices"


def _demand(scenario: str, text: str, bound: float) -> Demand:
    return Demand(scenario, text, (), lambda readings: None, bound)


def _right(document: Mapping[str, Any]) -> list[Row]:
    """Rows that were timed and whose sums are right: a wrong sum has no speed."""
    rows = [*document["points"], *document.get("peers", [])]
    return [row for row in rows if row["seconds"] and not row["wrong"] and row["error"] is None]


def _median(row: Row) -> float:
    return float(statistics.median(row["seconds"]))


def _rate(copy: Row) -> float:
    return float(copy["bytes"] * copy["devices"] / statistics.median(copy["seconds"]))


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
