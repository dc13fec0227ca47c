"""GPU facts from the driver's files, nvidia-smi and TensorFlow."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from cnnbench.machine import gpu
from cnnbench.machine.host import Host, gather

OLD = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n"
TABLE = (
    "NVIDIA H200, 570.86.15, 700.00, 1980, Enabled\nNVIDIA H200, 570.86.15, [N/A], 1980, Enabled\n"
)


def host(root, tf=None):
    return Host(root=root, environ={}, modules={} if tf is None else {"tensorflow": tf})


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
    facts = gpu.driver_files(host(tmp_path))
    assert facts == {"gpu_driver": version, "gpu_names": ["Tesla T4", "Tesla T4"]}


def test_smi_table():
    assert gpu.parse_smi(TABLE) == {
        "gpu_names": ["NVIDIA H200", "NVIDIA H200"],
        "gpu_driver": "570.86.15",
        "gpu_power_limits_watts": ["700.00"],
        "gpu_max_clocks_mhz": ["1980", "1980"],
        "gpu_persistence_mode": ["Enabled", "Enabled"],
    }


def test_smi_is_asked_only_where_a_driver_is_loaded(tmp_path, monkeypatch):
    asked = []

    def run(command, **kwargs):
        asked.append(kwargs["timeout"])
        return SimpleNamespace(stdout=TABLE)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    assert gpu.nvidia_smi(host(tmp_path)) == {}
    assert asked == []
    driver(tmp_path)
    assert gpu.nvidia_smi(host(tmp_path))["gpu_driver"] == "570.86.15"
    assert asked == [5]


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 5)], ids=type
)
def test_smi_that_is_missing_or_hangs_costs_nothing_else(tmp_path, monkeypatch, error):
    def run(command, **kwargs):
        raise error

    monkeypatch.setattr(gpu.subprocess, "run", run)
    driver(tmp_path, models=["Tesla T4"])
    facts = gather(gpu.GROUPS, host(tmp_path))
    assert facts == {"gpu_driver": "550.54.15", "gpu_names": ["Tesla T4"]}


def fake_tensorflow(devices):
    experimental = SimpleNamespace(
        get_device_details=devices.__getitem__, tensor_float_32_execution_enabled=lambda: True
    )
    return SimpleNamespace(
        config=SimpleNamespace(
            experimental=experimental, list_physical_devices=lambda kind: list(devices)
        )
    )


def test_what_tensorflow_sees_wins(tmp_path):
    driver(tmp_path, models=["NVIDIA H200", "NVIDIA H200"])
    tf = fake_tensorflow({"g0": {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}})
    facts = gather((gpu.driver_files, gpu.visible_to_tensorflow), host(tmp_path, tf))
    assert facts["gpu_names"] == ["NVIDIA H200"]
    assert facts["gpu_compute_capabilities"] == ["9.0"]
    assert facts["tensor_float_32"] is True


def test_no_gpu_at_all(tmp_path):
    assert gather(gpu.GROUPS, host(tmp_path, fake_tensorflow({}))) == {}
