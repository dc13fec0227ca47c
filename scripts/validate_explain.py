"""How often `cnnbench explain` names a planted cause first, and nothing on like sides.

Real processes of every side are profiled into --pool, one of each side in turn, and each trial
explains some of them, drawn at random: trials share processes. Run again with the same --pool, it
adds to it. The exit status is 0 when each plant was named first in 19 of 20 trials, and nothing on
like sides; 1 when not, 2 for wrong use, 4 when a process fails.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gate_validation.neighbour import neighbour

from cnnbench.judge.explain import explain
from cnnbench.records.explanation import Explanation
from cnnbench.records.step_profile import StepProfile

PLUGIN = Path(__file__).parent / "explain_validation" / "planted_plugin.py"
DEMAND = 0.95
TIMEOUT = 1200.0


@dataclass(frozen=True)
class Side:
    """What one side of a comparison runs: flags, and a plant of the plug-in."""

    flags: tuple[str, ...] = ()
    plant: str = ""


_TOWERS = ("--num_gpus=4", "--batch_size=2", "--variable_update=replicated")
SIDES = {
    "base": Side(),
    "again": Side(),
    "bf16": Side(("--precision=bf16",)),
    "towers": Side((*_TOWERS, "--all_reduce_spec=pscpu")),
    "kernel": Side(plant="kernel"),
    "precision": Side(("--precision=bf16",), "precision"),
    "batch_norm": Side(plant="batch_norm"),
    "copies": Side(plant="copies"),
    "program": Side(plant="program"),
    "input": Side(plant="input"),
    "threads": Side(("--num_intra_threads=1",)),
    "reduction": Side((*_TOWERS, "--all_reduce_spec=collective")),
}


@dataclass(frozen=True)
class Comparison:
    """What a side is compared with, and the kinds of causes that are right; none on like sides."""

    a: str
    kinds: tuple[str, ...] = ()


COMPARISONS = {
    "again": Comparison("base"),
    "kernel": Comparison("base", ("operations", "work", "kernel")),
    "precision": Comparison("bf16", ("precision",)),
    "batch_norm": Comparison("base", ("batch norm",)),
    "copies": Comparison("base", ("copies",)),
    "program": Comparison("base", ("program",)),
    "input": Comparison("base", ("input",)),
    "threads": Comparison("base", ("threads",)),
    "reduction": Comparison("towers", ("reduction",)),
}
"""By the name of side B."""

NETWORKS = {
    "lenet": ("--batch_size=32", "--profile_steps=20"),
    "resnet20": ("--data_name=cifar10", "--batch_size=16", "--profile_steps=20"),
    "resnet50": ("--batch_size=2", "--profile_steps=8"),
}
"""Flags by network."""

_LACKING = {("lenet", "batch_norm")}  # it has none


class FailedError(Exception):
    """A process that left no profile; one line."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; wrong use ends the program with status 2."""
    parser = argparse.ArgumentParser(prog="validate_explain", description=__doc__)
    add = parser.add_argument
    add("networks", nargs="*", metavar="NETWORK", help=f"some of {', '.join(NETWORKS)} [all]")
    add("--pool", type=Path, required=True, help="folder of profiles")
    add("--sides", help="only these of the pool and the comparisons, with commas [all]")
    add("--processes", type=int, default=8, help="of each side in the pool [8]")
    add("--minutes", type=float, default=0.0, help="add processes for at most so long [0]")
    add("--trials", type=int, default=20, help="of each comparison [20]")
    add("--rounds", type=int, default=3, help="processes of each side in a trial [3]")
    add("--seed", type=int, default=1, help="of the order of processes and the trials [1]")
    add(
        "--neighbour",
        type=float,
        choices=(0.0, 0.5, 1.0, 2.0),
        default=0.0,
        help="CPUs that programs beside the processes keep busy [0]",
    )
    options = parser.parse_args(argv)
    options.sides = options.sides.split(",") if options.sides else list(SIDES)
    for given, known in ((options.networks, NETWORKS), (options.sides, SIDES)):
        if unknown := set(given) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
    if min(options.trials, options.rounds, options.processes) < 1:
        parser.error("--trials, --rounds and --processes must be at least 1")
    options.networks = options.networks or list(NETWORKS)
    return options


def files_of(pool: Path, network: str, side: str) -> list[Path]:
    """The profiles of one side."""
    return sorted((pool / network / side).glob("*.profile"))


def missing(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Networks, sides and numbers of processes that the pool lacks, one of each side in turn."""
    for turn in range(options.processes):
        for network in options.networks:
            sides = [side for side in options.sides if (network, side) not in _LACKING]
            random.Random(f"{options.seed} {network} {turn}").shuffle(sides)
            for side in sides:
                if len(files_of(options.pool, network, side)) <= turn:
                    yield network, side, turn


def profile(pool: Path, network: str, side: str, turn: int) -> None:
    """Adds a process to the pool.

    Raises:
      FailedError: it left no profile.
    """
    folder = pool / network / side
    folder.mkdir(parents=True, exist_ok=True)
    flags = NETWORKS[network]
    (steps,) = (int(flag.split("=")[1]) for flag in flags if "profile_steps" in flag)
    command = [
        *(sys.executable, "-m", "cnnbench", "run", f"--model_plugin={PLUGIN}"),
        *(f"--model=planted_{network}", "--device=cpu", "--quiet_conditions=all", *flags),
        *("--warmup=fixed", f"--num_warmup_batches={5 + steps}", f"--num_batches={steps}"),
        *(f"--profile_json={folder / f'{turn:03d}.profile'}", *SIDES[side].flags),
    ]
    environment = {**os.environ, "PLANT": SIDES[side].plant}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FailedError(f"{network}, side {side}: exit code {done.returncode}: {why}")


def fill(options: argparse.Namespace) -> None:
    """Adds processes until the pool is full or the time is over.

    Raises:
      FailedError: one left no profile.
    """
    end = time.monotonic() + 60 * options.minutes
    with neighbour(options.neighbour, options.seed):
        for network, side, turn in missing(options):
            if time.monotonic() > end:
                return
            profile(options.pool, network, side, turn)


def trials(options: argparse.Namespace, network: str, new: str) -> list[Explanation]:
    """Explanations of processes drawn from the pool; none if it has too few."""
    base, new_ones = (load(options.pool, network, side) for side in (COMPARISONS[new].a, new))
    if min(len(base), len(new_ones)) < options.rounds:
        return []
    draw = random.Random(f"{options.seed} {network} {new}")
    return [
        explain(draw.sample(base, options.rounds), draw.sample(new_ones, options.rounds))
        for _ in range(options.trials)
    ]


def halves(options: argparse.Namespace, network: str) -> list[Explanation]:
    """Explanations of like processes: each side against itself, no process on both sides."""
    found = []
    for side in options.sides:
        profiles, draw = load(options.pool, network, side), random.Random(f"{options.seed} {side}")
        if len(profiles) < 2 * options.rounds:
            continue
        for _ in range(options.trials):
            drawn = draw.sample(profiles, 2 * options.rounds)
            found.append(explain(drawn[: options.rounds], drawn[options.rounds :]))
    return found


@functools.cache
def load(pool: Path, network: str, side: str) -> list[StepProfile]:
    """The profiles of one side."""
    return [StepProfile.from_json(file.read_bytes()) for file in files_of(pool, network, side)]


def is_right(kinds: Sequence[str], found: Explanation) -> bool:
    """Whether the first cause is one of some kinds; without kinds, whether there is none."""
    named = [cause.kind for cause in found.causes]
    return bool(named) and named[0] in kinds if kinds else not named


def main(argv: Sequence[str]) -> int:
    """Entry point."""
    options = parse(argv)
    try:
        fill(options)
    except (FailedError, subprocess.TimeoutExpired) as error:
        print(f"validate_explain: {error}", file=sys.stderr)
        return 4
    met = True
    for network in options.networks:
        for new in (name for name in COMPARISONS if name in options.sides):
            if (network, new) in _LACKING:
                continue
            kinds = COMPARISONS[new].kinds
            found = trials(options, network, new)
            wrong = [one for one in found if not is_right(kinds, one)]
            allowed = (1 - DEMAND) * len(found) if kinds else 0
            met &= bool(found) and len(wrong) <= allowed
            what = "named first" if kinds else "nothing named"
            count = len(files_of(options.pool, network, new))
            right = len(found) - len(wrong)
            print(f"{network} {new}: {what} in {right} of {len(found)}, {count} processes")
            for one in wrong[:3]:
                print(f"  {one.answer}")
        alike = halves(options, network)
        named = sum(bool(one.causes) for one in alike)
        print(f"{network}, each side against itself: a cause named in {named} of {len(alike)}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
