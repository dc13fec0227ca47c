"""Runs command lines of the documentation on CPUs, with fewer steps.

Usage: scripts/check_flags [lines] [modes]

lines: the command lines of docs/migrating.md that replace command lines of other programs.
modes: every flag of the second table of docs/modes.md in every mode, on two devices if the mode
supports two; `parameter_server_strategy` with one worker and one ps task.

Without arguments, both are run. Prints a line for each run: exit code, seconds and command line. A
run is right if its exit code is 0 and all losses are finite, or if the table says that the mode
refuses the flag and the run is refused with one line. The exit status is 0 if all runs are right, 1
if not, and 2 for wrong use.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from command_line import run_script

from cnnbench.cli.documents import FLAGS_BY_MODE, refusing_modes, small_run_flags
from cnnbench.errors import ExitCode, UsageError
from cnnbench.variable_mgr.modes import BUILT_IN, Processes

ROOT = Path(__file__).resolve().parents[1]
# The tests have helpers that create small data sets and fork processes.
sys.path[:0] = [str(ROOT / "tests/helpers"), str(ROOT / "tests")]

forked = importlib.import_module("forked")
data_sets = importlib.import_module("data_sets")
test_docs = importlib.import_module("test_docs")

SMALL = {"device": "cpu", "model": "trivial", "data_name": "cifar10", "batch_size": "2"}
SMALL |= {"num_batches": "4", "num_warmup_batches": "1"}
SHORT = {"num_batches": "4", "num_warmup_batches": "1", "batch_size": "2", "num_epochs": "0.25"}
SHORT |= {"global_batch_size": "16", "num_eval_batches": "2", "save_model_steps": "2"}
SHORT |= {"save_summaries_steps": "2", "eval_during_training_every_n_epochs": "0.25"}
"""Values that replace those of a line."""
SECONDS = 300


def shorten_command_line(line: str, folder: Path, number: int) -> list[str]:
    """Converts a command line of docs/migrating.md to the words of a short run on CPUs.

    Folders that a line writes to are its own; evaluations read that of number 0.
    """
    given: dict[str, str | None] = {}
    place = folder / str(0 if "--eval " in line else number)
    for word in line.replace("DIR", str(place)).split():
        name, equals, value = word.removeprefix("--").partition("=")
        given[name] = value if equals else None
    own = {**SMALL, "data_dir": str(folder / "cifar10")}
    if "model" in given:
        del own["data_name"], own["data_dir"]
    if "global_batch_size" in given:
        del own["batch_size"]
    if "num_epochs" in given or "eval" in given:
        del own["num_batches"]
    short = {name: value for name, value in SHORT.items() if name in given}
    flags = {**own, **given, **short}
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in flags.items()]


def migration_guide_commands(folder: Path) -> Iterator[tuple[list[str], bool]]:
    """Yields all command lines of docs/migrating.md, after a training for their evaluations."""
    for number, line in enumerate(["--train_dir=DIR", *test_docs._flags_of_other_programs()]):
        yield ["run", *shorten_command_line(line, folder, number)], False


def flag_and_mode_commands(folder: Path) -> Iterator[tuple[list[str], bool]]:
    """Yields command lines with every flag in every mode, and whether the mode refuses the flag."""
    small = [f"--{name}={value}" for name, value in SMALL.items()]
    for mode in BUILT_IN:
        run = small_run_flags(mode)
        needs = [f"--{name}={value}" for name, value in mode.needs.items()]
        command = ["run"]
        if mode.processes is Processes.COORDINATOR:
            command = ["launch", "--workers=1", "--ps=1", "--"]
        elif not mode.one_tower and mode.name != "multi_worker_mirrored_strategy":
            needs.append("--num_gpus=2")
        for flag in FLAGS_BY_MODE:
            words = [*small, f"--data_dir={folder / 'cifar10'}", f"--variable_update={mode.name}"]
            if flag.startswith("--global_batch_size"):
                words.remove("--batch_size=2")
            # --recompute needs a network with blocks.
            if flag.startswith("--recompute"):
                words[words.index("--model=trivial")] = "--model=resnet20"
            refused = refusing_modes(flag, {mode.name: run})[0] != "none"
            yield [*command, *words, *needs, flag], refused


def run_and_check_outcome(words: Sequence[str], refused: bool, folder: Path) -> tuple[bool, int]:
    """Whether a command ends as expected, and its exit code."""
    place = Path(tempfile.mkdtemp(dir=folder))
    out, err, record = (place / name for name in ("out", "err", "record.json"))
    process = forked.Forked(forked.launching, [*words, f"--result_json={record}"], out, err, folder)
    code, _ = process.end(SECONDS)
    if refused:
        return code == ExitCode.USAGE and len(err.read_text().splitlines()) == 1, code
    if code != ExitCode.OK:
        print(err.read_text(), file=sys.stderr)
        return False, code
    losses = json.loads(record.read_text())["losses"]
    return all(isinstance(one, float) and math.isfinite(one) for one in losses), code


def main(arguments: Sequence[str]) -> int:
    """Runs all command lines, and prints one line for each."""
    kinds = {"lines": migration_guide_commands, "modes": flag_and_mode_commands}
    if stray := [one for one in arguments if one not in kinds]:
        raise UsageError(f"{stray[0]!r} is none of {', '.join(kinds)}")
    wrong = count = 0
    with tempfile.TemporaryDirectory(prefix="flags-") as name:
        folder = Path(name)
        (folder / "cifar10").mkdir()
        data_sets.write_random_cifar10(folder / "cifar10", train=64, test=32)
        for kind in arguments or kinds:
            for words, refused in kinds[kind](folder):
                begun = time.monotonic()
                right, code = run_and_check_outcome(words, refused, folder)
                count, wrong = count + 1, wrong + (not right)
                shown = " ".join(words).replace(name, "DIR")
                mark = "" if right else "WRONG "
                print(f"{mark}{code} {time.monotonic() - begun:5.1f} s  {shown}", flush=True)
    print(f"{count} command lines, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    run_script(main, __doc__)
