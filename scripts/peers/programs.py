"""Programs to be measured: their start, and the readers of their output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cnnbench.machine.repository import GitError, git
from peers.options import LEARNING_RATE, WEIGHT_DECAY, Options, cnnbench_command
from peers.readers import (
    Reader,
    ancestor_reader,
    read_child,
    read_record,
)

CHILDREN = Path(__file__).resolve().parent / "children"

_OF_CIFAR10 = ("densenet", "resnet20")

# Stands for the file of the run record in a command.
RECORD = "{record}"


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program that is measured once per round.

    Attributes:
      name: As in the table.
      read: Turns the finished process and that file into a reading; ValueError if it cannot.
      missing: Why it cannot be run, known beforehand.
      watch_memory: For which lines of output resident memory is noted.
      group: Subjects of one group run in turn, others one after the other.
      in_bursts: Whether steps end in bursts, so that the median step says little.
    """

    name: str
    dtype: str
    command: tuple[str, ...]
    read: Reader
    python: str
    modules: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    status: int = 0
    missing: str = ""
    watch_memory: Callable[[str], bool] | None = None
    group: str = ""
    in_bursts: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Name and dtype."""
        return self.name, self.dtype


def shared_flags(model: str, batch: int, batches: int, warmup: int) -> tuple[str, ...]:
    """Flags that cnnbench and tf_cnn_benchmarks share; batch 0 is the model's own."""
    return (
        f"--model={model}",
        f"--data_name={'cifar10' if model.startswith(_OF_CIFAR10) else 'imagenet'}",
        "--device=cpu",
        f"--batch_size={batch}",
        f"--num_batches={batches}",
        f"--num_warmup_batches={warmup}",
        "--optimizer=sgd",
    )


def sgd() -> tuple[str, ...]:
    return f"--init_learning_rate={LEARNING_RATE}", f"--weight_decay={WEIGHT_DECAY}"


def ours(
    name: str,
    command: tuple[str, ...],
    options: Options,
    read: Reader,
    dtype: str = "fp32",
    **more: Any,
) -> Subject:
    modules = ("cnnbench", "tensorflow")
    return Subject(name, dtype, command, read, options.cnnbench_python, modules, **more)


def trained(
    name: str, options: Options, dtype: str, more: Sequence[str] = (), batch: int | None = None
) -> Subject:
    command = (
        *cnnbench_command(options.cnnbench_python),
        *shared_flags(options.model, batch or options.batch_size, options.batches, options.warmup),
        *sgd(),
        f"--precision={dtype}",
        *more,
        "--display_every=1",
        f"--result_json={RECORD}",
    )
    return ours(name, command, options, read_record, dtype)


def peer_of(
    name: str,
    python: str,
    modules: tuple[str, ...],
    dtype: str,
    options: Options,
    more: Sequence[str] = (),
) -> Subject:
    command = (
        *(python, str(CHILDREN / f"{name}_steps.py")),
        *(f"--model={options.model}", f"--dtype={dtype}", f"--batch_size={options.batch_size}"),
        *(f"--batches={options.batches}", f"--warmup={options.warmup}"),
        *(f"--learning_rate={LEARNING_RATE}", f"--weight_decay={WEIGHT_DECAY}", *more),
    )
    return Subject(name, dtype, command, read_child, python, modules)


def loop_of(name: str, strategy: str, options: Options, more: Sequence[str] = ()) -> Subject:
    """A bare loop of TensorFlow's own over a network of cnnbench."""
    modules = ("cnnbench", "tensorflow")
    given = (f"--strategy={strategy}", *more)
    made = peer_of("loop", options.cnnbench_python, modules, "fp32", options, given)
    return dataclasses.replace(made, name=name)


def ancestor_of(options: Options, more: Sequence[str] = (), towers: int = 1) -> Subject:
    python, folder, missing = options.ancestor_python, Path(options.ancestor or "").resolve(), ""
    if options.ancestor is None:
        missing = "no --ancestor=FOLDER was given"
    elif not (folder / "tf_cnn_benchmarks.py").is_file():
        missing = f"there is no tf_cnn_benchmarks.py in --ancestor={options.ancestor}"
    flags = shared_flags(options.model, options.batch_size, options.batches, options.warmup)
    try:
        commit = git("rev-parse", "--short", "HEAD", folder=folder)
    except GitError:
        commit = "?"
    return Subject(
        "ancestor",
        "fp32",
        (
            *(python, str(folder / "tf_cnn_benchmarks.py")),
            *(*flags, *sgd(), "--data_format=NHWC", "--display_every=1", *more),
        ),
        ancestor_reader(towers * options.batch_size, f"tf_cnn_benchmarks {commit}"),
        python,
        ("tensorflow", "tf_keras"),
        {"TF_USE_LEGACY_KERAS": "1"},
        missing=missing,
    )


def matmul(options: Options, dtype: str) -> Subject:
    python = options.cnnbench_python
    arguments = (f"--dtype={dtype}", f"--size={options.matmul_size}")
    command = (python, str(CHILDREN / "matmul.py"), *arguments)
    # By itself: it has no steps to take turns after.
    group = f"matmul {dtype}"
    return Subject("matmul", dtype, command, read_child, python, ("tensorflow",), group=group)
