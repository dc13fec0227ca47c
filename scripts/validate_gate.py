"""Measures error rates and power of cnnbench's verdicts; see docs/methodology.md.

Simulations take a few minutes. The part with real processes takes as long as --minutes says
and can be continued later from the measurements in --pool. The exit status is 0 when all
demands are met, 1 when one is missed, 2 for wrong use, 3 when there are too few measurements, 4
when processes fail, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gate_validation import gates, simulation, tables
from gate_validation import pool as pools
from gate_validation.neighbour import neighbour
from gate_validation.pool import SLOWED, Pool, PoolError, slowed_by
from gate_validation.rules import POLICY

from cnnbench.errors import ExitCode
from cnnbench.machine import facts as environment


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; wrong use ends the program with status 2."""
    parser = argparse.ArgumentParser(prog="validate_gate", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--pool", type=Path, help="folder of real processes; none are used without it")
    add("--minutes", type=float, default=0.0, help="add processes to the pool for so long [0]")
    add("--draws", type=int, default=2000, help="of each simulation; 0 leaves them out [2000]")
    add("--gates", type=int, default=20000, help="formed of the pool at every round [20000]")
    add("--batch_size", type=int, default=16, help="of the real processes [16]")
    add("--num_batches", type=int, default=480, help="timed steps of a real process [480]")
    add(
        "--pairing",
        choices=("turns", "alternate"),
        default="turns",
        help="the processes of a round are started together and step in turn, or run one after "
        "the other [turns]",
    )
    add(
        "--neighbour",
        type=float,
        choices=(0.0, 0.5, 1.0, 2.0),
        default=0.0,
        help="CPUs that programs beside the real processes keep busy; 0.5 is one in bursts [0]",
    )
    add(
        "--slowed",
        type=_shares,
        default=_shares("5,10"),
        help="how much slower slowed processes are, in per cent, comma-separated [5,10]",
    )
    add("--threshold", type=float, default=3.0, help="of the gates of real ones, in per cent [3]")
    add("--seed", type=int, default=1, help="[1]")
    add("--output", type=Path, help="write the tables to this file, too")
    options = parser.parse_args(argv)
    if options.minutes and options.pool is None:
        parser.error("--minutes needs --pool, the folder that takes the processes")
    if options.draws < 0 or options.gates < 1 or options.minutes < 0:
        parser.error("--draws, --gates and --minutes cannot be negative")
    return options


def _shares(text: str) -> tuple[float, ...]:
    """Per cents as shares."""
    return tuple(float(word) / 100 for word in text.split(","))


def plan_of(options: argparse.Namespace) -> dict[str, Any]:
    """What all processes of a pool must have in common."""
    facts = environment.collect()
    # The place of the plug-in may change with the checkout; what it does, not.
    flags = pools.flags(options.batch_size, options.num_batches)
    return {
        "flags": [flag for flag in flags if not flag.startswith("--model_plugin=")],
        "seed": options.seed,
        # Pools of before there were turns have no word of it.
        **({"pairing": "turns"} if options.pairing == "turns" else {}),
        **({} if slowed_by(options.slowed) == SLOWED else {"slowed": list(options.slowed)}),
        **({"neighbour": options.neighbour} if options.neighbour else {}),
        **{name: facts.get(name) for name in ("cpu_model", "tensorflow_version")},
    }


def open_pool(options: argparse.Namespace) -> Pool | None:
    """The pool, filled for as long as was asked for.

    Raises:
      PoolError: it cannot be continued.
    """
    if options.pool is None:
        return None
    pool = Pool(options.pool, plan_of(options))
    if options.minutes:
        in_turn = options.pairing == "turns"
        start = pools.starter(pools.flags(options.batch_size, options.num_batches), in_turn)
        if pool.rows is None:  # before there is a neighbour, who would hide what a row costs
            pools.calibrate(pool, start)
        with neighbour(options.neighbour, options.seed):
            pools.fill(pool, start, options.seed, 60 * options.minutes, in_turn)
    return pool


def report(options: argparse.Namespace, pool: Pool | None) -> tuple[list[str], ExitCode]:
    """All tables, and the exit code."""
    lines, rates, samples, formed = [], [], [], []
    if options.draws:
        rates = list(simulation.all_rates(options.draws, options.seed))
        samples = simulation.degenerate(options.draws, options.seed)
        lines += [f"### Simulated, {options.draws} draws of each", "", *tables.simulated(rates)]
        lines += [*tables.small_samples(samples), ""]
    rounds = [] if pool is None else pool.rounds()
    if rounds:
        policy = POLICY.replace(threshold=options.threshold / 100)
        formed = list(gates.all_gates(rounds, options.seed, options.gates, policy))
        lines += ["### Real processes", ""]
        if len(rounds) > 1:
            lines += [*tables.conditions(rounds), *tables.separate_limit(formed), ""]
        lines += [*tables.real(formed), ""]
    found = tables.demands(rates, samples, formed, options.neighbour)
    lines += ["### Demands", "", *tables.demands_table(found)]
    verdicts = {one.met for one in found}
    if False in verdicts:
        return lines, ExitCode.REGRESSION
    return lines, ExitCode.INCONCLUSIVE if None in verdicts or not found else ExitCode.OK


def main(argv: Sequence[str]) -> int:
    """Entry point."""
    options = parse(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        pool = open_pool(options)
        lines, code = report(options, pool)
        text = "\n".join(lines) + "\n"
        if options.output is not None:
            options.output.write_text(text, encoding="utf-8")
    except PoolError as error:
        print(f"validate_gate: error: {error}", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        print("validate_gate: interrupted; the same command continues", file=sys.stderr)
        return ExitCode.INTERRUPTED
    print(text, end="")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
