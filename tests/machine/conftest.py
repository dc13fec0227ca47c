"""A machine made of files, whose counters a test moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from cnnbench.machine import sampling
from cnnbench.machine.host import Host


@dataclass
class Machine:
    """Files of /proc and /sys, a clock, and the CPU time of this process."""

    root: Path
    now: float = 100.0
    own: float = 0.0
    environ: dict[str, str] = field(default_factory=dict)
    modules: dict[str, object] = field(default_factory=lambda: {"pynvml": None})

    @property
    def host(self) -> Host:
        return Host(root=self.root, environ=self.environ, modules=self.modules)

    def clock(self) -> float:
        return self.now

    def put(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cpu(self, busy: float, steal: float = 0.0) -> None:
        """Seconds that all CPUs were busy, and that were stolen, since the machine started."""
        user = round((busy - 0.04) * 100)
        self.put("proc/stat", f"cpu  {user} 1 1 900 50 1 1 {round(steal * 100)} 7 7\ncpu0 1 2 3")

    def load(self, average: float) -> None:
        self.put("proc/loadavg", f"{average:.2f} 0.10 0.20 1/99 4242")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(sampling, "_own_seconds", lambda: made.own)
    monkeypatch.setattr(sampling.os, "sysconf", lambda name: 100)
    return made


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """An empty machine."""
    return Host(root=tmp_path, environ={}, modules={"pynvml": None})


class NVMLError(Exception):
    """As pynvml has one."""


class FakeNvml:
    """Two GPUs; the second is old and has few answers.

    Attributes:
      failing: the name of a function that fails.
      old: whether the second GPU is old.
      reasons: bits of those why the clocks are low.
      processes: PIDs of those on each GPU.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.failing = ""
        self.old = True
        self.reasons = 0x21
        self.processes: tuple[tuple[int, ...], ...] = ((42, 43), ())

    def _may_fail(self, name):
        if name == self.failing:
            raise OSError

    def nvmlInit(self):
        self._may_fail("nvmlInit")
        self.depth += 1

    def nvmlShutdown(self):
        self.depth -= 1

    def nvmlDeviceGetCount(self):
        self._may_fail("nvmlDeviceGetCount")
        return len(self.processes)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return b"GPU-aa" if handle == 0 else "GPU-bb"

    def nvmlDeviceGetClockInfo(self, handle, kind):
        assert kind == 1
        return self._new(handle, 1755)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._new(handle, self.reasons)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self._new(handle, [SimpleNamespace(pid=pid) for pid in self.processes[handle]])

    def nvmlDeviceGetViolationStatus(self, handle, policy):
        assert policy == 1
        return self._new(handle, SimpleNamespace(violationTime=2_500_000_000))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self._new(handle, 1500)

    def nvmlSystemGetDriverVersion(self):
        return "570.86.15"

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetPowerManagementLimit(self, handle):
        return self._new(handle, 700_000)

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        assert kind == 1
        return 1980

    def nvmlDeviceGetPersistenceMode(self, handle):
        return 1 - handle

    def _new(self, handle, answer):
        if handle == 1 and self.old:
            raise NVMLError
        return answer


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()
