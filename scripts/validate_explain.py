"""Measures how often `cnnbench explain` names a planted cause first, and names none without one.

Programs A and B of each comparison are profiled in real processes, in rotation, into --pool. Each
trial explains a random sample of the processes, so trials share processes. A further run with the
same --pool adds processes to it. Each process waits until other programs use fewer CPUs than
--load, and is repeated if other programs used more CPUs in its timed steps; the number of
repetitions is printed. The exit status is 0 if each planted cause was named first in 9 of 10
trials, and no cause was named in 98 of 100 trials in which A and B are equal. It is 1 if not, 2 for
wrong use, and 4 if a process fails.
"""

from __future__ import annotations

import functools
import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from command_line import parse_options, run_script
from measuring import keep_cpus_busy, measure, neighbour_flag
from validation import planted_plugin

from cnnbench.campaigns.ab import side as ab
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.flags.declare import flag, split_comma_separated
from cnnbench.judge.explain import explain
from cnnbench.machine.counters import changes, read_counters
from cnnbench.machine.cpu import Host
from cnnbench.records.explanation import Explanation
from cnnbench.records.profiles import StepProfile

PLUGIN = Path(planted_plugin.__file__).resolve()
NAMED, SILENT = 0.90, 0.98
"""Smallest shares of right trials: with a planted cause, and with equal A and B."""

TIMEOUT = 1200.0


@dataclass(frozen=True)
class Side:
    """Program B of a comparison, and the cause that `cnnbench explain` must name first.

    Attributes:
      plant: name of the slowdown that the plug-in `planted_plugin` adds; "" for none.
      against: name of program A of the comparison; "" if this program is only used as A.
      kinds: the right kinds of causes; none if A and B are equal.
    """

    flags: tuple[str, ...] = ()
    plant: str = ""
    against: str = ""
    kinds: tuple[str, ...] = ()


_BF16 = ("--precision=bf16",)
_TOWERS = ("--num_gpus=4", "--batch_size=2", "--variable_update=replicated")
# A network that computes in bf16 is needed for the plant that computes one layer in fp32.
_BASES = {"precision": "bf16"}
SIDES = {
    "base": Side(),
    "bf16": Side(_BF16),
    "towers": Side((*_TOWERS, "--all_reduce_spec=pscpu")),
    "again": Side((), "", "base"),
    **{
        name: Side(_BF16 if name in _BASES else (), name, _BASES.get(name, "base"), kinds)
        for name, (_, kinds) in planted_plugin.PLANTS.items()
    },
    "threads": Side(("--num_intra_threads=1",), "", "base", ("threads",)),
    "reduction": Side((*_TOWERS, "--all_reduce_spec=collective"), "", "towers", ("reduction",)),
}

NETWORKS = {
    "lenet": ("20", "--batch_size=32"),
    "resnet20": ("20", "--batch_size=16", "--data_name=cifar10"),
    "resnet50": ("8", "--batch_size=2"),
}
"""Profiled steps and flags by network."""


def sides_of(network: str) -> dict[str, Side]:
    """Returns the programs that exist for a network, by name; LeNet has no batch norm."""
    return {
        name: side for name, side in SIDES.items() if (network, name) != ("lenet", "batch_norm")
    }


@dataclass(kw_only=True)
class Options:
    """Command-line options: measurements and trials."""

    networks: str = flag(",".join(NETWORKS), "Networks, separated by commas.")
    sides: str = flag(",".join(SIDES), "Programs to profile and compare, separated by commas.")
    pool: str = flag("", "Folder of profiles.", path="folder")
    processes: int = flag(8, "Processes of each program in the pool.", minimum=1)
    minutes: float = flag(0.0, "Time in minutes for adding processes to the pool.", minimum=0.0)
    load: float = flag(
        0.2, "CPUs that programs other than --neighbour may use during a process.", minimum=0.0
    )
    trials: int = flag(20, "Trials of each comparison.", minimum=1)
    rounds: int = flag(3, "Processes of each of A and B in a trial.", minimum=1)
    seed: int = flag(1, "Seed of the order of processes and of the trials.")
    neighbour: str = neighbour_flag()

    def check(self) -> None:
        """Raises UsageError if an option is invalid."""
        if not self.pool:
            raise FlagError("pool", self.pool, "must be the folder of profiles")
        for name, known in (("networks", NETWORKS), ("sides", SIDES)):
            if unknown := set(split_comma_separated(getattr(self, name))) - set(known):
                reason = f"there are {', '.join(known)}"
                raise FlagError(name, ",".join(sorted(unknown)), reason)


def files_of(pool: str, network: str, side: str) -> list[Path]:
    """Returns the paths of one program's profiles."""
    return sorted(Path(pool, network, side).glob("*.profile"))


def missing(options: Options) -> Iterator[tuple[str, str, int]]:
    """Yields network, program and number of each process that the pool lacks."""
    for turn in range(options.processes):
        for network in split_comma_separated(options.networks):
            sides = [
                side for side in split_comma_separated(options.sides) if side in sides_of(network)
            ]
            random.Random(f"{options.seed} {network} {turn}").shuffle(sides)
            for side in sides:
                if len(files_of(options.pool, network, side)) <= turn:
                    yield network, side, turn


def profile(path: Path, network: str, side: str) -> StepProfile:
    """Runs a process that writes its profile to `path`.

    Raises:
      BenchmarkError: the process wrote no profile.
    """
    (steps, *flags), chosen = NETWORKS[network], SIDES[side]
    given = (
        *(f"--plugin={PLUGIN}", f"--model=planted_{network}", "--device=cpu"),
        *("--quiet_conditions=all", *flags, "--warmup=fixed"),
        *(f"--num_warmup_batches={5 + int(steps)}", f"--num_batches={steps}"),
        *(f"--profile_steps={steps}", f"--profile_json={path}"),
        *chosen.flags,
    )
    (ended,) = measure([ab.AbSide(flags=given, variables={"PLANT": chosen.plant})], TIMEOUT)
    if ended.message:
        raise BenchmarkError(f"{network}, side {side}: {ended.message}")
    return StepProfile.from_json(path.read_bytes())


def other_cpus() -> float:
    """Measures how many CPUs other programs use during one second; 0 if unknown."""
    first = read_counters(Host())
    time.sleep(1.0)
    return changes(first, read_counters(Host())).get("other_cpus", 0.0)


def add_process_to_pool(options: Options, network: str, side: str, turn: int, end: float) -> None:
    """Adds a process to the pool while other programs use few CPUs; repeats disturbed processes.

    Profiles of disturbed processes are kept as ``PROCESS.NUMBER.disturbed``.

    Args:
      end: time (`time.monotonic`) after which no process is started.

    Raises:
      BenchmarkError: a process wrote no profile.
    """
    limit = options.load + float(options.neighbour)
    folder = Path(options.pool, network, side)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{turn:03d}.measured"
    while time.monotonic() < end:
        if other_cpus() >= limit:
            continue
        found = profile(path, network, side)
        if (found.record.condition("other_cpus") or 0.0) < limit:
            path.rename(path.with_suffix(".profile"))
            return
        number = len([*folder.glob(f"{turn:03d}.*.disturbed")])
        path.rename(folder / f"{turn:03d}.{number}.disturbed")


def fill(options: Options) -> None:
    """Adds processes until the pool is complete or the time is over.

    Raises:
      BenchmarkError: a process wrote no profile.
    """
    end = time.monotonic() + 60 * options.minutes
    with keep_cpus_busy(float(options.neighbour), options.seed):
        for network, side, turn in missing(options):
            if time.monotonic() > end:
                return
            add_process_to_pool(options, network, side, turn, end)


def trials(options: Options, network: str, new: str) -> list[Explanation]:
    """Explains differences between processes from the pool; [] if the pool has too few."""
    sides = (SIDES[new].against, new)
    base, new_ones = (load(options.pool, network, side) for side in sides)
    if min(len(base), len(new_ones)) < options.rounds:
        return []
    draw = random.Random(f"{options.seed} {network} {new}")
    return [
        explain(draw.sample(base, options.rounds), draw.sample(new_ones, options.rounds))
        for _ in range(options.trials)
    ]


def explain_equal_samples(options: Options, network: str) -> list[tuple[str, Explanation]]:
    """Explains differences between disjoint samples of the same program's processes.

    Each division of the processes into two samples is explained at most once.
    """
    explanations = []
    for side in split_comma_separated(options.sides):
        profiles, draw = load(options.pool, network, side), random.Random(f"{options.seed} {side}")
        samples = [*itertools.combinations(range(len(profiles)), options.rounds)]
        pairs = itertools.combinations(samples, 2)
        divisions = [(base, new) for base, new in pairs if not {*base} & {*new}]
        for division in draw.sample(divisions, min(options.trials, len(divisions))):
            base, new = ([profiles[index] for index in sample] for sample in division)
            explanations.append((side, explain(base, new)))
    return explanations


@functools.cache
def load(pool: str, network: str, side: str) -> list[StepProfile]:
    """Loads the profiles of one program."""
    return [StepProfile.from_json(file.read_bytes()) for file in files_of(pool, network, side)]


def is_right(kinds: Sequence[str], found: Explanation) -> bool:
    """Whether the first cause has a right kind or, if A and B are equal, no cause is named."""
    first = found.causes[0].kind if found.causes else ""
    return first in (kinds or [""])


def main(argv: Sequence[str]) -> int:
    """Profiles all programs, and runs all trials; returns the exit status."""
    options = parse_options(Options, __doc__, argv, Options.check)
    try:
        fill(options)
    except BenchmarkError as error:
        print(f"validate_explain: {error}", file=sys.stderr)
        return 4
    met = True
    for network in split_comma_separated(options.networks):
        for new, side in sides_of(network).items():
            if new in split_comma_separated(options.sides) and side.against:
                met &= report(options, network, new)
        equal = explain_equal_samples(options, network)
        named = [f"  {side}: {one.answer}" for side, one in equal if one.causes]
        met &= len(named) <= (1 - SILENT) * len(equal)
        print(f"{network}, each side against itself: a cause named in {len(named)} of {len(equal)}")
        for line in named:
            print(line)
        disturbed = len([*Path(options.pool, network).glob("*/*.disturbed")])
        print(f"{network}: {disturbed} processes were repeated, because others used CPUs")
    return 0 if met else 1


def report(options: Options, network: str, new: str) -> bool:
    """Prints how often the right cause was named; returns whether this is often enough."""
    side, found = SIDES[new], trials(options, network, new)
    wrong = [one for one in found if not is_right(side.kinds, one)]
    what, least = ("named first", NAMED) if side.kinds else ("nothing named", SILENT)
    count = len(files_of(options.pool, network, new))
    right = len(found) - len(wrong)
    print(f"{network} {new}: {what} in {right} of {len(found)}, {count} processes")
    for one in wrong[:3]:
        print(f"  {one.answer}")
    return bool(found) and right >= least * len(found)


if __name__ == "__main__":
    run_script(main)
