"""Runs commands that get a signal at a certain moment, or at a random time.

Each command runs in a separate folder. An audit hook of Python detects the moment for the signal.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from stops import SIGNALS, running_processes

from cnnbench.campaigns.processes import COMMAND_LINE

MOMENTS = ("first line", "import", "work", "last file")

_RUN = "--device=cpu --batch_size=1 --num_warmup_batches=1 --peak_flops=1e12 --num_batches="
_HOOK = """
import os, sys, threading, time

EVENT, PART, DELAY, NUMBER, PROCESS = {moment!r}, {part!r}, {delay!r}, {number}, os.getpid()
sent = []

def hook(event, arguments):
    if event == EVENT and not sent and PART in str(arguments[:2]):
        sent.append(NUMBER)
        if DELAY:
            timer = threading.Timer(DELAY, os.kill, (PROCESS, NUMBER))
            timer.daemon = True
            timer.start()
        else:
            os.kill(PROCESS, NUMBER)
            if PROCESS != os.getpid():
                time.sleep(0.5)  # until it has been passed on

sys.addaudithook(hook)
"""
_LIMIT_SECONDS, _LINGER_SECONDS = 240.0, 5.0
_AT_A_TIME = 2
_PLUGIN = """
from cnnbench.models import LearningRateSpec, Model, register_model

class Tiny(Model):
    name, dataset, image_size, batch_size = "tiny", "cifar10", 32, 1
    learning_rate = LearningRateSpec(0.1)

    def build(self, net, images):
        return net.logits(net.flatten(images))

register_model("tiny", "cifar10", Tiny)
"""
_SUITE = """
name: interrupted
description: Two short runs.
defaults:
  repeats: 2
  flags: {model: trivial, data_name: cifar10, device: cpu, batch_size: 1, num_batches: 3}
entries: [{name: one}]
"""


@dataclass(frozen=True)
class Command:
    """A command line of cnnbench, and how to recognize its moments.

    Attributes:
      words: the command line; STEPS is replaced by a number of steps, which is small if the command
        must reach its last file.
      loads: a module that the command imports.
      works: an event of Python's audit hooks, and a part of its arguments, while the command works.
      delay: seconds from that event to the signal.
      writes: a part of the name of the last file; "" if the command writes no file.
      seconds: longest time before a random signal.
    """

    words: str
    loads: str
    works: tuple[str, str]
    delay: float = 0.0
    writes: str = ""
    seconds: float = 2.0


_STARTS = ("subprocess.Popen", "--result_json")
COMMANDS = {
    "run": Command(
        f"run --model=trivial {_RUN}STEPS --result_json=out.json",
        *("tensorflow", ("import", "cnnbench.run.driver.scenarios"), 2.0, "out.json", 8.0),
    ),
    "ab": Command(
        f"ab --b=--batch_size=2 --pairs=6 --burn_in=0 --results=out -- --model=trivial {_RUN}3",
        *("cnnbench.campaigns.ab", _STARTS, 1.0, "'out/", 8.0),
    ),
    "compare": Command(
        "compare base new --format=json --output=out.json",
        *("numpy", ("open", "lenet-new-1.json"), 0.0, "out.json"),
    ),
    "sweep --list": Command("sweep suite.yaml --list", "yaml", ("open", "suite.yaml")),
    "sweep": Command(
        "sweep suite.yaml --results=out", "cnnbench.campaigns.sweep", _STARTS, 1.0, "'out/", 8.0
    ),
    "history": Command(
        "history base --format=json --output=out.json",
        *("numpy", ("open", "lenet-1.json"), 0.0, "out.json"),
    ),
    "report": Command(
        "report base --output=out.html", "numpy", ("open", "lenet-1.json"), 0.0, "out.html"
    ),
    "explain": Command(
        "explain --b=--batch_size=2 --rounds=1 --steps=2 --results=out --format=json "
        f"--output=out.json -- --model=trivial {_RUN}3",
        *("cnnbench.campaigns.ab", _STARTS, 1.0, "out.json", 8.0),
    ),
    "bisect": Command(
        "bisect HEAD~1 HEAD --repository=repository --pairs=6 --burn_in=0 --results=out -- "
        f"--plugin=net.py --model=tiny {_RUN}3",
        *("cnnbench.campaigns.bisect", _STARTS, 1.0, "'out/", 8.0),
    ),
    "tune": Command(
        f"tune --model=trivial --minutes=1 --results=out {_RUN}3",
        *("cnnbench.campaigns.tune", _STARTS, 1.0, "'out/", 8.0),
    ),
    "launch": Command(
        "launch --workers=2 -- --variable_update=collective_all_reduce --model=trivial "
        f"{_RUN}100000 --result_json=out.json",
        *("cnnbench.campaigns.launch", _STARTS, 2.0, "", 10.0),  # A worker writes the file.
    ),
    "allreduce": Command(
        "allreduce --device=cpu --num_gpus=2 --sizes=4K --all_reduce_spec=pscpu "
        "--num_batches=STEPS --result_json=out.json",
        *("tensorflow", ("import", "cnnbench.lab.all_reduce.program"), 1.0, "out.json", 6.0),
    ),
    "roofline": Command(
        f"roofline trivial --json=out.json {_RUN}3",
        *("tensorflow", ("import", "cnnbench.run.driver.scenarios"), 1.0, "out.json", 8.0),
    ),
    "models": Command("models --format=json", "cnnbench.models", ("open", "vgg.")),
    "env": Command("env --json", "cnnbench.machine", ("open", "/proc/cpuinfo")),
    "data": Command(
        "data make-imagenet images sets --train_shards=1 --validation_shards=1",
        *("tensorflow", ("open", "0.png"), 0.0, "'sets/", 6.0),
    ),
}


@dataclass(frozen=True)
class SignalCase:
    """A test case: a command that gets a signal at a moment, or after `delay` seconds."""

    command: str
    number: signal.Signals
    moment: str = ""
    delay: float = 0.0
    to_group: bool = False

    def __str__(self) -> str:
        when = f"at {self.delay:.3f} s" if not self.moment else f"{self.moment}"
        return f"{self.command}, {self.number.name}{' to its group' * self.to_group}, {when}"

    @property
    def words(self) -> list[str]:
        """The Python command line that runs the case."""
        command = COMMANDS[self.command]
        steps = "3" if self.moment == MOMENTS[3] else "100000"
        words = command.words.replace("STEPS", steps).split()
        if not self.moment:
            return [sys.executable, "-m", "cnnbench", *words]
        event, part, delay = {
            "first line": ("import", "'cnnbench.cli'", 0.0),
            "import": ("import", f"'{command.loads}'", 0.0),
            "work": (*command.works, command.delay),
            "last file": ("os.rename", command.writes, 0.0),
        }[self.moment]
        hook = _HOOK.format(moment=event, part=part, delay=delay, number=int(self.number))
        return [sys.executable, "-c", hook + COMMAND_LINE, *words]


def draw_random_case(generator: random.Random) -> SignalCase:
    """Draws a command, a signal and a time at random. Half of the times are in the start-up."""
    name = generator.choice([*COMMANDS])
    longest = COMMANDS[name].seconds if generator.random() < 0.5 else 0.6
    number, to_group = generator.choice(SIGNALS), generator.random() < 0.3
    return SignalCase(name, number, delay=generator.uniform(0.0, longest), to_group=to_group)


def all_cases() -> list[SignalCase]:
    """All combinations of commands, moments and signals that exist."""
    return [
        SignalCase(name, number, moment)
        for name, command in COMMANDS.items()
        for moment in MOMENTS
        if command.writes or moment != MOMENTS[3]
        for number in SIGNALS
    ]


def nonexistent_combinations() -> list[str]:
    """Combinations that do not exist, because the command writes no file."""
    return [f"{name}: {MOMENTS[3]}" for name, command in COMMANDS.items() if not command.writes]


def make_inputs(folder: Path) -> None:
    """Creates the files that the commands read."""
    import numpy as np
    import PIL.Image

    frozen = Path(__file__).parents[1] / "tests/frozen/runs"
    for name, pattern in (("base", "lenet-[1-4].json"), ("new", "lenet-new-*.json")):
        (folder / name).mkdir()
        for path in frozen.glob(pattern):
            shutil.copy(path, folder / name)
    (folder / "suite.yaml").write_text(_SUITE)
    generator = np.random.default_rng(1)
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(10):
            pixels = generator.integers(0, 255, (40, 40, 3), np.uint8)
            PIL.Image.fromarray(pixels).save(folder / "images" / name / f"{number}.png")
    repository = folder / "repository"
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    for text in ("", "\n"):
        (repository / "net.py").write_text(_PLUGIN + text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "one"], check=True)


def run_and_find_problems(case: SignalCase, inputs: Path) -> list[str]:
    """Runs a case in a copy of the input folder; returns its problems, one line each."""
    with tempfile.TemporaryDirectory(prefix="interrupted-") as name:
        folder = Path(name, "work")
        shutil.copytree(inputs, folder)
        error = folder.with_name("error")
        with error.open("wb") as err:
            child = subprocess.Popen(
                case.words,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(folder)},
            )
            try:
                if not case.moment:
                    time.sleep(case.delay)
                    # The child is not reaped yet, so its process number is still valid.
                    (os.killpg if case.to_group else os.kill)(child.pid, case.number)
                code: int | None = child.wait(_LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
                child.kill()
                child.wait()
            until = time.monotonic() + _LINGER_SECONDS
            while (left := running_processes(name)) and time.monotonic() < until:
                time.sleep(0.05)
            for process in left:
                process.kill()
        found = [f"process {process.pid} is left" for process in left]
        found += _exit_problems(case, code, error.read_text(errors="replace"))
        return [f"{case}: {text}" for text in [*found, *_file_problems(folder)]]


def _exit_problems(case: SignalCase, code: int | None, error: str) -> list[str]:
    """Problems with the exit code and the output of a case."""
    last = " | ".join(error.splitlines()[-3:])
    if not case.moment:
        if code in (0, 1, 3) and not ("interrupted" in error or "Traceback" in error):
            return []  # The command had already ended its work.
        is_pythons = code == -case.number or "init_import_site" in error
        if is_pythons and "cnnbench/" not in error:
            return []  # The command had not started yet.
    lines = [line for line in error.splitlines() if "cnnbench: error" in line]
    wrong = {
        f"exit code {code}: {last}": code != 130,
        f"error lines {lines}": lines != ["cnnbench: error: interrupted"],
        f"a traceback: {last}": "Traceback" in error or "Exception ignored" in error,
    }
    return [text for text, holds in wrong.items() if holds]


def _file_problems(folder: Path) -> list[str]:
    found = [f"{path.name} is left" for path in folder.rglob("*.tmp")]
    for path in folder.rglob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            found.append(f"{path.name} is torn")
    pages = folder.glob("*.html")
    return [*found, *(f"{one} is torn" for one in pages if "</html>" not in one.read_text())]


def run_cases(cases: Iterable[SignalCase]) -> list[str]:
    """Runs cases, several at a time; prints and returns their problems, one line each."""
    with (
        tempfile.TemporaryDirectory(prefix="inputs-") as name,
        ThreadPoolExecutor(_AT_A_TIME) as threads,
    ):
        inputs = Path(name)
        make_inputs(inputs)
        found: list[str] = []
        for lines in threads.map(lambda case: run_and_find_problems(case, inputs), cases):
            found += lines
            print(*lines, sep="\n", end="\n" * bool(lines), flush=True)
    return found
