"""Measures how often `cnnbench explain` names a planted cause first, and names none without one.

Real processes of every side are profiled into --pool, one of each side in turn, and each trial
explains some of them, drawn at random: trials share processes. Run again with the same --pool, it
adds to it. Each process waits until other programs use fewer CPUs than --load, and is repeated if
they used more in its timed steps; the number of repetitions is printed. The exit status is 0 if
each plant was named first in 9 of 10 trials, and nothing in 98 of 100 trials of like sides; 1 if
not, 2 for wrong use, 4 if a process fails.
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

from command_line import options_of, run_script
from measuring import measure, neighbour, neighbour_flag
from validation import planted_plugin

from cnnbench.campaigns.ab import side as ab
from cnnbench.errors import BenchmarkError, FlagError
from cnnbench.flags.declare import flag, split_words
from cnnbench.judge.explain import explain
from cnnbench.machine.cpu import Host
from cnnbench.machine.watch import changes, read_counters
from cnnbench.records.profiles import Explanation, StepProfile

PLUGIN = Path(planted_plugin.__file__).resolve()
NAMED, SILENT = 0.90, 0.98
"""Least shares of right trials: of a plant, and of like sides."""

TIMEOUT = 1200.0


@dataclass(frozen=True)
class Side:
    """Program of one side of a comparison, and the cause that must be named first.

    Attributes:
      plant: plant of the plug-in.
      against: the side that it is compared with; "" for one that is compared with none.
      kinds: the right kinds of causes; none on like sides.
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
    """The sides that exist for a network, by name; LeNet has no batch norm."""
    return {
        name: side for name, side in SIDES.items() if (network, name) != ("lenet", "batch_norm")
    }


@dataclass(kw_only=True)
class Options:
    """Command-line options: measurements and trials."""

    networks: str = flag(",".join(NETWORKS), "Networks, with commas.")
    sides: str = flag(",".join(SIDES), "Sides of the pool and the comparisons, with commas.")
    pool: str = flag("", "Folder of profiles.", path="folder")
    processes: int = flag(8, "Processes of each side in the pool.", minimum=1)
    minutes: float = flag(0.0, "Add processes for at most so long.", minimum=0.0)
    load: float = flag(
        0.2, "CPUs that other programs, except --neighbour, may use beside a process.", minimum=0.0
    )
    trials: int = flag(20, "Trials of each comparison.", minimum=1)
    rounds: int = flag(3, "Processes of each side in a trial.", minimum=1)
    seed: int = flag(1, "Seed of the order of processes and of the trials.")
    neighbour: str = neighbour_flag()

    def check(self) -> None:
        """Raises UsageError if an option is invalid."""
        if not self.pool:
            raise FlagError("pool", self.pool, "must be the folder of profiles")
        for name, known in (("networks", NETWORKS), ("sides", SIDES)):
            if unknown := set(split_words(getattr(self, name))) - set(known):
                reason = f"there are {', '.join(known)}"
                raise FlagError(name, ",".join(sorted(unknown)), reason)


def files_of(pool: str, network: str, side: str) -> list[Path]:
    """Paths of the profiles of one side."""
    return sorted(Path(pool, network, side).glob("*.profile"))


def missing(options: Options) -> Iterator[tuple[str, str, int]]:
    """Yields network, side and number of each process that the pool lacks."""
    for turn in range(options.processes):
        for network in split_words(options.networks):
            sides = [side for side in split_words(options.sides) if side in sides_of(network)]
            random.Random(f"{options.seed} {network} {turn}").shuffle(sides)
            for side in sides:
                if len(files_of(options.pool, network, side)) <= turn:
                    yield network, side, turn


def profile(path: Path, network: str, side: str) -> StepProfile:
    """Runs a process, which writes its profile to the path.

    Raises:
      BenchmarkError: it left no profile.
    """
    (steps, *flags), chosen = NETWORKS[network], SIDES[side]
    given = (
        *(f"--model_plugin={PLUGIN}", f"--model=planted_{network}", "--device=cpu"),
        *("--quiet_conditions=all", *flags, "--warmup=fixed"),
        *(f"--num_warmup_batches={5 + int(steps)}", f"--num_batches={steps}"),
        *(f"--profile_steps={steps}", f"--profile_json={path}"),
        *chosen.flags,
    )
    (ended,) = measure([ab.Side(flags=given, variables={"PLANT": chosen.plant})], TIMEOUT)
    if ended.message:
        raise BenchmarkError(f"{network}, side {side}: {ended.message}")
    return StepProfile.from_json(path.read_bytes())


def other_cpus() -> float:
    """Number of CPUs that other programs use during one second; 0 if unknown."""
    first = read_counters(Host())
    time.sleep(1.0)
    return changes(first, read_counters(Host())).get("other_cpus", 0.0)


def add(options: Options, network: str, side: str, turn: int, end: float) -> None:
    """Adds a process to the pool while other programs use few CPUs; repeats a disturbed one.

    Profiles of disturbed processes are kept as ``TURN.NUMBER.disturbed``.

    Args:
      end: time (`time.monotonic`) after which nothing is started.

    Raises:
      BenchmarkError: it left no profile.
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
      BenchmarkError: one left no profile.
    """
    end = time.monotonic() + 60 * options.minutes
    with neighbour(float(options.neighbour), options.seed):
        for network, side, turn in missing(options):
            if time.monotonic() > end:
                return
            add(options, network, side, turn, end)


def trials(options: Options, network: str, new: str) -> list[Explanation]:
    """Explains differences between processes drawn from the pool; none if it has too few."""
    sides = (SIDES[new].against, new)
    base, new_ones = (load(options.pool, network, side) for side in sides)
    if min(len(base), len(new_ones)) < options.rounds:
        return []
    draw = random.Random(f"{options.seed} {network} {new}")
    return [
        explain(draw.sample(base, options.rounds), draw.sample(new_ones, options.rounds))
        for _ in range(options.trials)
    ]


def halves(options: Options, network: str) -> list[tuple[str, Explanation]]:
    """Explains differences between disjoint samples of the same side.

    Each division of a side into two samples is explained once, however many trials there are.
    """
    explanations = []
    for side in split_words(options.sides):
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
    """Loads the profiles of one side."""
    return [StepProfile.from_json(file.read_bytes()) for file in files_of(pool, network, side)]


def is_right(kinds: Sequence[str], found: Explanation) -> bool:
    """Whether the first cause has a right kind; for equal sides, whether no cause is named."""
    first = found.causes[0].kind if found.causes else ""
    return first in (kinds or [""])


def main(argv: Sequence[str]) -> int:
    """Measures all sides; returns the exit status."""
    options = options_of(Options, __doc__, argv, Options.check)
    try:
        fill(options)
    except BenchmarkError as error:
        print(f"validate_explain: {error}", file=sys.stderr)
        return 4
    met = True
    for network in split_words(options.networks):
        for new, side in sides_of(network).items():
            if new in split_words(options.sides) and side.against:
                met &= report(options, network, new)
        equal = halves(options, network)
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
