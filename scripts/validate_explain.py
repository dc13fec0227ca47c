"""How often `cnnbench explain` names a planted cause first, and nothing on like sides.

Every trial runs real processes of both sides. The exit status is 0 when each plant was named first
in 19 of 20 trials, and nothing on like sides; 1 when not, 2 for wrong use, 4 when a trial fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gate_validation.neighbour import neighbour

PLUGIN = Path(__file__).parent / "explain_validation" / "planted_plugin.py"
DEMAND = 0.95
LIKE = "like"

TRIALS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    LIKE: ((), (), ("--b_env=PLANT=none",)),
    "kernel": (("operations", "work", "kernel"), (), ("--b_env=PLANT=kernel",)),
    "precision": (("precision",), ("--precision=bf16",), ("--b_env=PLANT=precision",)),
    "batch_norm": (("batch norm",), (), ("--b_env=PLANT=batch_norm",)),
    "copies": (("copies",), (), ("--b_env=PLANT=copies",)),
    "program": (("program",), (), ("--b_env=PLANT=program",)),
    "input": (("input",), (), ("--b_env=PLANT=input",)),
    "threads": (("threads",), (), ("--a=--num_intra_threads=2", "--b=--num_intra_threads=1")),
    "reduction": (
        ("reduction",),
        ("--num_gpus=2", "--variable_update=replicated"),
        ("--a=--all_reduce_spec=pscpu", "--b=--all_reduce_spec=xring#4"),
    ),
}
"""By name: kinds of causes that are right, flags of both sides, and what sets the sides apart."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; wrong use ends the program with status 2."""
    parser = argparse.ArgumentParser(prog="validate_explain", description=__doc__)
    add = parser.add_argument
    add("plants", nargs="*", metavar="PLANT", help=f"some of {', '.join(TRIALS)} [all]")
    add("--trials", type=int, default=20, help="of each [20]")
    add("--rounds", type=int, default=3, help="processes of each side in a trial [3]")
    add("--steps", type=int, default=20, help="profiled steps of a process [20]")
    add("--batch_size", type=int, default=16, help="images of a step [16]")
    add(
        "--neighbour",
        type=float,
        choices=(0.0, 0.5, 1.0, 2.0),
        default=0.0,
        help="CPUs that programs beside the processes keep busy [0]",
    )
    options = parser.parse_args(argv)
    if unknown := set(options.plants) - set(TRIALS):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(TRIALS)}")
    if min(options.trials, options.rounds) < 1:
        parser.error("--trials and --rounds must be at least 1")
    return options


def explanation(options: argparse.Namespace, plant: str, folder: str) -> dict[str, Any]:
    """The document of one trial.

    Raises:
      RuntimeError: it failed.
    """
    _, both, sides = TRIALS[plant]
    file = Path(folder) / "why.json"
    words = [
        *(sys.executable, "-m", "cnnbench", "explain", *sides),
        *(f"--rounds={options.rounds}", f"--steps={options.steps}", "--format=json"),
        *(f"--results={folder}/results", f"--output={file}", "--"),
        *(f"--model_plugin={PLUGIN}", "--model=planted", "--device=cpu", *both),
        *(f"--batch_size={options.batch_size}", "--quiet_conditions=all"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PLANT"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def is_right(plant: str, document: dict[str, Any]) -> bool:
    """Whether the cause is named first; of like sides, that none is."""
    kinds = [cause["kind"] for cause in document["causes"]]
    return not kinds if plant == LIKE else bool(kinds) and kinds[0] in TRIALS[plant][0]


def main(argv: Sequence[str]) -> int:
    """Entry point."""
    options = parse(argv)
    met = True
    for plant in options.plants or TRIALS:
        right = 0
        for trial in range(options.trials):
            with TemporaryDirectory() as folder, neighbour(options.neighbour, trial):
                try:
                    document = explanation(options, plant, folder)
                except RuntimeError as error:
                    print(f"validate_explain: {plant}: {error}", file=sys.stderr)
                    return 4
            named = is_right(plant, document)
            right += named
            print(f"{plant} {trial + 1}: {'yes' if named else 'NO'}: {document['answer']}")
        met &= right >= (options.trials if plant == LIKE else DEMAND * options.trials)
        what = "nothing was named" if plant == LIKE else "it was named first"
        print(f"{plant}: {what} in {right} of {options.trials} trials", flush=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
