"""cnnbench on emulated GPUs: real processes, forked from one that has loaded the emulator.

`tests/gpu_emulator/README.md` describes the emulator and its settings.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from forked import preloaded
from zygote import Zygote

from cnnbench.run.runtime.supervisor import GUARDED

_path = Path(__file__).parents[1] / "gpu_emulator" / "build.py"
_spec = importlib.util.spec_from_file_location("gpu_emulator_build", _path)
assert _spec is not None
assert _spec.loader is not None
build = importlib.util.module_from_spec(_spec)
"""The module that builds the emulator."""
sys.modules[_spec.name] = build
_spec.loader.exec_module(build)

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
TIMEOUT = 150.0
"""Seconds in which a command of a test ends; most take two."""

_BEGIN = """
from forked import launching, see_own_gpus
see_own_gpus()
"""
_RUN = """
launching()
"""


# Goes on as one of several forked processes.
_TOGETHER = """
import os, sys
children = {{}}
for name, words in {runs!r}.items():
    os.makedirs(name + "/trace")
    child = os.fork()
    if child:
        children[child] = name
        continue
    os.chdir(name)
    for number, file in ((1, "out"), (2, "err")):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    settings = dict(word.split("=", 1) for word in words if not word.startswith("-"))
    os.environ.update({{"HOSTGPU_" + key.upper(): value for key, value in settings.items()}})
    os.environ["HOSTGPU_TRACE"] = os.path.abspath("trace")
    sys.argv += [word for word in words if word.startswith("-")]
    sys.argv.append("--result_json=record.json")
    break
else:
    while children:
        child, status = os.wait()
        with open(children.pop(child) + "/status", "w") as file:
            file.write(str(os.waitstatus_to_exitcode(status)))
    os._exit(0)
"""


class Work(NamedTuple):
    """What a stream of an emulated GPU did.

    Attributes:
      device: number of the GPU on the machine.
      stream: name of the stream; "(nil)" for a copy without one.
      what: "kernel", "MemcpyH2D", "MemcpyD2H", "MemcpyD2D" (within a GPU), "MemcpyP2P", or
        "synchronous": the launch of a kernel that waited for the GPU.
      operation: "name:type" of a kernel's operation, "" of a copy.
      start, end: seconds since the epoch.
    """

    device: int
    stream: str
    what: str
    operation: str
    start: float
    end: float


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what the GPUs did meanwhile.

    Attributes:
      status: exit status.
      out, err: what it printed.
      folder: its working directory.
    """

    status: int
    out: str
    err: str
    folder: Path

    @cached_property
    def record(self) -> dict[str, Any]:
        """The record of a run, which every command gets as --result_json=record.json."""
        found: dict[str, Any] = json.loads((self.folder / "record.json").read_text())
        return found

    @cached_property
    def work(self) -> list[Work]:
        """All work of the GPUs, of all processes, in the order of its ends."""
        rows = []
        for file in (self.folder / "trace").glob("*.tsv"):
            for line in file.read_text().splitlines():
                device, stream, what, operation, start, end = line.split("\t")
                times = int(start) / 1e9, int(end) / 1e9
                rows.append(Work(int(device), stream, what, operation, *times))
        return sorted(rows, key=lambda one: one.end)


class EmulatedGpus:
    """Runs commands on emulated GPUs.

    Args:
      folder: of the commands' working directories.

    Raises:
      UnavailableError: the emulator cannot be built here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = itertools.count()
        build.library()
        self._environment = {**os.environ, GUARDED: "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        self._environment[_ONEDNN] = "0"  # with which CPUs have the kernels of the emulated GPUs
        self._environment.pop("CUDA_VISIBLE_DEVICES", None)
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._zygotes: dict[str | None, Zygote] = {}

    def close(self) -> None:
        """Ends the processes that fork."""
        for zygote in self._zygotes.values():
            zygote.close()

    def __call__(
        self,
        *argv: str,
        gpus: int = 2,
        environment: Mapping[str, str | None] | None = None,
        record: bool = True,
        before: str = "",
        timeout: float = TIMEOUT,
        **settings: object,
    ) -> Outcome:
        """Runs a command to its end.

        Args:
          argv: behind `cnnbench`.
          gpus: how many there are; 0 for a machine without any.
          environment: further variables; those that are None are removed.
          record: whether the command takes --result_json.
          before: Python that runs first.
          timeout: seconds.
          settings: of the emulator, as "kernel_us".
        """
        folder = self._folder / str(next(self._count))
        given = {**self._environment, **(environment or {})}
        variables = {name: value for name, value in given.items() if value is not None}
        own = {name: folder / name for name in ("trace", "state")}
        for path in own.values():
            path.mkdir(parents=True)
        variables |= build.environment(gpus, **{**own, **settings})
        words: Sequence[str] = (*argv, "--result_json=record.json") if record else argv
        out, err = folder / "out", folder / "err"
        place = {"folder": str(folder), "environment": variables}
        status, late = self._loaded(variables).run(
            _BEGIN + before + _RUN, ["cnnbench", *words], out, err, **place, timeout=timeout
        )
        assert not late, err.read_text()
        return Outcome(status, out.read_text(), err.read_text(), folder)

    def together(
        self, *argv: str, runs: Mapping[str, Sequence[str]], **how: Any
    ) -> dict[str, Outcome]:
        """Runs several commands at once: for those that wait for most of their time.

        Args:
          argv: behind `cnnbench`, of all.
          runs: by name, what each has besides: flags, and settings as "rules=...".
          how: as for a single command.
        """
        before = how.pop("before", "") + _TOGETHER.format(runs=dict(runs))
        whole = self(*argv, before=before, record=False, **how)
        assert whole.status == 0, whole.err
        folders = {name: whole.folder / name for name in runs}
        return {
            name: Outcome(
                int((folder / "status").read_text()),
                (folder / "out").read_text(),
                (folder / "err").read_text(),
                folder,
            )
            for name, folder in folders.items()
        }

    def _loaded(self, variables: dict[str, str]) -> Zygote:
        """A process that has loaded TensorFlow, which reads one of these variables then."""
        key = variables.get(_ONEDNN)
        if key not in self._zygotes:
            modules = f"import {', '.join(preloaded())}"
            self._zygotes[key] = Zygote(modules, environment=variables)
        return self._zygotes[key]
