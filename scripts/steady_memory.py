"""Checks that the memory of a long training does not grow.

Usage: scripts/steady_memory [STEPS]

Trains the model trivial for 10,000 steps (or STEPS) with a checkpoint every 50 and an evaluation
every 100, and samples its resident memory. Prints the largest value between the second
evaluation and the tenth, and in the last tenth; the exit status is 0 if the latter is
at most 3 % larger, 1 if not, 4 if the run failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SAVE_EVERY, EVALUATE_EVERY = 50, 100
TOLERANCE = 0.03


def resident_bytes(process: int) -> int:
    """Memory of a process, or of its only child if it has one; 0 if both have ended."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        status = Path(f"/proc/{children[0] if children else process}/statm").read_text()
    except (OSError, IndexError):
        return 0
    return int(status.split()[1]) * 4096


def last_step(folder: Path) -> int:
    """Of the newest checkpoint; 0 without one."""
    steps = [path.name.split("-")[1].split(".")[0] for path in folder.glob("model.ckpt-*.index")]
    return max(map(int, steps), default=0)


def main(arguments: Sequence[str]) -> int:
    """Runs the training and judges its memory."""
    steps = int(arguments[0]) if arguments else 10_000
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "cnnbench", "--model=trivial", "--data_name=cifar10"),
            *("--device=cpu", "--batch_size=8", f"--num_batches={steps}", "--num_eval_batches=2"),
            *(f"--train_dir={folder}", f"--save_model_steps={SAVE_EVERY}"),
            f"--eval_during_training_every_n_steps={EVALUATE_EVERY}",
        ]
        early = late = 0
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                step, resident = last_step(Path(folder)), resident_bytes(process.pid)
                if 2 * EVALUATE_EVERY <= step <= 10 * EVALUATE_EVERY:
                    early = max(early, resident)
                if step >= 0.9 * steps:
                    late = max(late, resident)
                time.sleep(0.1)
    if process.returncode or not (early and late):
        print(f"the run ended with {process.returncode}", file=sys.stderr)
        return 4
    growth = late / early - 1
    sizes = f"{early / 2**20:.1f} MiB at the beginning, {late / 2**20:.1f} MiB at the end"
    print(f"{steps} steps: {sizes}, {growth:+.2%}")
    return int(growth > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
