"""Kills what writes files at random moments, and looks at what is left.

Usage: scripts/kills [--kills=N] [--seed=S]

N kills (200) with SIGKILL are spread over two writers: result files (a record and a table), and the
checkpoints of a training. Each writer works in a forked process, again and again, until it is
killed after a random time. Then nothing may be torn, nothing that the
writer had reported as done may be lost, and after the next one has written nothing may be left but
what belongs there. The exit status is 0 if so, 1 if not.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

Report = Callable[[int], None]
"""Told of the number of each write that is done."""


def killed(work: Callable[[Report], None], seconds: float) -> int:
    """Lets a forked process work for a while, kills it; returns the last number it reported.

    Args:
      work: calls its argument after each write; goes on until it is killed.
      seconds: from its first report, or from its start if there is none in a minute.
    """
    theirs, ours = os.pipe()
    child = _forked(lambda: work(lambda number: _told(ours, number)))
    os.close(ours)
    with os.fdopen(theirs, "rb", buffering=0) as reports:
        told = reports.readline()
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        rest = told + reports.read()
    done = [int(line) for line in rest.split(b"\n")[:-1] if line]
    return done[-1] if done else 0


def _told(descriptor: int, number: int) -> None:
    os.write(descriptor, b"%d\n" % number)


def in_child(work: Callable[[], None]) -> bool:
    """Whether work in a forked process ends without an exception."""
    return os.waitstatus_to_exitcode(os.waitpid(_forked(work), 0)[1]) == 0


def _forked(work: Callable[[], None]) -> int:
    """Number of a silent process that works, and ends with 0, or with 9 after an exception."""
    child = os.fork()
    if not child:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            work()
        except BaseException:
            os._exit(9)
        os._exit(0)
    return child


class Writer(Protocol):
    """Something that writes files until it is killed."""

    def work(self, report: Report) -> None:
        """Writes for ever."""

    def problems(self, done: int) -> list[str]:
        """What is wrong after a kill and the next write."""


class ResultFilesWriter:
    """--result_json and --result_csv of one run after the other."""

    def __init__(self, folder: Path) -> None:
        from cnnbench.records.load import load_run
        from cnnbench.records.result_files import ResultFiles
        from cnnbench.records.tables import RUNS

        self._folder, self._load = folder, load_run
        self._json, self._csv = folder / "run.json", folder / "runs.csv"
        self._files = ResultFiles(str(self._json), str(self._csv), RUNS)
        frozen = Path(__file__).parents[1] / "tests/frozen/runs/lenet-1.json"
        self._record = load_run(str(frozen))
        self._rows = 0

    def _write(self) -> None:
        from cnnbench.records.tables import run_row

        self._files.prepare()
        self._files.write(self._record, lambda: [run_row(self._record)])

    def _lines(self) -> list[str]:
        return self._csv.read_text().splitlines() if self._csv.exists() else []

    def work(self, report: Report) -> None:
        """Writes for ever."""
        number = 0
        while True:
            self._write()
            number += 1
            report(number)

    def problems(self, done: int) -> list[str]:
        """What is wrong after a kill and the next write."""
        found = []
        if done and self._json.exists():
            self._load(str(self._json))  # raises if it is torn
        elif done:
            found.append("the record is gone")
        if not in_child(self._write):
            found.append("the next write fails")
        lines = self._lines()
        if any(line.count(",") != lines[0].count(",") for line in lines if '"' not in line):
            found.append("a row is torn")
        if self._rows + done > len(lines) - 1:
            found.append(f"{self._rows + done} rows were written, {len(lines) - 1} are there")
        self._rows = len(lines) - 1
        left = {path.name for path in self._folder.iterdir()} - {"run.json", "runs.csv"}
        return [*found, *(f"{name} is left" for name in sorted(left))]


class CheckpointWriter:
    """A training that saves after every step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._step = 0

    def _built(self) -> Any:
        from cnnbench.driver.benchmark_cnn import BenchmarkCNN
        from cnnbench.flags import Params

        flags: dict[str, Any] = {
            "model": "trivial",
            "data_name": "cifar10",
            "device": "cpu",
            "batch_size": 1,
        }
        return BenchmarkCNN(Params(**flags, train_dir=str(self._folder))).build()

    def work(self, report: Report) -> None:
        """Saves for ever."""
        built = self._built()
        number = self._step
        while True:
            number += 1
            built.checkpoints.save(str(self._folder), number)
            report(number)

    def _restore(self) -> None:
        from cnnbench.driver import checkpoint_folder

        built = self._built()
        checkpoint_folder.clean(str(self._folder))
        path = checkpoint_folder.latest(str(self._folder))
        restored = built.checkpoints.restore(path)
        (self._folder / "restored").write_text(str(restored.global_step))

    def problems(self, done: int) -> list[str]:
        """What is wrong after a kill and the next resume."""
        answer = self._folder / "restored"
        if not in_child(self._restore):
            return [f"no checkpoint can be restored, though {done} was saved"] if done else []
        step = int(answer.read_text())
        answer.unlink()
        found = [] if step in (done, done + 1) else [f"{done} was saved, {step} is restored"]
        self._step = step
        whole = {f"model.ckpt-{n}" for n in range(max(0, step - 6), step + 1)}
        left = [
            path.name
            for path in self._folder.iterdir()
            if path.name != "checkpoint"
            and path.name.split(".index")[0].split(".data")[0] not in whole
        ]
        return [*found, *(f"{name} is left" for name in left)]


WRITERS: dict[str, tuple[Callable[[Path], Writer], float]] = {
    "result files": (ResultFilesWriter, 0.05),
    "checkpoints": (CheckpointWriter, 0.2),
}
"""By name: the writer, and the seconds up to which it is left alone."""


def run(name: str, kills: int, seed: int) -> list[str]:
    """Kills one writer so many times in one folder; returns what was wrong, a line each."""
    generator = random.Random(f"{name} {seed}")
    make, longest = WRITERS[name]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        writer = make(Path(folder))
        for number in range(kills):
            done = killed(writer.work, longest * generator.random())
            found += [f"{name}, kill {number}: {text}" for text in writer.problems(done)]
    return found


def main(arguments: Sequence[str]) -> int:
    """Kills all writers in turn."""
    options = {"kills": "200", "seed": "1"}
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if name not in options or not equals:
            print(__doc__, file=sys.stderr)
            return 2
        options[name] = value
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow  # noqa: F401 - once for all that is forked

    wrong: Counter[str] = Counter()
    for name in WRITERS:
        kills = int(options["kills"]) // len(WRITERS) or 1
        problems = run(name, kills, int(options["seed"]))
        wrong[name] += len(problems)
        print(
            "\n".join([*problems, f"{name}: {kills} kills, {len(problems)} problems"]), flush=True
        )
    return int(wrong.total() > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
