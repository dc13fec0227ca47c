"""Programs to be measured: their start, and the readers of their output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnnbench.machine.repository import GitError, git
from peers.demands import Demand
from peers.measurement import Key
from peers.readers import Reader, ancestor_reader, read_child, read_first_step, read_record

if TYPE_CHECKING:
    from peers.options import Options

CHILDREN = Path(__file__).resolve().parent / "children"

# Stands for the file of the run record in a command.
RECORD = "{record}"
RESULT = f"--result_json={RECORD}"

# The same for everybody; small enough that random images never diverge.
LEARNING_RATE = 0.001
WEIGHT_DECAY = 0.00004

_OWN = ("cnnbench", "tensorflow")
# Modules that peers with an interpreter of their own need.
_PEERS = {"keras": ("keras", "tensorflow"), "torch": ("torch",)}
_OF_CIFAR10 = ("densenet", "resnet20")
_TRAINED = "trained"


@dataclass(frozen=True)
class Subject:
    """A program that is measured once per round.

    Attributes:
      name: Name in the table.
      read: Turns the finished process and that file into a reading; ValueError if it cannot.
      missing: Why it cannot be run, if that is known beforehand.
      watch_memory: Selects the lines of output at which resident memory is noted.
      group: Subjects of one group run in turn, those without one after the other: they cannot be
        stopped between two steps.
      in_bursts: Whether steps end in bursts, so that the median step says little.
    """

    name: str
    dtype: str
    command: tuple[str, ...]
    read: Reader
    python: str
    modules: tuple[str, ...] = _OWN
    environment: Mapping[str, str] = field(default_factory=dict)
    status: int = 0
    missing: str = ""
    watch_memory: Callable[[str], bool] | None = None
    group: str = ""
    in_bursts: bool = False
    demands: Sequence[Demand] = ()

    @property
    def key(self) -> Key:
        """Name and dtype."""
        return self.name, self.dtype


def shared_flags(options: Options) -> tuple[str, ...]:
    """Flags that cnnbench and tf_cnn_benchmarks share; batch size 0 is the model's own."""
    return (
        f"--model={options.model}",
        f"--data_name={'cifar10' if options.model.startswith(_OF_CIFAR10) else 'imagenet'}",
        "--device=cpu",
        f"--batch_size={options.batch_size}",
        f"--num_batches={options.batches}",
        f"--num_warmup_batches={options.warmup}",
        "--optimizer=sgd",
    )


def _sgd() -> tuple[str, ...]:
    return f"--init_learning_rate={LEARNING_RATE}", f"--weight_decay={WEIGHT_DECAY}"


def cnnbench(
    options: Options,
    name: str,
    *words: str,
    read: Reader = read_first_step,
    dtype: str = "fp32",
    **more: Any,
) -> Subject:
    """A command line of cnnbench: of the installed command beside an interpreter, or the module."""
    python = options.cnnbench_python
    installed = Path(python).parent / "cnnbench"
    command = (str(installed),) if installed.is_file() else (python, "-m", "cnnbench")
    return Subject(name, dtype, (*command, *words), read, python, **more)


def trained(
    options: Options,
    name: str,
    *flags: str,
    launch: Sequence[str] = (),
    dtype: str = "fp32",
    read: Reader = read_record,
    **more: Any,
) -> Subject:
    """A training, or the launch of one."""
    words = (
        *(*launch, *shared_flags(options), *_sgd(), f"--precision={dtype}", *flags),
        *("--display_every=1", RESULT),
    )
    return cnnbench(options, name, *words, read=read, dtype=dtype, **{"group": _TRAINED, **more})


def child(
    options: Options,
    script: str,
    *flags: str,
    name: str = "",
    dtype: str = "fp32",
    read: Reader = read_child,
    **more: Any,
) -> Subject:
    """A program of children/."""
    kind = script.partition("_")[0]
    python: str = getattr(options, f"{kind}_python", options.cnnbench_python)
    command = (python, str(CHILDREN / script), *flags)
    return Subject(name or kind, dtype, command, read, python, _PEERS.get(kind, _OWN), **more)


def peer(
    options: Options, script: str, *flags: str, name: str = "", dtype: str = "fp32", **more: Any
) -> Subject:
    """A peer that trains step by step."""
    words = (
        *(f"--model={options.model}", f"--dtype={dtype}", f"--batch_size={options.batch_size}"),
        *(f"--batches={options.batches}", f"--warmup={options.warmup}"),
        *(f"--learning_rate={LEARNING_RATE}", f"--weight_decay={WEIGHT_DECAY}", *flags),
    )
    more = {"group": _TRAINED, **more}
    return child(options, f"{script}.py", *words, name=name, dtype=dtype, **more)


def ancestor(options: Options, *flags: str, towers: int = 1, **more: Any) -> Subject:
    """tf_cnn_benchmarks."""
    python, folder, missing = options.ancestor_python, Path(options.ancestor or "").resolve(), ""
    if options.ancestor is None:
        missing = "no --ancestor=FOLDER was given"
    elif not (folder / "tf_cnn_benchmarks.py").is_file():
        missing = f"there is no tf_cnn_benchmarks.py in --ancestor={options.ancestor}"
    try:
        commit = git("rev-parse", "--short", "HEAD", folder=folder)
    except GitError:
        commit = "?"
    command = (
        *(python, str(folder / "tf_cnn_benchmarks.py"), *shared_flags(options), *_sgd()),
        *("--data_format=NHWC", "--display_every=1", *flags),
    )
    return Subject(
        name=more.pop("name", "ancestor"),
        dtype="fp32",
        command=command,
        read=ancestor_reader(towers * options.batch_size, f"tf_cnn_benchmarks {commit}"),
        python=python,
        modules=("tensorflow", "tf_keras"),
        environment={"TF_USE_LEGACY_KERAS": "1"},
        missing=missing,
        **{"group": _TRAINED, **more},
    )


def matmul(options: Options, dtype: str) -> Subject:
    """A matrix product; not in turn with others, since it has no steps."""
    size = f"--size={options.matmul_size}"
    return child(options, "matmul.py", f"--dtype={dtype}", size, name="matmul", dtype=dtype)
