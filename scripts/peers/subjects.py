"""Who is measured in which scenario: commands, and how their output is read."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from peers import readings
from peers.options import LEARNING_RATE, WEIGHT_DECAY, Options, cnnbench_command
from peers.readings import Reader

CHILDREN = Path(__file__).resolve().parent / "children"
MODES = ("parameter_server", "replicated", "independent")
DTYPES = ("fp32", "bf16")

# Stands for the file of the run record in a command.
RECORD = "{record}"


@dataclasses.dataclass(frozen=True)
class Subject:
    """One thing that is measured once per round.

    Attributes:
      name: As in the table.
      dtype: ``fp32`` or ``bf16``.
      command: Program and arguments; ``{record}`` becomes a file that is not there yet.
      read: Turns the finished process and that file into a reading; ValueError if it cannot.
      python: Interpreter that is needed.
      modules: Modules that it must be able to import.
      environment: Variables to set.
      status: Exit status of success.
      missing: Why it cannot be run, known beforehand.
      watch_memory: For which lines of output resident memory is noted.
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

    @property
    def key(self) -> tuple[str, str]:
        """Name and dtype."""
        return self.name, self.dtype


def scenario_subjects(scenario: str, options: Options) -> list[Subject]:
    """All subjects of a scenario, before ``--only``."""
    makers: Mapping[str, Callable[[Options], list[Subject]]] = {
        "resnet50": _training,
        "towers": _towers,
        "overhead": _overhead,
        "startup": _startup,
        "memory": _memory,
    }
    return makers[scenario](options)


def chosen(subjects: Sequence[Subject], only: Sequence[str]) -> list[Subject]:
    """Those that ``--only`` names: ``name`` or ``name:dtype``; all when it is empty."""
    return [s for s in subjects if not only or s.name in only or f"{s.name}:{s.dtype}" in only]


def _training(options: Options) -> list[Subject]:
    subjects = [_trained("cnnbench", options, dtype) for dtype in DTYPES]
    subjects += [
        _peer(
            "keras", "keras_steps.py", options.keras_python, ("keras", "tensorflow"), dtype, options
        )
        for dtype in DTYPES
    ]
    subjects += [
        _peer("torch", "torch_steps.py", options.torch_python, ("torch",), dtype, options)
        for dtype in DTYPES
    ]
    subjects.append(_ancestor(options))
    return subjects + [_matmul(options, dtype) for dtype in DTYPES]


def _towers(options: Options) -> list[Subject]:
    two = options.batch_size // 2
    flags = {mode: ["--num_gpus=2", f"--variable_update={mode}"] for mode in MODES}
    return [
        _trained("one tower", options, "fp32"),
        *(_trained(f"two {mode}", options, "fp32", flags[mode], two) for mode in MODES),
    ]


def _overhead(options: Options) -> list[Subject]:
    flags = _flags("trivial", 0, options.overhead_batches, 10)
    child = str(CHILDREN / "bare_loop.py")
    command = (options.cnnbench_python, child, *flags)
    return [_ours("harness", command, options, readings.child)]


def _startup(options: Options) -> list[Subject]:
    python = options.cnnbench_python
    flags = _flags("trivial", 0, 1, 1)
    start = (python, "-c", "import tensorflow; print('MEASURED', {}, flush=True)")
    return [
        _ours(
            "start to first step",
            (*cnnbench_command(options.cnnbench_python), *flags),
            options,
            readings.first_step,
        ),
        _ours("import tensorflow", start, options, readings.first_line),
        _ours(
            "--help",
            (*cnnbench_command(options.cnnbench_python), "--help"),
            options,
            readings.whole,
        ),
        dataclasses.replace(
            _ours(
                "refused flag",
                (*cnnbench_command(options.cnnbench_python), "--batch_size=-1"),
                options,
                readings.whole,
            ),
            status=2,
        ),
    ]


def _memory(options: Options) -> list[Subject]:
    steps = options.memory_batches
    flags = _flags("trivial", 0, steps, 100)
    command = (*cnnbench_command(options.cnnbench_python), *flags, f"--display_every={steps}")
    subject = _ours("cnnbench", command, options, readings.memory(steps))
    return [dataclasses.replace(subject, watch_memory=readings.is_step_line)]


def _flags(model: str, batch: int, batches: int, warmup: int) -> tuple[str, ...]:
    """Flags that cnnbench and tf_cnn_benchmarks share; batch 0 is the model's own."""
    return (
        f"--model={model}",
        "--device=cpu",
        f"--batch_size={batch}",
        f"--num_batches={batches}",
        f"--num_warmup_batches={warmup}",
        "--optimizer=sgd",
    )


def _sgd() -> tuple[str, ...]:
    return f"--init_learning_rate={LEARNING_RATE}", f"--weight_decay={WEIGHT_DECAY}"


def _ours(name: str, command: tuple[str, ...], options: Options, read: Reader) -> Subject:
    return Subject(name, "fp32", command, read, options.cnnbench_python, ("cnnbench", "tensorflow"))


def _trained(
    name: str, options: Options, dtype: str, more: Sequence[str] = (), batch: int | None = None
) -> Subject:
    command = (
        *cnnbench_command(options.cnnbench_python),
        *_flags(options.model, batch or options.batch_size, options.batches, options.warmup),
        *_sgd(),
        f"--precision={dtype}",
        *more,
        f"--result_json={RECORD}",
    )
    return dataclasses.replace(_ours(name, command, options, readings.run_record), dtype=dtype)


def _peer(
    name: str, child: str, python: str, modules: tuple[str, ...], dtype: str, options: Options
) -> Subject:
    command = (
        *(python, str(CHILDREN / child)),
        *(f"--model={options.model}", f"--dtype={dtype}", f"--batch_size={options.batch_size}"),
        *(f"--batches={options.batches}", f"--warmup={options.warmup}"),
        *(f"--learning_rate={LEARNING_RATE}", f"--weight_decay={WEIGHT_DECAY}"),
    )
    return Subject(name, dtype, command, readings.child, python, modules)


def _ancestor(options: Options) -> Subject:
    python, folder = options.ancestor_python, options.ancestor
    missing = "" if folder else "no --ancestor=FOLDER was given"
    if folder and not (folder / "tf_cnn_benchmarks.py").is_file():
        missing = f"there is no tf_cnn_benchmarks.py in --ancestor={folder}"
    flags = _flags(options.model, options.batch_size, options.batches, options.warmup)
    version = f"tf_cnn_benchmarks {_commit(folder)}" if folder else ""
    return Subject(
        "ancestor",
        "fp32",
        (
            *(python, str((folder or Path()).resolve() / "tf_cnn_benchmarks.py")),
            *(*flags, *_sgd(), "--data_format=NHWC", "--display_every=1"),
        ),
        readings.ancestor(options.batch_size, version),
        python,
        ("tensorflow", "tf_keras"),
        {"TF_USE_LEGACY_KERAS": "1"},
        missing=missing,
    )


def _commit(folder: Path) -> str:
    """The commit that is checked out in a folder, ``?`` if unknown."""
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "?"
    return done.stdout.strip()


def _matmul(options: Options, dtype: str) -> Subject:
    python = options.cnnbench_python
    arguments = (f"--dtype={dtype}", f"--size={options.matmul_size}")
    command = (python, str(CHILDREN / "matmul.py"), *arguments)
    return Subject("matmul", dtype, command, readings.child, python, ("tensorflow",))
