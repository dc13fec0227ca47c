"""Measures error rates and power of cnnbench's verdicts; see docs/evidence.md.

All simulations with 2,000 draws take one to two hours of CPU time, mostly for experiments that are
continued up to 76 pairs. Measurements of real processes take --minutes, and can be
continued later from the measurements in --pool. The exit status is 0 if all requirements are met, 1
if a requirement is missed, 2 for wrong use, 3 if there are too few measurements, 4 if processes
fail, and 130 if interrupted.
"""

from __future__ import annotations

import csv
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from command_line import parse_options, run_script
from measuring import keep_cpus_busy, neighbour_flag
from validation import gates, planted_plugin
from validation import pool as pools
from validation.advice import ADVICE
from validation.histories import HISTORY
from validation.lengths import LENGTHS
from validation.metrics import SEVERAL_METRICS
from validation.other_rules import OTHER_RULES, SHARE_COLUMNS, share_cases, simulate_tool
from validation.pauses import PAUSES
from validation.pool import Pool, PoolError
from validation.races import RACES
from validation.studies import POLICY, Requirement, Study, simulate_and_sum, table
from validation.suites import SUITES
from validation.verdicts import RATES, SAMPLES, SMALL

from cnnbench.base.interrupts import handling_signals
from cnnbench.errors import ExitCode, FlagError
from cnnbench.flags.declare import flag
from cnnbench.machine import facts as environment

STUDIES: Mapping[str, tuple[str, Sequence[Study]]] = {
    "verdicts": ("Simulated, {} draws of each", (RATES, SMALL, SAMPLES)),
    "suites": ("Several configurations", (SUITES,)),
    "metrics": ("Several metrics", (SEVERAL_METRICS,)),
    "pauses": ("Pauses, slower · same in per cent", (PAUSES,)),
    "advice": ("Advice", (ADVICE,)),
    "lengths": ("Lengths of processes", (LENGTHS,)),
    "races": ("Races", (RACES,)),
    "history": ("History", HISTORY),
    "rules": ("Rules of other tools", (OTHER_RULES,)),
}
"""Simulations by name, each with a title and its studies."""


@dataclass(kw_only=True)
class Options:
    """Command-line options: simulations, measurements and rules."""

    pool: str | None = flag(
        None, "Folder of measurements of real processes; by default, none are used.", path="folder"
    )
    minutes: float = flag(0.0, "Time in minutes for adding processes to --pool.", minimum=0.0)
    draws: int = flag(
        2000,
        "Draws of each simulation. Pauses, lengths and histories have a quarter of this number, "
        "and advice a tenth. 0 omits the simulations.",
        minimum=0,
    )
    only: str = flag(
        "all",
        "The only simulation: verdicts, suites of several configurations, several metrics, pauses "
        "between steps, advice for inconclusive comparisons, lengths of processes, races of tune, "
        "level changes in history, or the rules of other tools.",
        choices=("all", *STUDIES),
    )
    gates: int = flag(20000, "Maximum number of gates that are formed from the pool.", minimum=1)
    batch_size: int = flag(16, "Images per step of the real processes.", minimum=1)
    num_batches: int = flag(480, "Timed steps of a real process.", minimum=1)
    pairing: str = flag(
        "turns",
        "turns: the processes of a round are interleaved in short time slices; alternate: they run "
        "one after the other.",
        choices=("turns", "alternate"),
    )
    neighbour: str = neighbour_flag()
    slowed: tuple[float, ...] = flag(
        (5.0, 10.0), "Slowdowns of slowed processes, in per cent.", above=0, below=100
    )
    threshold: float = flag(3.0, "Threshold of gates from real processes, in per cent.")
    seed: int = flag(1, "Seed of all draws.")
    output: str | None = flag(None, "Also write the tables to this file.", path="file")
    shares: str | None = flag(
        None,
        "Only write this CSV file: how often cnnbench and other tools call B slower, by the noise "
        "and the true slowdown (docs/evidence/rules.csv).",
        path="file",
    )

    def check(self) -> None:
        """Raises UsageError if options contradict each other."""
        if self.shares is not None and not self.draws:
            raise FlagError("draws", self.draws, "--shares needs at least one draw")
        if self.minutes and self.pool is None:
            raise FlagError("minutes", self.minutes, "needs --pool, the folder for measurements")

    @property
    def busy(self) -> float:
        """Number of CPUs that other programs keep busy during measurements."""
        return float(self.neighbour)


def plan_of(options: Options) -> dict[str, Any]:
    """Returns the properties that all processes of a pool must share."""
    facts = environment.collect()
    return {
        # The path of the plug-in is omitted, because it changes with the checkout.
        "flags": [
            *(f"--model={planted_plugin.SLOWED}", "--data_name=imagenet", "--device=cpu"),
            *(f"--batch_size={options.batch_size}", f"--num_batches={options.num_batches}"),
            *("--num_warmup_batches=20", "--display_every=1000", "--peak_flops=1e12"),
        ],
        "speed": "over all timed steps",  # Earlier pools used the median step.
        "seed": options.seed,
        "pairing": options.pairing,
        "slowed": [one / 100 for one in options.slowed],
        "neighbour": options.busy,
        **{name: facts.get(name) for name in ("cpu_model", "tensorflow_version")},
    }


def open_pool(options: Options) -> Pool | None:
    """Opens the pool, and adds processes for the requested time.

    Raises:
      PoolError: it cannot be continued.
    """
    if options.pool is None:
        return None
    pool = Pool(Path(options.pool), plan_of(options))
    if options.minutes:
        if pool.rows is None:  # Calibration comes first, because it needs idle CPUs.
            pools.calibrate(pool)
        with keep_cpus_busy(options.busy, options.seed):
            pools.fill(pool, 60 * options.minutes)
    return pool


def write_shares(options: Options, path: Path) -> None:
    """Simulates experiments with cnnbench and other tools; writes how often they call B slower."""
    cases = share_cases()
    sums = partial(simulate_and_sum, simulate_tool, draws=options.draws, seed=options.seed)
    with ProcessPoolExecutor() as processes:
        found = [*processes.map(sums, cases)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(SHARE_COLUMNS)
        for (rule, noise, slowdown), outcome in zip(cases, found, strict=True):
            share = outcome["slower"] / options.draws
            writer.writerow((rule, noise, f"{100 * slowdown:g}", f"{100 * share:.1f}"))


def report(options: Options, pool: Pool | None) -> tuple[list[str], ExitCode]:
    """Runs the simulations; returns the lines of all tables, and the exit code."""
    lines: list[str] = []
    found: list[Requirement] = []
    with ProcessPoolExecutor() as processes:
        for name, (title, studies) in STUDIES.items():
            if options.draws and options.only in ("all", name):
                lines += [f"### {title.format(options.draws)}", ""]
                for study in studies:
                    tables, required = study.run(options.draws, options.seed, processes.map)
                    lines, found = lines + tables, found + required
    rounds = [] if pool is None else pool.rounds()
    if rounds:
        policy = POLICY.replace(threshold=options.threshold / 100)
        formed = list(gates.all_gates(rounds, options.seed, options.gates, policy))
        lines += ["### Real processes", ""]
        if len(rounds) > 1:
            lines += [*gates.conditions(rounds), ""]
        lines += [*gates.gates_table(formed), ""]
        found += gates.requirements(formed, options.busy)
    words = {True: "met", False: "MISSED", None: "not enough gates"}
    rows = [(one.text, one.found, words[one.met]) for one in found]
    lines += ["### Demands", "", *table(("demand", "found", "verdict"), rows)]
    verdicts = {one.met for one in found}
    if False in verdicts:
        return lines, ExitCode.REGRESSION
    return lines, ExitCode.INCONCLUSIVE if None in verdicts or not found else ExitCode.OK


@handling_signals(signal.default_int_handler)  # SIGTERM acts like Ctrl-C.
def main(argv: Sequence[str]) -> int:
    """Runs simulations and measurements; returns the exit status."""
    options = parse_options(Options, __doc__, argv, Options.check)
    try:
        if options.shares is not None:
            write_shares(options, Path(options.shares))
            return ExitCode.OK
        pool = open_pool(options)
        lines, code = report(options, pool)
        text = "\n".join(lines) + "\n"
        if options.output is not None:
            Path(options.output).write_text(text, encoding="utf-8")
    except PoolError as error:
        print(f"validate_gate: error: {error}", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        print("validate_gate: interrupted; the same command continues", file=sys.stderr)
        return ExitCode.INTERRUPTED
    print(text, end="")
    return code


if __name__ == "__main__":
    run_script(main)
