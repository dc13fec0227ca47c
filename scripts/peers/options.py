"""The command line of the comparison."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

SCENARIOS = ("resnet50", "towers", "overhead", "startup", "memory")

# The same for everybody; small enough that random images never diverge.
LEARNING_RATE = 0.001
WEIGHT_DECAY = 0.00004


@dataclasses.dataclass(frozen=True)
class Options:
    """What to compare and how long; see ``parse`` for the meaning of each."""

    scenarios: tuple[str, ...]
    only: tuple[str, ...]
    model: str
    rounds: int
    batches: int
    warmup: int
    batch_size: int
    overhead_batches: int
    memory_batches: int
    matmul_size: int
    seed: int
    timeout: float
    csv: Path | None
    cnnbench_python: str
    keras_python: str
    torch_python: str
    ancestor: Path | None
    ancestor_python: str


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _interpreter(text: str) -> str:
    # Absolute, because measurements run elsewhere, but not resolved: that would leave a venv.
    return os.path.abspath(shutil.which(text) or text)


def _scenarios(text: str) -> tuple[str, ...]:
    words = _words(text)
    unknown = [word for word in words if word not in SCENARIOS]
    if unknown or not words:
        raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(SCENARIOS)}")
    return words


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: 1 is the least")
    return value


def parse(argv: Sequence[str]) -> Options:
    """Reads the command line; wrong use ends the process with status 2."""
    parser = argparse.ArgumentParser(
        prog="compare_peers",
        description="Measures cnnbench and its peers on this machine's CPU in interleaved rounds, "
        "each measurement in a fresh process, and prints the ratios.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--scenarios",
        type=_scenarios,
        default=SCENARIOS,
        help=f"comma-separated, of {', '.join(SCENARIOS)} (default: all)",
    )
    add(
        "--only",
        type=_words,
        default=(),
        help="comma-separated subjects to run, such as cnnbench,torch or cnnbench:bf16",
    )
    add("--model", default="resnet50", help="network of resnet50 and towers (default: resnet50)")
    add("--rounds", type=_positive, default=5, help="default: 5; the interval needs 2")
    add("--batches", type=_positive, default=20, help="timed steps of a measurement (default: 20)")
    add("--warmup", type=_positive, default=5, help="steps before them (default: 5)")
    add("--batch_size", type=_positive, default=8, help="images per step, all towers (default: 8)")
    add("--overhead_batches", type=_positive, default=2000, help="steps of overhead")
    add("--memory_batches", type=_positive, default=10000, help="steps of memory")
    add("--matmul_size", type=_positive, default=2048, help="side of the matrices (default: 2048)")
    add("--seed", type=int, default=1, help="of the orders (default: 1)")
    add("--timeout", type=float, default=1200.0, help="seconds until a measurement is killed")
    add("--csv", type=Path, help="write every measurement to this new file")
    here = "(default: the one running this)"
    add(
        "--cnnbench_python",
        type=_interpreter,
        default=sys.executable,
        help=f"interpreter with cnnbench {here}",
    )
    add(
        "--keras_python",
        type=_interpreter,
        default=sys.executable,
        help=f"interpreter with Keras 3 {here}",
    )
    add(
        "--torch_python",
        type=_interpreter,
        default=sys.executable,
        help=f"interpreter with PyTorch {here}",
    )
    add("--ancestor", type=Path, help="folder that holds tf_cnn_benchmarks.py")
    add(
        "--ancestor_python",
        type=_interpreter,
        default=sys.executable,
        help=f"interpreter with TensorFlow and tf_keras {here}",
    )
    values = vars(parser.parse_args(argv))
    if values["batch_size"] % 2 and "towers" in values["scenarios"]:
        parser.error("--batch_size must be even: two towers take half of it each")
    return Options(**values)
