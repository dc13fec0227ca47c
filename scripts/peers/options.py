"""The command line of the comparison."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from peers.arguments import HERE, common, interpreter, positive, words

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


def parse(argv: Sequence[str]) -> Options:
    """Reads the command line; wrong use ends the process with status 2."""
    parser = common(
        "compare_peers",
        "Measures cnnbench and its peers on this machine's CPU in interleaved rounds, "
        "each measurement in a fresh process, and prints the ratios.",
        SCENARIOS,
        "timed steps of a measurement",
    )
    add = parser.add_argument
    add(
        "--only",
        type=words,
        default=(),
        help="comma-separated subjects to run, such as cnnbench,torch or cnnbench:bf16",
    )
    add("--model", default="resnet50", help="network of resnet50 and towers (default: resnet50)")
    add("--warmup", type=positive, default=5, help="steps before them (default: 5)")
    add("--batch_size", type=positive, default=8, help="images per step, all towers (default: 8)")
    add("--overhead_batches", type=positive, default=2000, help="steps of overhead")
    add("--memory_batches", type=positive, default=10000, help="steps of memory")
    add("--matmul_size", type=positive, default=2048, help="side of the matrices (default: 2048)")
    add("--csv", type=Path, help="write every measurement to this new file")
    add("--ancestor", type=Path, help="folder that holds tf_cnn_benchmarks.py")
    for name, contents in (
        ("keras", "Keras 3"),
        ("torch", "PyTorch"),
        ("ancestor", "TensorFlow and tf_keras"),
    ):
        add(
            f"--{name}_python",
            type=interpreter,
            default=sys.executable,
            help=f"interpreter with {contents} {HERE}",
        )
    values = vars(parser.parse_args(argv))
    if values["batch_size"] % 2 and "towers" in values["scenarios"]:
        parser.error("--batch_size must be even: two towers take half of it each")
    return Options(**values)
