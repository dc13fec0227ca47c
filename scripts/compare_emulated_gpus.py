"""Compares what the host does for GPUs in a step, and what reductions add to it.

GPUs are emulated (``tests/gpu_emulator``) and compute nothing: durations of their work are set, not
measured, and CPU time is the host's. Every measurement is a fresh process. In every round each
program runs once, in an order drawn from a seed; ratios and differences are formed within rounds.
The exit status is 0 if every program was measured, 2 for wrong use, 4 if one failed, 130 if
interrupted.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.demands import mean_estimate, ratio_estimate
from peers.measurement import orders
from peers.options import LEARNING_RATE, WEIGHT_DECAY, common_parser
from peers.process import ProcessError, run
from peers.programs import CHILDREN
from peers.readers import MARKER

from cnnbench.base.text.table import aligned

SCENARIOS = ("host", "reductions")
REDUCTIONS = ("nccl", "collective", "xring", "pscpu")
_NONE = "independent"
_OURS = "cnnbench"

# Ten times those of a machine whose links have 25 GB/s, so that the host's threads are not in the
# way: small kernels, convolutions, copies, and an all-reduce of a gradient of average size.
_DURATIONS = {
    "kernel_us": 100,
    "copy_us": 100,
    "copy_mb_per_s": 2500,
    "rules": "Conv2D=3000;NcclAllReduce=450;CollectiveReduce=450",
}


@dataclass(frozen=True)
class Program:
    """A program that is measured once per round.

    Attributes:
      child: its name in ``children/emulated_steps.py``.
    """

    name: str
    gpus: int
    child: str = "cnnbench"
    flags: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=lambda: {"kernel_us": 50})


def programs(scenario: str) -> list[Program]:
    """The programs of a round."""
    if scenario == "reductions":
        modes: dict[str, tuple[str, ...]] = {_NONE: (f"--variable_update={_NONE}",)}
        for spec in REDUCTIONS:
            modes[spec] = ("--variable_update=replicated", f"--all_reduce_spec={spec}")
        return [Program(name, 8, flags=flags, settings=_DURATIONS) for name, flags in modes.items()]
    nccl = ("--variable_update=replicated", "--all_reduce_spec=nccl")
    modes = {_OURS: nccl}
    for mode in ("mirrored_strategy", "parameter_server"):
        modes[f"{_OURS} {mode}"] = (f"--variable_update={mode}",)
    return [
        Program(_OURS, 1),
        *(Program(name, 8, flags=flags) for name, flags in modes.items()),
        *(Program(name, gpus, child) for gpus in (1, 8) for name, child in _PEERS.items()),
    ]


_PEERS = {
    "bare tf.function": "bare",
    "bare MirroredStrategy": "mirrored",
    "Keras fit": "keras",
}


def emulated(gpus: int, **settings: object) -> dict[str, str]:
    """Variables of the environment with which a process has emulated GPUs."""
    path = Path(__file__).parents[1] / "tests" / "gpu_emulator" / "build.py"
    spec = importlib.util.spec_from_file_location("gpu_emulator_build", path)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    found: dict[str, str] = build.environment(gpus, skip=1, **settings)
    return found


def measured(program: Program, options: Any) -> dict[str, float]:
    """What a step of a program takes; see ``Meter.measured`` in ``children/emulated_steps.py``."""
    command = [
        *(options.cnnbench_python, str(CHILDREN / "emulated_steps.py"), program.child),
        *(f"--model={options.model}", f"--gpus={program.gpus}"),
        *(f"--batch_size={options.batch_size}", f"--batches={options.batches}", "--warmup=4"),
        *(f"--learning_rate={LEARNING_RATE}", f"--weight_decay={WEIGHT_DECAY}"),
        *program.flags,
    ]
    with tempfile.TemporaryDirectory(prefix="compare-emulated-") as folder:
        environment = emulated(program.gpus, trace=folder, **program.settings)
        environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        ended = run(command, timeout=options.timeout, environment=environment, folder=folder)
    ended.require()
    for line in ended.lines:
        if line.text.startswith(MARKER):
            found: dict[str, float] = json.loads(line.text[len(MARKER) :])
            return found
    raise ValueError("it ended without a measurement")


Rounds = Mapping[str, Mapping[int, dict[str, float]]]
"""By program, then by the number of the round."""


def host_table(gpus: int, rounds: Rounds) -> list[str]:
    """Medians over rounds of what a step takes, and cnnbench's CPU time over that of each."""
    rows: list[tuple[str, ...]] = [
        (
            *(f"{gpus} GPU{'s' * (gpus > 1)}", "rounds", "kernels", "to GPUs", "to host"),
            *("between GPUs", "wall ms", "idle", "host CPU ms", "cnnbench / it", "95 % interval"),
        )
    ]
    for name, of_round in rounds.items():
        middle = {
            key: statistics.median(one[key] for one in of_round.values())
            for key in next(iter(of_round.values()))
        }
        ratio = interval = ""
        shared = of_round.keys() & rounds.get(_OURS, {}).keys()
        if name != _OURS and shared:
            found = ratio_estimate([rounds[_OURS][n]["cpu"] / of_round[n]["cpu"] for n in shared])
            ratio = f"{found.mean:.3f}"
            interval = f"{found.low:.3f} .. {found.high:.3f}" if found.rounds > 1 else ""
        copies = (
            f"{middle[k]:.0f} ({_size(middle[f'{k}_bytes'])})" for k in ("htod", "dtoh", "dtod")
        )
        rows.append(
            (
                *(name, str(len(of_round)), f"{middle['kernels']:.0f}", *copies),
                *(f"{1e3 * middle['wall']:.0f}", f"{middle['idle']:.2f}"),
                *(f"{1e3 * middle['cpu']:.1f}", ratio, interval),
            )
        )
    return aligned(rows, left=(0,))


def _size(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size:.0f} B"


def reductions_table(rounds: Rounds) -> list[str]:
    """Medians over rounds of the step, and what it takes longer than one without a reduction."""
    rows = [("all-reduce", "rounds", "step ms", "exposed ms", "95 % interval", "idle")]
    for name, of_round in rounds.items():
        wall = statistics.median(one["wall"] for one in of_round.values())
        idle = statistics.median(one["idle"] for one in of_round.values())
        exposed = interval = ""
        shared = of_round.keys() & rounds.get(_NONE, {}).keys()
        if name != _NONE and shared:
            own, none = of_round, rounds[_NONE]
            found = mean_estimate([1e3 * (own[n]["wall"] - none[n]["wall"]) for n in shared])
            exposed = f"{found.mean:.0f}"
            interval = f"{found.low:.0f} .. {found.high:.0f}" if found.rounds > 1 else ""
        figures = f"{1e3 * wall:.0f}", exposed, interval, f"{idle:.2f}"
        rows.append((name, str(len(of_round)), *figures))
    return aligned(rows, left=(0,))


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit status."""
    parser = common_parser(
        "compare_emulated_gpus",
        "Measures the host's work per step on emulated GPUs, of cnnbench and of its peers, and the "
        "exposed time of all-reduces at set durations of kernels and copies.",
        SCENARIOS,
        "timed steps of a measurement",
    )
    parser.add_argument("--model", default="resnet50", help="resnet50 (default) or trivial")
    parser.add_argument("--batch_size", type=int, default=1, help="images per GPU (default: 1)")
    parser.add_argument("--only", help="comma-separated programs, as tables name them")
    options = parser.parse_args(argv)
    if options.batches < 2:
        parser.error("--batches must be at least 2")
    # Built, or refused, before anything is measured.
    emulated(1)
    results: dict[tuple[str, int], dict[str, dict[int, dict[str, float]]]] = {}
    failed = interrupted = False
    try:
        for scenario in options.scenarios:
            chosen = programs(scenario)
            if options.only is not None:
                chosen = [one for one in chosen if one.name in options.only.split(",")]
            for program in chosen:
                results.setdefault((scenario, program.gpus), {})[program.name] = {}
            turns = enumerate(orders(chosen, options.rounds, options.seed), start=1)
            for number, program in itertools.chain.from_iterable(
                ((number, program) for program in order) for number, order in turns
            ):
                place = f"{scenario} {number}/{options.rounds}: {program.name}, {program.gpus} GPUs"
                print(place, file=sys.stderr, flush=True)
                try:
                    found = measured(program, options)
                except (ProcessError, ValueError) as error:
                    failed = True
                    print(f"  failed: {error}", file=sys.stderr, flush=True)
                else:
                    results[scenario, program.gpus][program.name][number] = found
    except KeyboardInterrupt:
        interrupted = True
        print("compare_emulated_gpus: interrupted", file=sys.stderr)
    for (scenario, gpus), of_program in results.items():
        rounds = {name: of_round for name, of_round in of_program.items() if of_round}
        if scenario == "reductions":
            print("\n".join(reductions_table(rounds)), end="\n\n")
        else:
            print("\n".join(host_table(gpus, rounds)), end="\n\n")
    if not results and not interrupted:
        print(f"compare_emulated_gpus: --only={options.only} names no program", file=sys.stderr)
        return 2
    return 130 if interrupted else 4 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
