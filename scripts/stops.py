"""Interrupts runs, or removes or fills their results folder, and checks the files that they leave.

Each test case is a command line in a separate process, which is forked from a process that has
loaded TensorFlow. `play` runs several cases at the same time, because most of them wait.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from cnnbench.cli import entry_point
from cnnbench.records.load import load_run

FORK = multiprocessing.get_context("fork")

_PLUGIN = '''
"""Data of one number per example; one layer, whose loss takes some seconds or never ends."""

from cnnbench.data import Dataset, register_dataset
from cnnbench.models import LearningRateSpec, Model, register_model

SECONDS, HANGS_AT, BLOCKS_AT = {seconds}, {hangs_at}, {blocks_at}


def never():
    import tensorflow as tf

    queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], shared_name="never")
    (value,) = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.float32])
    return tf.ensure_shape(value, [])


def open_files(spec):
    import tensorflow as tf
    from cnnbench.data.pipeline import Pipeline

    class Numbers(Pipeline):
        def tower_batches(self):
            def example(n):
                zero = tf.cond(tf.equal(n, HANGS_AT), never, lambda: tf.zeros([]))
                label = tf.cast(tf.equal(n, BLOCKS_AT), tf.int64)
                return {{"image": tf.fill([8, 8, 3], zero), "label": label}}

            return tf.data.Dataset.range(10**6).map(example).batch(spec.batch_per_device)

    return Numbers(spec, 10**6)


class Tiny(Model):
    name, dataset, image_size, batch_size = "tiny", "numbers", 8, 1
    learning_rate = LearningRateSpec(0.05)

    def build(self, net, images):
        return net.logits(net.flatten(images))

    def loss(self, outputs, labels):
        import time

        import numpy as np
        import tensorflow as tf

        slept = tf.numpy_function(lambda: time.sleep(SECONDS) or np.float32(0), [], tf.float32)
        with tf.control_dependencies([slept]):
            zero = tf.cond(tf.reduce_any(labels > 0), never, lambda: tf.zeros([]))
        return super().loss(outputs, labels) + zero


register_dataset(Dataset(
    name="numbers", num_classes=2, examples={{"train": 10**6, "validation": 1}}, files="numbers",
    find=lambda folder, subset: [folder], count=lambda files, subset: 10**6,
    check=lambda files, classes: None, open=open_files,
))
register_model("tiny", "numbers", Tiny)
'''
_ROW = re.compile(r"^\d+\timages/sec", re.MULTILINE)
_WAITS = re.compile(r"waiting up to (\d+) s")
_WARM_UP, _STEPS = 2, 20
_SECONDS_MORE = 2.0  # Tolerance for the time that a run needs to end.
_QUIET = 1.0  # A run that announces no waiting time must end within this many seconds.
_START_SECONDS, _END_SECONDS = 120.0, 60.0
_AT_A_TIME = 3

_FOREIGN = "of another program"

SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
WORKS = ("steps", "steps of 6 s", "hung input", "native operation")
LONGEST_DELAYS = {"steps of 6 s": 5.0, "steps": 0.1}
"""The longest delay before a signal in seconds, by `WORKS`; 1.5 for other work."""
FOLDERS = ("vanishes", "becomes a file", "is made anew", "gets a file of that name", "fills")


@dataclass(frozen=True)
class DisturbedRunCase:
    """A test case: one run of cnnbench, and how it is disturbed.

    Attributes:
      work: what the run does; one of `WORKS`.
      rows: timed steps before the disturbance. If `work` does not end, the next step hangs.
      delay: seconds from the last of these steps to the disturbance.
      folder: what happens to the folder of the record, one of `FOLDERS`; "" for nothing.
      number: signal that the run gets; None for no signal.
      to_group: whether the whole process group gets the signal, as from a terminal.
      again: whether the run gets a second signal.
      workers: number of worker processes; `launch` starts several.
      saves: whether the run writes a checkpoint after every step.
    """

    work: str
    rows: int
    delay: float
    folder: str
    number: signal.Signals | None
    to_group: bool
    again: bool
    workers: int
    saves: bool

    @classmethod
    def draw(cls, generator: random.Random) -> DisturbedRunCase:
        """Draws a case at random."""
        folder = generator.choice(FOLDERS) if generator.random() < 0.15 else ""
        work = "steps" if folder else generator.choice((*WORKS, "steps", "hung input"))
        long = work == "steps of 6 s"
        ends = folder and generator.random() < 0.7  # The run ends without a signal.
        return cls(
            work=work,
            rows=generator.randint(0, 1 if long else 4),
            delay=generator.uniform(0.0, LONGEST_DELAYS.get(work, 1.5)),
            folder=folder,
            number=None if ends else generator.choice(SIGNALS),
            to_group=generator.random() < 0.3,
            again=generator.random() < 0.15,
            workers=2 if not folder and generator.random() < 0.12 else 1,
            saves=generator.random() < 0.5,
        )

    def __str__(self) -> str:
        told = f"{self.work}, {'--train_dir, ' if self.saves else ''}after {self.rows} steps"
        told += f" the folder {self.folder}" if self.folder else ""
        if self.number is None:
            return told
        whom = f"{'group of ' if self.to_group else ''}{self.workers} workers"
        return f"{told}, {'twice ' if self.again else ''}{self.number.name} to {whom}"


class Run:
    """The process of a case, in its own session.

    Attributes:
      text: what the process has printed, as `poll_output` has read it.
      rows: timed steps that the process had printed when it was disturbed.
      twice: whether the process got a second signal.
    """

    def __init__(self, words: list[str], folder: Path) -> None:
        self.text, self.rows, self.twice = "", 0, False
        self._out, printed = os.pipe()
        self._process = FORK.Process(target=self._command, args=(words, folder, printed))
        self._process.start()
        os.close(printed)
        os.set_blocking(self._out, False)

    @staticmethod
    def _command(words: list[str], folder: Path, printed: int) -> None:
        os.setsid()
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        sys.argv = ["cnnbench", *words]
        entry_point()

    def poll_output(self) -> int | None:
        """Reads what the process has printed; returns its exit code if it has ended."""
        code = self._process.exitcode
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._out, 1 << 16):
                self.text += part.decode(errors="replace")
        return code

    def send(self, case: DisturbedRunCase) -> None:
        """Sends the signal of the case to the process or its group."""
        assert self._process.pid is not None
        assert case.number is not None
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if case.to_group else os.kill)(self._process.pid, case.number)

    @property
    def progress_count(self) -> int:
        """1 if the warm-up is complete, plus the number of timed steps that are printed."""
        return ("Done warm up" in self.text) + len(_ROW.findall(self.text))

    @property
    def last_lines(self) -> str:
        """The last three lines that the process has printed."""
        return " | ".join(self.text.splitlines()[-3:])

    def close(self) -> None:
        """Kills the process, and releases its resources."""
        self._process.kill()
        self._process.join()
        os.close(self._out)


def running_processes(text: str) -> list[psutil.Process]:
    """Running processes with this text among their arguments or in their folder."""
    every = psutil.process_iter(["cmdline", "cwd"])
    found = (
        p for p in every if text in " ".join([*(p.info["cmdline"] or ()), p.info["cwd"] or ""])
    )
    return [p for p in found if p.pid != os.getpid()]


Waiting = Generator[None, None, list[str]]
"""Yields while it waits; returns problems, a line each."""


def run_case(case: DisturbedRunCase, folder: Path) -> Waiting:
    """Runs a case in its own folder."""
    results, apart = folder / "results", folder / "apart"
    results.mkdir()
    apart.mkdir()
    endless = _WARM_UP + case.rows
    values = {
        "seconds": 6.0 if case.work == "steps of 6 s" else 0.1,
        "hangs_at": endless if case.work == "hung input" else -1,
        "blocks_at": endless if case.work == "native operation" else -1,
    }
    (folder / "plugin.py").write_text(_PLUGIN.format(**values))
    flags = f"--plugin={folder}/plugin.py --data_dir={folder} --model=tiny --device=cpu"
    flags += f" --num_warmup_batches={_WARM_UP} --num_batches={_STEPS} --display_every=1"
    flags += f" --result_json={results}/run.json --result_csv={apart}/runs.csv --peak_flops=0"
    if case.saves:
        flags += f" --train_dir={folder}/train --save_model_steps=1"
    if case.workers > 1:
        flags = (
            f"launch --workers={case.workers} -- --variable_update=collective_all_reduce {flags}"
        )
    run = Run(flags.split(), folder)
    try:
        found = yield from _disturb_and_wait(case, run, results)
        if not found:
            found = _result_problems(case, run, results, apart)
            if case.saves and not case.folder:
                found += yield from _check_last_checkpoint(
                    folder / "train", _WARM_UP + run.rows - 1
                )
        # The kernel may still be removing processes that have ended.
        until = time.monotonic() + _SECONDS_MORE
        while running_processes(str(folder)) and time.monotonic() < until:
            yield
    finally:
        run.close()
        left = running_processes(str(folder))
        for process in left:
            process.kill()
    return [*found, *(f"process {process.pid} is left" for process in left)]


def _disturb_and_wait(case: DisturbedRunCase, run: Run, results: Path) -> Waiting:
    """Disturbs a run as the case requires, and waits for its end."""
    begin = time.monotonic()
    while run.poll_output() is None and run.progress_count < case.rows + 1:
        if time.monotonic() > begin + _START_SECONDS:
            return [f"no step {case.rows} within {_START_SECONDS:.0f} s: {run.last_lines}"]
        yield
    due = time.monotonic() + case.delay
    while run.poll_output() is None and time.monotonic() < due:
        yield
    run.rows = run.progress_count - 1
    if case.folder:
        _disturb(case.folder, results)
    begin = time.monotonic()
    limit, again = begin + _END_SECONDS, math.inf
    if case.number is not None:
        run.send(case)
        again = begin + 1.5 if case.again else math.inf
    while run.poll_output() is None:
        now = time.monotonic()
        if now > limit:
            return [f"has not ended after {_END_SECONDS:.0f} s: {run.last_lines}"]
        if now > again:
            run.send(case)
            begin, again = now, math.inf
            run.twice = True
        yield
    seconds = time.monotonic() - begin
    waits = [0.0] if run.twice else [_QUIET, *map(float, _WAITS.findall(run.text))]
    if case.number is not None and seconds > max(waits) + _SECONDS_MORE:
        return [f"took {seconds:.1f} s to end, not {max(waits):.0f}"]
    return []


def _disturb(how: str, results: Path) -> None:
    if how == "fills":
        for process in running_processes(str(results)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.rlimit(resource.RLIMIT_FSIZE, (64, 64))
        return
    path = results / "run.json"
    if how != FOLDERS[3]:
        path = results
        shutil.rmtree(results)
    if how == "is made anew":
        path.mkdir()
    elif how != "vanishes":
        path.write_text(_FOREIGN)


def _result_problems(case: DisturbedRunCase, run: Run, results: Path, apart: Path) -> list[str]:
    """Problems with the exit code, the output, the record and the table of a run."""
    expected = {4, 130} if case.folder else {130}
    if case.number is None:
        expected = {0, 4}
    code, ends = run.poll_output(), case.number is None
    files = [path for folder in (results, apart) for path in folder.glob("*")]
    foreign = [path for path in files if path.read_text() == _FOREIGN]
    records = [path for path in files if path.suffix == ".json" and path not in foreign]
    steps = [len(load_run(str(path)).step_seconds) for path in records]  # Fails if incomplete.
    names = {path.name for path in files} - {"run.json", "runs.csv"}
    if case.folder == FOLDERS[3]:
        names -= {path.name for path in records}
    is_told = str(results) in run.text
    table = apart / "runs.csv"
    rows = list(csv.reader(table.open(newline=""))) if table.exists() else []
    wrong = {
        "a traceback": "Traceback" in run.text,
        f"exit code {code}": code not in expected or (code == 0 and not records),
        "the total is not printed": ends and "total images/sec" not in run.text,
        "no record, and no word of it": not records and not (case.folder and is_told),
        "a foreign file is replaced without a word": case.folder == FOLDERS[3]
        and not (foreign or is_told),
        f"{run.rows} steps were printed, {steps} are in the record": min(steps, default=99)
        < run.rows,
        "a row of the table is torn": any(len(row) != len(rows[0]) for row in rows),
        f"{len(rows)} lines in the table": len(rows) != 2 and case.folder != "fills",
        f"left: {', '.join(sorted(names))}": bool(names),
    }
    return [f"{text}: {run.last_lines}" for text, holds in wrong.items() if holds]


def _check_last_checkpoint(folder: Path, step: int) -> Waiting:
    """Checks that the newest checkpoint can be read and has at least this global step."""

    def read() -> None:
        import tensorflow as tf

        newest = tf.train.latest_checkpoint(str(folder))
        reader = tf.train.load_checkpoint(newest)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
        os._exit(0 if int(newest.rpartition("-")[2]) >= step else 1)

    if step <= _WARM_UP:  # No checkpoint is reported as saved yet.
        return []
    child = FORK.Process(target=read)
    child.start()
    while child.exitcode is None:
        yield
    return [] if child.exitcode == 0 else [f"no checkpoint of step {step} can be read"]


def run_cases(cases: Iterable[DisturbedRunCase]) -> list[str]:
    """Runs cases, several at a time; prints and returns their problems, one line each."""
    found: list[str] = []
    left = enumerate(cases)
    playing: dict[Path, tuple[str, Waiting]] = {}
    with tempfile.TemporaryDirectory(prefix="stops-") as root:
        while True:
            for number, case in itertools.islice(left, _AT_A_TIME - len(playing)):
                folder = Path(root, f"case-{number}")
                folder.mkdir()
                playing[folder] = f"case {number}, {case}", run_case(case, folder)
            if not playing:
                return found
            for folder, (title, waiting) in [*playing.items()]:
                try:
                    next(waiting)
                except StopIteration as end:
                    del playing[folder]
                    shutil.rmtree(folder)
                    found += [f"{title}: {text}" for text in end.value]
                    for text in end.value:
                        print(f"{title}: {text}", flush=True)
            time.sleep(0.01)
