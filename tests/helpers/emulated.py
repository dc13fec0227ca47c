"""cnnbench on emulated GPUs: real processes, forked from one that has loaded the emulator.

`tests/gpu_emulator/README.md` describes the emulator and its settings.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from forked import LOADED, Forked, Server

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


def outcome(process: Forked, folder: Path, timeout: float = TIMEOUT) -> Outcome:
    """How a command ends that `EmulatedGpus.start` has started; it must within so many seconds."""
    status, late = process.end(timeout)
    out, err = ((folder / name).read_text() for name in ("out", "err"))
    assert not late, err
    return Outcome(status, out, err, folder)


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
        self._environment = {
            **{GUARDED: "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": None},
            _ONEDNN: "0",  # with which CPUs have the kernels of the emulated GPUs
        }
        self._servers: dict[str | None, Server] = {}

    def close(self) -> None:
        """Ends the processes that fork."""
        for server in self._servers.values():
            server.close()

    def __call__(
        self, *argv: str, timeout: float = TIMEOUT, status: int | None = 0, **how: Any
    ) -> Outcome:
        """Runs a command to its end, within so many seconds and with this exit status; see `start`.

        Args:
          status: None for any.
        """
        ended = outcome(*self.start(*argv, **how), timeout)
        assert status in (None, ended.status), ended.err
        return ended

    def start(
        self,
        *argv: str,
        gpus: int = 2,
        environment: Mapping[str, str | None] | None = None,
        record: bool = True,
        before: str = "",
        **settings: object,
    ) -> tuple[Forked, Path]:
        """Starts a command; the process, and its working directory.

        Args:
          argv: behind `cnnbench`.
          gpus: how many there are; 0 for a machine without any.
          environment: further variables; those that are None are removed.
          record: whether the command takes --result_json.
          before: Python that runs first.
          settings: of the emulator, as "kernel_us".
        """
        folder = self._folder / str(next(self._count))
        own = {name: folder / name for name in ("trace", "state")}
        for path in own.values():
            path.mkdir(parents=True)
        given: dict[str, str | None] = {**self._environment, **(environment or {})}
        given |= build.environment(gpus, **{**own, **settings})
        words: Sequence[str] = (*argv, "--result_json=record.json") if record else argv
        code, logs = f"{_BEGIN}{before}{_RUN}", (folder / "out", folder / "err")
        return Forked(code, words, *logs, folder, given, server=self._loaded(given)), folder

    def _loaded(self, environment: Mapping[str, str | None]) -> Server:
        """A process that has loaded TensorFlow, which reads one of these variables then."""
        key = environment.get(_ONEDNN)
        if key not in self._servers:
            self._servers[key] = Server(LOADED, environment=environment, key=f"GPUs {key}")
        return self._servers[key]
