"""Kills and stops processes that write files at random moments, and checks the files.

Usage: scripts/kills [OPTIONS]

Kills (SIGKILL) hit four writers: result files (a record and a table), the checkpoints of a
training, `cnnbench data make-imagenet`, and `cnnbench sweep`. Each writer works in a forked
process, repeatedly, until it is killed after a random time. After the kill, no file may be damaged,
and nothing that the writer had reported as done may be lost. After the next writer, only the files
of the next writer may remain.

Kills also hit commands at random times: a run, a job, `ab` and a run of a Keras model. After each
of these kills, no process of the command may remain.

Stops hit runs of one or two processes with short steps, steps of 6 s, an input that hangs, or an
operation that does not end. The runs get interrupting signals, or the folder of their record fills
or vanishes. Each run must end at most 2 s after the time that it announces, and leave no process.
Its record must contain all steps that it has printed, and its checkpoint must be readable. Several
runs are tested at the same time, because most runs wait: 200 take a quarter of an hour on two quiet
cores.

Signals hit all kinds of commands at random times. Each command must end with exit code 130 and one
line, or with the exit code of its complete answer. There may be no traceback, no incomplete file
and no remaining process. With --commands, each command instead gets each interrupting signal at
four moments: after its first line, during an import, at work, and while its last file is written.

The exit status is 0 if all commands meet these requirements, 1 if not.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import interrupted
from command_line import parse_options, run_script
from orphans import KilledCommand
from stops import FORK, SIGNALS, DisturbedRunCase, run_cases, running_processes

from cnnbench.base.locks import FILE
from cnnbench.cli import main as cnnbench
from cnnbench.data.folder import UNFINISHED
from cnnbench.errors import FlagError
from cnnbench.flags import Params
from cnnbench.flags.declare import flag
from cnnbench.records.load import load_run
from cnnbench.records.result_files import RUNS, ResultFiles, run_row

Report = Callable[[int], object]
"""Reports the number of each completed write."""


def run_and_kill(work: Callable[[Report], None], seconds: float) -> int:
    """Runs `work` in a forked process and kills it; returns the last number that it reported.

    Args:
      work: function that calls its argument after each write, and runs until it is killed.
      seconds: time from the first report to the kill, or from the start if `work` reports nothing
        in the first minute.
    """
    reports, ours = FORK.Pipe(duplex=False)
    child = FORK.Process(target=silently, args=(lambda: work(ours.send),))
    child.start()
    ours.close()
    reports.poll(60)
    time.sleep(seconds)
    child.kill()
    child.join()
    done = 0
    with reports, contextlib.suppress(EOFError):
        while True:
            done = reports.recv()
    return done


def succeeds_in_child(work: Callable[[], None]) -> bool:
    """Runs `work` in a forked process; returns whether it ends without an exception."""
    child = FORK.Process(target=silently, args=(work,))
    child.start()
    child.join()
    return child.exitcode == 0


def silently(work: Callable[[], None]) -> None:
    """Runs `work` after redirecting the output of this process to /dev/null."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    work()


class Writer(Protocol):
    """Interface of test objects that write files until they are killed."""

    def write_until_killed(self, report: Report) -> None:
        """Writes files until the process is killed."""

    def find_problems_after_kill(self, done: int) -> list[str]:
        """Problems that are found after a kill and the next write."""


def unexpected_file_problems(folder: Path, expected: Collection[str]) -> list[str]:
    """Names unexpected files in a folder, as problems."""
    names = {path.name for path in folder.iterdir()} - {*expected}
    return [f"{name} is left" for name in sorted(names)]


def unlocked_folder_names(folder: Path) -> list[str]:
    """Names of temporary folders whose creator was killed before it had written the lock file. They
    are empty, and nobody removes them, because their creator could still be running.
    """
    names = [path.name for path in folder.glob(f"{UNFINISHED}*")]
    return [
        name for name in names if not any(path.stat().st_size for path in (folder / name).iterdir())
    ]


def contents(folder: Path) -> dict[str, bytes]:
    """Files of a folder by name, except the lock, which is released after the last file."""
    files = (path for path in folder.glob("*") if path.is_file() and path.name != FILE)
    return {path.name: path.read_bytes() for path in files}


class ResultFilesWriter:
    """Writes --result_json and --result_csv of one run after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._rows = folder, 0
        self._json, self._csv = folder / "run.json", folder / "runs.csv"
        self._files = ResultFiles(str(self._json), str(self._csv), RUNS)
        frozen = Path(__file__).parents[1] / "tests/frozen/runs/lenet-1.json"
        self._record = load_run(str(frozen))

    def _write(self) -> None:
        self._files.check_writable()
        self._files.write(self._record, lambda: [run_row(self._record, {})])

    def write_until_killed(self, report: Report) -> None:
        """Writes result files until the process is killed."""
        for number in itertools.count(1):
            self._write()
            report(number)

    def find_problems_after_kill(self, done: int) -> list[str]:
        """Problems that are found after a kill and the next write."""
        found = []
        if done and self._json.exists():
            load_run(str(self._json))  # Raises an error if the record is incomplete.
        elif done:
            found.append("the record is gone")
        if not succeeds_in_child(self._write):
            found.append("the next write fails")
        lines = self._csv.read_text().splitlines() if self._csv.exists() else []
        if any(line.count(",") != lines[0].count(",") for line in lines if '"' not in line):
            found.append("a row is torn")
        if self._rows + done > len(lines) - 1:
            found.append(f"{self._rows + done} rows were written, {len(lines) - 1} are there")
        self._rows = len(lines) - 1
        return [*found, *unexpected_file_problems(self._folder, {"run.json", "runs.csv"})]


class CheckpointWriter:
    """Writes a checkpoint of a training after every step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._step = 0

    def _built(self) -> Any:
        from cnnbench.run.driver.benchmark_cnn import BenchmarkCNN

        network = Params(model="trivial", data_name="cifar10", device="cpu", batch_size=1)
        # More steps than are ever saved, because a finished training is not resumed.
        training = network.replace(train_dir=str(self._folder), num_batches=10**6)
        return BenchmarkCNN(training).build()

    def write_until_killed(self, report: Report) -> None:
        """Saves checkpoints until the process is killed."""
        built = self._built()
        for number in itertools.count(self._step + 1):
            built.checkpoints.save(str(self._folder), number)
            report(number)

    def _restore(self) -> None:
        from cnnbench.records import checkpoints

        built = self._built()
        checkpoints.delete_incomplete_files(str(self._folder))
        path = checkpoints.find_latest_checkpoint(str(self._folder))
        restored = built.checkpoints.restore(path)
        (self._folder / "restored").write_text(str(restored.global_step))
        # This overwrites what the killed process had written for the same step.
        built.checkpoints.save(str(self._folder), restored.global_step + 1)

    def find_problems_after_kill(self, done: int) -> list[str]:
        """Problems that are found after a kill, a resume and the next save."""
        answer = self._folder / "restored"
        if not succeeds_in_child(self._restore):
            return [f"no checkpoint can be restored, though {done} was saved"] if done else []
        step = int(answer.read_text())
        answer.unlink()
        found = [] if step in (done, done + 1) else [f"{done} was saved, {step} is restored"]
        self._step = step = step + 1
        whole = tuple(f"model.ckpt-{n}." for n in range(max(0, step - 6), step + 1))
        files = {path.name for path in self._folder.iterdir() if path.name.startswith(whole)}
        return [*found, *unexpected_file_problems(self._folder, {"checkpoint", *files})]


class ImagenetWriter:
    """Runs `cnnbench data make-imagenet` for one folder after the other."""

    def __init__(self, folder: Path) -> None:
        self._images, self._out, whole = (folder / n for n in ("images", "sets", "whole"))
        if not (succeeds_in_child(self._prepare) and succeeds_in_child(lambda: self._make(whole))):
            raise RuntimeError("the images cannot be made into a data set")
        self._whole = contents(whole)
        self._number = 0

    def _prepare(self) -> None:
        import numpy as np
        import tensorflow as tf

        generator = np.random.default_rng(1)
        for name in ("cat", "dog"):
            (self._images / name).mkdir(parents=True)
            for number in range(20):
                pixels = generator.integers(0, 255, (50, 60, 3), np.uint8)
                path = self._images / name / f"{number}.png"
                path.write_bytes(tf.io.encode_png(pixels).numpy())

    def _make(self, out: Path) -> None:
        command = ["data", "make-imagenet", str(self._images), str(out)]
        if cnnbench([*command, "--train_shards=4", "--validation_shards=2"]):
            raise RuntimeError(f"{out} cannot be made")

    def write_until_killed(self, report: Report) -> None:
        """Writes data sets until the process is killed."""
        report(self._number)
        for number in itertools.count(self._number + 1):
            self._make(self._out / str(number))
            report(number)

    def _refused(self, out: Path) -> bool:
        """Whether a training refuses the folder because its data set is unfinished."""
        from cnnbench.data.tfrecord import find_files

        try:
            find_files(str(out), "train")
        except FlagError:
            return True
        return False

    def find_problems_after_kill(self, done: int) -> list[str]:
        """Problems that are found after a kill and the next write."""
        sets = [self._out / str(number) for number in range(self._number + 1, done + 1)]
        found = [f"{out.name} is not whole" for out in sets if contents(out) != self._whole]
        self._number = done + 1
        last = self._out / str(self._number)
        if contents(last) != self._whole and last.exists():
            if not self._refused(last):
                found.append(f"{last.name} is torn, and a training takes it")
            elif any(last.glob("train-*")):
                shutil.rmtree(last)  # The error message, which is checked next, requests this.
        again = succeeds_in_child(lambda: self._make(last))
        if not again and contents(last) != self._whole:
            found.append(f"{last.name} cannot be made again")
        # The second run, which is refused, must not change a complete data set.
        expected = {*self._whole, *unlocked_folder_names(last)}
        return [*found, *unexpected_file_problems(last, expected)] if again else found


class SweepWriter:
    """Runs `cnnbench sweep`, which is killed once and then resumed to its end."""

    _RUNS = 2

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        self._suite = folder / "suite.yaml"
        flags = "{model: trivial, data_name: cifar10, device: cpu, batch_size: 1, num_batches: 1}"
        self._suite.write_text(
            f"name: kills\ndescription: Two short runs.\n"
            f"defaults: {{repeats: {self._RUNS}, flags: {flags}}}\nentries: [{{name: one}}]\n"
        )

    @property
    def _results(self) -> Path:
        return self._folder / f"results-{self._number}"

    def _sweep(self) -> None:
        if cnnbench(["sweep", str(self._suite), f"--results={self._results}", "--resume"]):
            raise RuntimeError("the sweep failed")

    def write_until_killed(self, report: Report) -> None:
        """Runs the sweep once."""
        report(0)
        self._sweep()
        time.sleep(60)

    def _records(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self._results.glob("*.r*.json")}

    def find_problems_after_kill(self, done: int) -> list[str]:
        """Problems that are found after a kill and the next write."""
        del done
        before, found = self._records(), []
        for name in before:
            load_run(str(self._results / name))  # Raises an error if the record is incomplete.
        deadline = time.monotonic() + 20
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.2)
        found += [f"process {number} is left" for number in self._alive()]
        if not succeeds_in_child(self._sweep):
            found.append("the sweep cannot be resumed")
        after = self._records()
        if len(after) != self._RUNS or any(after.get(name) != before[name] for name in before):
            found.append(f"records {sorted(before)} became {sorted(after)}")
        files = [path.name for path in self._results.rglob("*") if path.is_file()]
        unfinished = [name for name in files if name[0] == "." or name.endswith(".pending")]
        found += [f"{name} is left" for name in sorted({*unfinished} - {FILE})]
        self._number += 1
        return found

    def _alive(self) -> list[int]:
        """Numbers of processes that have this results folder among their arguments."""
        return [process.pid for process in running_processes(str(self._results))]


WRITERS: dict[str, tuple[Callable[[Path], Writer], float]] = {
    "result files": (ResultFilesWriter, 0.05),
    "checkpoints": (CheckpointWriter, 0.2),
    "make-imagenet": (ImagenetWriter, 0.5),
    "sweep": (SweepWriter, 12.0),
}
"""Writers by name, with the longest time in seconds before a kill."""


def kill_writer_repeatedly(name: str, kills: int, seed: int) -> list[str]:
    """Kills one writer repeatedly in one folder; returns the problems, one line each."""
    generator = random.Random(f"{name} {seed}")
    make, longest = WRITERS[name]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        writer = make(Path(folder))
        for number in range(kills):
            done = run_and_kill(writer.write_until_killed, longest * generator.random())
            found += [
                f"{name}, kill {number}: {text}" for text in writer.find_problems_after_kill(done)
            ]
    return found


@dataclass(frozen=True)
class Options:
    """Command-line options: numbers of kills, orphans, stops and signals, and the seed."""

    kills: int = flag(200, "Kills of all writers together.", minimum=0)
    orphans: int = flag(40, "Commands that are killed, and must leave no process.", minimum=0)
    stops: int = flag(200, "Runs that are stopped, or whose folder fills or vanishes.", minimum=0)
    signals: int = flag(200, "Commands that get a signal at a random time.", minimum=0)
    commands: bool = flag(False, "Play only the table of commands, signals and moments.")
    seed: int = flag(1, "Seed of all of them.")


def main(arguments: Sequence[str]) -> int:
    """Kills all writers one after the other; returns the exit status."""
    options = parse_options(Options, __doc__, arguments)
    # A shell makes its background jobs ignore some signals, and their children, too.
    for ignorable in SIGNALS:
        if signal.getsignal(ignorable) is signal.SIG_IGN:
            signal.signal(ignorable, signal.SIG_DFL)
    if options.commands:
        cases = interrupted.all_cases()
        print(*(f"not there: {cell}" for cell in interrupted.nonexistent_combinations()), sep="\n")
        problems = interrupted.run_cases(cases)
        print(f"{len(cases)} cells, {len(problems)} problems")
        return int(bool(problems))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow  # noqa: F401 - imported once for all forked processes

    wrong = 0
    for name in WRITERS:
        kills = -(-options.kills // len(WRITERS))
        problems = kill_writer_repeatedly(name, kills, options.seed)
        wrong += len(problems)
        print(*problems, f"{name}: {kills} kills, {len(problems)} problems", sep="\n", flush=True)
    problems = []
    for number in range(options.orphans):
        problems += KilledCommand.draw(number, options.seed).find_orphans()
    wrong += len(problems)
    print(*problems, f"{options.orphans} killed commands, {len(problems)} problems", sep="\n")
    drawn = (
        DisturbedRunCase.draw(random.Random(f"stops {options.seed} {n}"))
        for n in range(options.stops)
    )
    problems = run_cases(drawn)
    wrong += len(problems)
    print(f"{options.stops} stops, {len(problems)} problems")
    generators = (random.Random(f"signals {options.seed} {n}") for n in range(options.signals))
    problems = interrupted.run_cases(map(interrupted.draw_random_case, generators))
    print(f"{options.signals} signals, {len(problems)} problems")
    return int(wrong + len(problems) > 0)


if __name__ == "__main__":
    run_script(main)
