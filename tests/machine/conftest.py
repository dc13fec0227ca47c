"""A machine made of files, whose counters a test moves."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from cnnbench.machine import counters
from cnnbench.machine.cpu import Host


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

    def used(self, who: int) -> SimpleNamespace:
        own = self.own if who == resource.RUSAGE_SELF else 0.0
        return SimpleNamespace(ru_utime=own, ru_stime=0.0)

    def put(self, path: str, text: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def cpu(self, busy: float, steal: float = 0.0) -> None:
        """Seconds that all CPUs were busy, and that were stolen, since the machine started."""
        user = round((busy - 0.04) * 100)
        self.put("proc/stat", f"cpu  {user} 1 1 900 50 1 1 {round(steal * 100)} 7 7\ncpu0 1 2 3")

    def at(self, now: float, own: float, busy: float, steal: float = 0.0) -> None:
        """Sets the clock, the CPU time of this process, and that of the machine."""
        self.now, self.own = now, own
        self.cpu(busy, steal)

    def joules(self, joules: float) -> None:
        """What the only package has used, since some time."""
        self.put("sys/class/powercap/intel-rapl:0/name", "package-0")
        self.put("sys/class/powercap/intel-rapl:0/energy_uj", round(joules * 1e6))

    def load(self, average: float) -> None:
        self.put("proc/loadavg", f"{average:.2f} 0.10 0.20 1/99 4242")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(counters.resource, "getrusage", made.used)
    monkeypatch.setattr(counters.os, "sysconf", lambda name: 100)
    return made


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

    def __getattr__(self, name):
        """A function of NVML; those of a GPU get its number and, for some, the number 1."""
        if name == self.failing:
            raise OSError
        gpus = range(len(self.processes))
        running = [[SimpleNamespace(pid=pid) for pid in pids] for pids in self.processes]
        of_any = {
            "UUID": (b"GPU-aa", "GPU-bb"),
            "HandleByIndex": gpus,
            "Name": ["NVIDIA H200"] * 2,
            "MaxClockInfo": [1980] * 2,
            "PersistenceMode": (1, 0),
        }
        of_new = {
            "ClockInfo": [1755] * 2,
            "CurrentClocksThrottleReasons": [self.reasons] * 2,
            "ComputeRunningProcesses": running,
            "ViolationStatus": [SimpleNamespace(violationTime=2_500_000_000)] * 2,
            "TotalEnergyConsumption": [1500] * 2,
            "PowerManagementLimit": [700_000] * 2,
        }
        kind = name.removeprefix("nvmlDeviceGet")
        of_all = {"nvmlDeviceGetCount": len(gpus), "nvmlSystemGetDriverVersion": "570.86.15"}

        def answer(handle=None, number=1):
            assert number == 1
            self.depth += {"nvmlInit": 1, "nvmlShutdown": -1}.get(name, 0)
            if handle is None:
                return of_all.get(name)
            if kind not in of_any and handle == 1 and self.old:
                raise NVMLError
            return {**of_any, **of_new}[kind][handle]

        return answer


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()
