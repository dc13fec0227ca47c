"""The command lines of the comparisons."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_HERE = "(default: the one running this)"

CLASSIC = ("alexnet", "vgg16", "googlenet", "inception3", "densenet40")
OF_WORKERS = ("collective", "controller", "coordinator")
SCENARIOS = (
    *("resnet50", *CLASSIC, "ancestor", "forward", "input"),
    *("towers", "reductions", *OF_WORKERS, "start_cluster", "strategies"),
    *("overhead", "startup", "memory", "observed"),
)

# Those that can be stopped between two steps: trainings without input from files.
IN_TURN = (
    *("resnet50", *CLASSIC, "ancestor", "forward"),
    *("towers", "reductions", "strategies", "observed", *OF_WORKERS),
)

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
    workers: int
    turn_seconds: float
    overhead_batches: int
    memory_batches: int
    matmul_size: int
    seed: int
    timeout: float
    csv: Path | None
    data_dir: Path | None
    cnnbench_python: str
    keras_python: str
    torch_python: str
    ancestor: Path | None
    ancestor_python: str


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: 1 is the least")
    return value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _words_of(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def chosen(text: str) -> tuple[str, ...]:
        found = _words(text)
        if not found or set(found) - set(choices):
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(choices)}")
        return found

    return chosen


def _interpreter(text: str) -> str:
    # Absolute, because measurements run elsewhere, but not resolved: that would leave a venv.
    return os.path.abspath(shutil.which(text) or text)


def _folder(text: str) -> Path:
    return Path(text).resolve()


def common_parser(
    prog: str, description: str, scenarios: Sequence[str], batches: str
) -> argparse.ArgumentParser:
    """A parser with the arguments that every comparison has.

    Args:
      batches: what --batches counts.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--scenarios",
        type=_words_of(scenarios),
        default=tuple(scenarios),
        help=f"comma-separated, of {', '.join(scenarios)} (default: all)",
    )
    add("--rounds", type=_positive, default=5, help="default: 5; the interval needs 2")
    add("--batches", type=_positive, default=20, help=f"{batches} (default: 20)")
    add("--seed", type=int, default=1, help="of the orders (default: 1)")
    add("--timeout", type=float, default=1200.0, help="seconds until a process is killed")
    add(
        "--cnnbench_python",
        type=_interpreter,
        default=sys.executable,
        help=f"interpreter with cnnbench {_HERE}",
    )
    return parser


def cnnbench_command(python: str) -> tuple[str, ...]:
    """The installed command beside an interpreter, else the module."""
    installed = Path(python).parent / "cnnbench"
    return (str(installed),) if installed.is_file() else (python, "-m", "cnnbench")


def parse(argv: Sequence[str]) -> Options:
    """Reads the command line; wrong use ends the process with status 2."""
    parser = common_parser(
        "compare_peers",
        "Measures cnnbench and its peers on this machine's CPU in interleaved rounds, "
        "each measurement in a fresh process, and prints the ratios.",
        SCENARIOS,
        "timed steps of a measurement",
    )
    add = parser.add_argument
    add(
        "--only",
        type=_words,
        default=(),
        help="comma-separated subjects to run, such as cnnbench,torch or cnnbench:bf16",
    )
    add("--model", default="", help="network (default: resnet50; of strategies resnet20)")
    add("--warmup", type=_positive, default=5, help="steps before them (default: 5)")
    add("--batch_size", type=_positive, default=8, help="images per step, all towers (default: 8)")
    add("--workers", type=_positive, default=2, help="of collective, controller, coordinator")
    add(
        "--turn_seconds",
        type=float,
        default=0.0,
        help="seconds of a turn, for subjects of a round that are started together and run in "
        "turn; memory must be enough for all (default: 0, one after the other)",
    )
    add("--overhead_batches", type=_positive, default=2000, help="steps of overhead")
    add("--memory_batches", type=_positive, default=10000, help="steps of memory")
    add("--matmul_size", type=_positive, default=2048, help="side of the matrices (default: 2048)")
    add("--csv", type=Path, help="write every measurement to this new file")
    add(
        "--data_dir",
        type=_folder,
        help="ImageNet files for input (default: generated photos)",
    )
    add("--ancestor", type=Path, help="folder that holds tf_cnn_benchmarks.py")
    for name, contents in (
        ("keras", "Keras 3"),
        ("torch", "PyTorch"),
        ("ancestor", "TensorFlow and tf_keras"),
    ):
        add(
            f"--{name}_python",
            type=_interpreter,
            default=sys.executable,
            help=f"interpreter with {contents} {_HERE}",
        )
    values = vars(parser.parse_args(argv))
    if values["batch_size"] % 2 and {"towers", "strategies"} & {*values["scenarios"]}:
        parser.error("--batch_size must be even: two towers take half of it each")
    if values["batch_size"] % values["workers"] and set(OF_WORKERS) & {*values["scenarios"]}:
        parser.error("--batch_size must be a multiple of --workers: each takes its part")
    return Options(**values)
