"""GPU facts and readings from the driver's files, NVML and TensorFlow."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from cnnbench.machine import gpu
from cnnbench.machine.cpu import Host, MemoryCapacity, read_facts

OLD = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n"


def host(root, tf=None, nvml=None):
    return Host(root=root, environ={}, modules={"tensorflow": tf, "pynvml": nvml})


def driver(root, version=OLD, models=()):
    folder = root / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(version)
    for index, model in enumerate(models):
        device = folder / "gpus" / f"0000:0{index}:00.0"
        device.mkdir(parents=True)
        (device / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 20\n")


@pytest.mark.parametrize(("text", "version"), [(OLD, "550.54.15"), (OPEN, "560.35.03")])
def test_driver_files(tmp_path, text, version):
    driver(tmp_path, text, ["Tesla T4", "Tesla T4"])
    facts = gpu.driver_file_facts(host(tmp_path))
    assert facts == {"gpu_driver": version, "gpu_names": ["Tesla T4", "Tesla T4"]}


def test_facts_from_nvml_win_over_the_driver_s_files(tmp_path, nvml):
    driver(tmp_path, OLD, ["Tesla T4"])
    assert read_facts(gpu.GROUPS, host(tmp_path, nvml=nvml)) == {
        "gpu_names": ["NVIDIA H200", "NVIDIA H200"],
        "gpu_driver": "570.86.15",
        "gpu_power_limits_watts": ["700.00"],
        "gpu_max_clocks_mhz": ["1980", "1980"],
        "gpu_persistence_mode": ["Enabled", "Disabled"],
    }
    assert nvml.depth == 0


def test_states(tmp_path, nvml):
    (tmp_path / "proc/42").mkdir(parents=True)
    (tmp_path / "proc/42/comm").write_text("python\n")
    first, second = gpu.gpu_states(host(tmp_path, nvml=nvml))
    assert first == gpu.GpuState(
        0, "GPU-aa", 1755, ("thermal_software",), {42: "python", 43: "unknown"}, 2.5
    )
    assert second == gpu.GpuState(1, "GPU-bb")
    assert nvml.depth == 0


def test_other_processes_are_those_that_are_not_this_one():
    assert gpu.GpuState(0, "a").other_processes == {}
    own = {os.getpid(): "python", os.getpid() + 1: "train"}
    assert gpu.GpuState(0, "a", processes=own).other_processes == {os.getpid() + 1: "train"}


def test_gpus_without_a_variable_are_those_of_nvml_or_of_the_driver(tmp_path, nvml):
    assert gpu.visible_gpus(host(tmp_path, nvml=nvml)) == ["0", "1"]
    assert gpu.count_gpus(host(tmp_path)) == 0
    driver(tmp_path, models=["Tesla T4"] * 3)
    assert gpu.visible_gpus(host(tmp_path)) == ["0", "1", "2"]
    assert gpu.count_gpus(host(tmp_path, nvml=nvml)) == 2


def test_memory_of_the_fullest_gpu_of_a_run(tmp_path, nvml, monkeypatch):
    free = [60, 40]

    class WithMemory:
        """NVML that knows how much memory is free; None where it fails."""

        def __getattr__(self, name):
            return getattr(nvml, name)

        def nvmlDeviceGetMemoryInfo(self, handle):
            if free[handle] is None:
                raise OSError
            return SimpleNamespace(total=100, free=free[handle])

    here = host(tmp_path, nvml=WithMemory())
    assert gpu.least_free_gpu_memory(host=here) == MemoryCapacity(100, 40)
    assert gpu.least_free_gpu_memory([0], host=here) == MemoryCapacity(100, 60)
    assert gpu.least_free_gpu_memory(per_card=3, host=here) == MemoryCapacity(33, 13)
    free[1] = None
    assert gpu.least_free_gpu_memory(host=here) == MemoryCapacity(100, 60)
    assert gpu.least_free_gpu_memory(host=host(tmp_path)) is None
    monkeypatch.setattr(gpu, "Host", lambda: here)
    assert gpu.least_free_gpu_memory() == MemoryCapacity(100, 60)


@pytest.mark.parametrize("failing", [None, "nvmlInit", "nvmlDeviceGetCount"])
def test_without_nvml_the_driver_s_files_remain(tmp_path, nvml, failing):
    nvml.failing = failing
    driver(tmp_path, models=["Tesla T4"])
    here = host(tmp_path, nvml=None if failing is None else nvml)
    assert gpu.gpu_states(here) == ()
    assert read_facts(gpu.GROUPS, here) == {"gpu_driver": "550.54.15", "gpu_names": ["Tesla T4"]}


def test_threads_wait_for_a_module_that_one_of_them_loads(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(
        "import time\nnvmlInit = nvmlShutdown = lambda: None\ntime.sleep(0.2)\ncount = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(gpu.ctypes, "CDLL", str)

    def count(_: int) -> int:
        with gpu.opened_nvml(Host()) as module:
            return module.count

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(count, range(2))) == [3, 3]
    del sys.modules["pynvml"]


def test_an_exception_in_the_block_is_the_caller_s(tmp_path, nvml):
    with pytest.raises(RuntimeError), gpu.opened_nvml(host(tmp_path, nvml=nvml)):
        raise RuntimeError
    assert nvml.depth == 0


UUIDS = ["GPU-aa", "GPU-ab", "GPU-cc", "GPU-dd"]


@pytest.mark.parametrize(
    ("visible", "cards", "expected"),
    [
        (None, (0,), (0,)),
        (None, (3, 1), (3, 1)),
        ("2,3", (0,), (2,)),
        ("2,3", (1, 0), (3, 2)),
        ("GPU-cc,GPU-aa", (0, 1), (2, 0)),
        ("GPU-c", (0,), (2,)),
        ("GPU-a", (0,), ()),  # stands for two
        ("1,9,2", (0, 1, 2), (1,)),  # 9 hides what follows
        ("", (0,), ()),
        ("-1", (0,), ()),
        (None, range(9), (0, 1, 2, 3)),
        ("2,0", None, (2, 0)),
    ],
)
def test_gpus_of_a_run(visible, cards, expected):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu.gpus_of_run(UUIDS, environ, cards) == expected


@pytest.mark.parametrize(
    ("count", "per_card", "shares"),
    [
        (1, 1, ["a", "b", "c", None]),
        (2, 1, ["a,b", None]),
        (4, 2, ["a,b", None]),
        (2, 2, ["a", "b", "c", None]),
        (1, 2, ["a", "a", "b", "b", "c", "c", None]),
    ],
)
def test_processes_share_the_parts_of_cards(tmp_path, count, per_card, shares):
    here = Host(root=tmp_path, environ={"CUDA_VISIBLE_DEVICES": "a, b,c"}, modules={})
    found = [gpu.visible_devices(here, index, count, per_card) for index in range(len(shares))]
    assert found == shares


@pytest.mark.parametrize(
    ("value", "entries"),
    [("2, 0", ["2", "0"]), ("-1", []), ("0,-1,1", ["0"]), ("0,,1", ["0"]), ("", [])],
)
def test_entries_that_cuda_ignores_are_no_gpus(tmp_path, value, entries):
    here = Host(root=tmp_path, environ={"CUDA_VISIBLE_DEVICES": value}, modules={})
    assert gpu.visible_gpus(here) == entries


H200 = {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}


@pytest.mark.parametrize(
    ("devices", "facts"),
    [
        ((), {}),
        ((H200,), {"gpu_names": ["NVIDIA H200"], "gpu_compute_capabilities": ["9.0"]}),
        (({"device_name": gpu.EMULATED},), {"gpu_names": [gpu.EMULATED], "emulated_gpus": True}),
    ],
)
def test_what_tensorflow_sees_wins(tmp_path, devices, facts):
    experimental = SimpleNamespace(
        get_device_details=devices.__getitem__, tensor_float_32_execution_enabled=lambda: True
    )
    config = SimpleNamespace(
        experimental=experimental, list_physical_devices=lambda kind: list(range(len(devices)))
    )
    here = host(tmp_path, SimpleNamespace(config=config))
    if devices:
        driver(tmp_path, models=["Tesla T4", "Tesla T4"])
        facts = {"gpu_driver": "550.54.15", "tensor_float_32": True, **facts}
    assert read_facts(gpu.GROUPS, here) == facts


def test_processes_of_the_job_are_left_out_on_gpus_of_the_run():
    busy = {7: "a", 8: "b"}
    states = [gpu.GpuState(i, f"GPU-{i}", 1000, (), busy, None) for i in range(2)]
    states.append(gpu.GpuState(2, "GPU-2", 1000, (), None, None))
    found = gpu.GpuStates(tuple(states), (1, 2)).without_processes([8])
    assert [state.processes for state in found.states] == [busy, {7: "a"}, None]


def test_processes_are_listed_by_their_numbers():
    assert gpu.processes_text({4711: "Xorg", 42: "python"}) == "42 (python), 4711 (Xorg)"
    assert gpu.processes_text({}) == ""
