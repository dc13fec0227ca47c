"""What GPUs are doing, from a made-up NVML and a made-up nvidia-smi."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from cnnbench.machine import nvidia
from cnnbench.machine.host import Host


class NVMLError(Exception):
    """As pynvml has one."""


class FakeNvml:
    """Two GPUs; the second is old and has few answers."""

    def __init__(self) -> None:
        self.depth = 0

    def nvmlInit(self):
        self.depth += 1

    def nvmlShutdown(self):
        self.depth -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetUUID(self, handle):
        return b"GPU-aa" if handle == 0 else "GPU-bb"

    def nvmlDeviceGetClockInfo(self, handle, kind):
        assert kind == 1
        return self._new(handle, 1755)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._new(handle, 0x21)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self._new(handle, [SimpleNamespace(pid=42), SimpleNamespace(pid=43)])

    def nvmlDeviceGetViolationStatus(self, handle, policy):
        assert policy == 1
        return self._new(handle, SimpleNamespace(violationTime=2_500_000_000))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self._new(handle, 1500)

    def _new(self, handle, answer):
        if handle == 1:
            raise NVMLError
        return answer


@pytest.fixture
def make_host(tmp_path):
    def make(modules, driver=True, environ=None):
        if driver:
            file = tmp_path / "proc/driver/nvidia/version"
            file.parent.mkdir(parents=True)
            file.write_text("NVRM version: 570.1")
        return Host(root=tmp_path, environ=environ or {}, modules=modules)

    return make


def no_smi(*arguments, **named):
    raise FileNotFoundError


def test_nvml(make_host, monkeypatch):
    monkeypatch.setattr(nvidia.subprocess, "run", no_smi)
    module = FakeNvml()
    host = make_host({"pynvml": module})
    (host.root / "proc/42").mkdir()
    (host.root / "proc/42/comm").write_text("python\n")
    first, second = nvidia.gpu_states(host)
    assert first == nvidia.GpuState(
        0, "GPU-aa", 1755, ("thermal_software",), {42: "python", 43: "unknown"}, 2.5
    )
    assert second == nvidia.GpuState(1, "GPU-bb")
    assert module.depth == 0


def answers(monkeypatch, tables, timeouts):
    def run(command, **named):
        timeouts.append(named["timeout"])
        (text,) = (table for word, table in tables.items() if command[1].startswith(word))
        return SimpleNamespace(stdout=text)

    monkeypatch.setattr(nvidia.subprocess, "run", run)


def test_smi_where_there_is_no_module(make_host, monkeypatch):
    timeouts = []
    tables = {
        "--query-gpu": "0, GPU-aa, 1755, 0x0000000000000044\n1, GPU-bb, [N/A], [N/A]\n",
        "--query-compute-apps": "GPU-aa, 42, /home/someone/secret/python\nGPU-bb, 43, Xorg\n",
    }
    answers(monkeypatch, tables, timeouts)
    monkeypatch.setattr(nvidia.importlib, "import_module", no_smi)
    assert nvidia.gpu_states(make_host({})) == (
        nvidia.GpuState(0, "GPU-aa", 1755, ("power_cap", "thermal_hardware"), {42: "python"}),
        nvidia.GpuState(1, "GPU-bb", None, (), {43: "Xorg"}),
    )
    assert timeouts == [nvidia.SMI_SECONDS] * 2


def test_library_that_cannot_be_initialised_falls_back_to_smi(make_host, monkeypatch):
    class Broken(FakeNvml):
        def nvmlInit(self):
            raise NVMLError

    answers(monkeypatch, {"--query-gpu": "0, GPU-aa, 5, 0x0\n", "--query-c": ""}, [])
    (gpu,) = nvidia.gpu_states(make_host({"pynvml": Broken()}))
    assert gpu == nvidia.GpuState(0, "GPU-aa", 5, (), {})


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 5), ValueError()],
    ids=type,
)
def test_nobody_answers(make_host, monkeypatch, error):
    def run(*arguments, **named):
        raise error

    monkeypatch.setattr(nvidia.subprocess, "run", run)
    monkeypatch.setattr(nvidia.importlib, "import_module", no_smi)
    assert nvidia.gpu_states(make_host({})) == ()


def test_nobody_is_asked_without_a_driver(make_host, monkeypatch):
    monkeypatch.setattr(nvidia.subprocess, "run", lambda *a, **k: pytest.fail("asked"))
    assert nvidia.gpu_states(make_host({"pynvml": FakeNvml()}, driver=False)) == ()


UUIDS = ["GPU-aa", "GPU-ab", "GPU-cc", "GPU-dd"]


@pytest.mark.parametrize(
    ("visible", "indices", "count", "expected"),
    [
        (None, "", 1, (0,)),
        (None, "", 3, (0, 1, 2)),
        (None, "3,1", 2, (3, 1)),
        ("2,3", "", 1, (2,)),
        ("2,3", "1,0", 2, (3, 2)),
        ("GPU-cc,GPU-aa", "", 2, (2, 0)),
        ("GPU-c", "", 1, (2,)),
        ("GPU-a", "", 1, ()),  # stands for two
        ("1,9,2", "", 3, (1,)),  # 9 hides what follows
        ("", "", 1, ()),
        ("-1", "", 1, ()),
        (None, "", 9, (0, 1, 2, 3)),
    ],
)
def test_gpus_of_a_run(visible, indices, count, expected):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert nvidia.used(UUIDS, environ, indices, count) == expected
