"""The options of the comparison."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from cnnbench.errors import FlagError, PathError, UsageError
from cnnbench.flags.declare import flag, words
from peers.scenarios import OF_WORKERS, SCENARIOS


def _python(contents: str) -> str:
    """A field for an interpreter; absolute, because measurements run elsewhere."""
    found: str = flag(sys.executable, f"Interpreter with {contents}.", path="file")
    return found


@dataclasses.dataclass(kw_only=True)
class Options:
    """Scenarios to compare, and durations."""

    scenarios: str = flag(",".join(SCENARIOS), "Scenarios, with commas.")
    only: str = flag(
        "", "The only subjects, with commas, such as cnnbench,torch or cnnbench:bf16; all if empty."
    )
    model: str = flag("", "Network; if empty resnet50, of strategies resnet20.")
    rounds: int = flag(5, "Rounds; the interval needs 2.", minimum=1)
    batches: int = flag(20, "Timed steps of a measurement.", minimum=1)
    warmup: int = flag(5, "Steps before them.", minimum=1)
    batch_size: int = flag(8, "Images per step, of all towers together.", minimum=1)
    workers: int = flag(2, "Workers of collective, controller and coordinator.", minimum=1)
    devices: tuple[int, ...] = flag(
        (2, 4), "Numbers of logical devices of gradients, small and large.", minimum=2
    )
    turn_seconds: float = flag(
        0.0,
        "Seconds of a turn, for subjects of a round that are started together and run in turn; "
        "memory must be enough for all. With 0 they run one after the other.",
        minimum=0,
    )
    overhead_batches: int = flag(2000, "Steps of overhead.", minimum=1)
    memory_batches: int = flag(10000, "Steps of memory.", minimum=1)
    matmul_size: int = flag(2048, "Side of the matrices.", minimum=1)
    seed: int = flag(1, "Seed of the orders.")
    timeout: float = flag(1200.0, "Seconds until a process is killed.", above=0)
    csv: str | None = flag(None, "Write every measurement to this new file.", path="file")
    keep: str | None = flag(None, "Keep every process's record in this folder.", path="folder")
    data_dir: str | None = flag(
        None, "ImageNet files for input; generated photographs without it.", path="folder"
    )
    ancestor: str | None = flag(None, "Folder of tf_cnn_benchmarks.py.", path="folder")
    cnnbench_python: str = _python("cnnbench")
    keras_python: str = _python("Keras 3")
    torch_python: str = _python("PyTorch")
    ancestor_python: str = _python("TensorFlow and tf_keras")

    def __post_init__(self) -> None:
        for name in ("cnnbench_python", "keras_python", "torch_python", "ancestor_python"):
            # Not resolved: that would leave a virtual environment.
            given = getattr(self, name)
            setattr(self, name, os.path.abspath(shutil.which(given) or given))

    def check(self) -> None:
        """Raises UsageError where options do not fit each other."""
        if not self.chosen or set(self.chosen) - set(SCENARIOS):
            raise FlagError("scenarios", self.scenarios, f"choose from {', '.join(SCENARIOS)}")
        if self.batch_size % 2 and {"towers", "strategies"} & {*self.chosen}:
            raise UsageError("--batch_size must be even: two towers take half of it each")
        if self.batch_size % self.workers and set(OF_WORKERS) & {*self.chosen}:
            raise UsageError("--batch_size must be a multiple of --workers: each takes its part")
        if self.keep is not None and not Path(self.keep).is_dir():
            raise PathError(self.keep, "--keep needs a folder that exists")

    def but(self, **changes: Any) -> Options:
        """A copy of these options with other values."""
        return dataclasses.replace(self, **changes)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The scenarios."""
        return words(self.scenarios)
