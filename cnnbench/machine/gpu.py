"""GPUs and their driver, from TensorFlow, the driver's files, or nvidia-smi."""

from __future__ import annotations

import re
import subprocess
from typing import Any

from cnnbench.machine.host import FactGroup, Facts, Host

_SMI_FACTS = {
    "name": "gpu_names",
    "driver_version": "gpu_driver",
    "power.limit": "gpu_power_limits_watts",
    "clocks.max.sm": "gpu_max_clocks_mhz",
    "persistence_mode": "gpu_persistence_mode",
}
_SMI_SECONDS = 5


def driver_files(host: Host) -> Facts:
    """Driver version and models as the kernel module reports them."""
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", host.text("proc/driver/nvidia/version") or "")
    names = []
    for folder in sorted((host.root / "proc/driver/nvidia/gpus").glob("*")):
        text = host.text(f"proc/driver/nvidia/gpus/{folder.name}/information") or ""
        names += re.findall(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)
    return {"gpu_driver": version and version.group(0), "gpu_names": names}


def nvidia_smi(host: Host) -> Facts:
    """Names, driver and limits from nvidia-smi where the driver is loaded."""
    if host.text("proc/driver/nvidia/version") is None:
        return {}
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(_SMI_FACTS)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=_SMI_SECONDS,
        check=True,
    )
    return parse_smi(done.stdout)


def parse_smi(text: str) -> Facts:
    """Facts from the table that nvidia-smi prints: a row per GPU, no header.

    What the GPU does not tell, such as "[N/A]", is left out.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]
    columns = {
        fact: [value for value in values if not value.startswith("[")]
        for fact, values in zip(_SMI_FACTS.values(), zip(*rows, strict=True), strict=True)
    }
    driver = columns.pop("gpu_driver")
    return {**columns, "gpu_driver": driver[0] if driver else None}


def visible_to_tensorflow(host: Host) -> Facts:
    """The GPUs that the loaded TensorFlow sees; they win over those of the machine."""
    tf: Any = host.modules.get("tensorflow")
    if tf is None:
        return {}
    details = [
        tf.config.experimental.get_device_details(device)
        for device in tf.config.list_physical_devices("GPU")
    ]
    capabilities = [d["compute_capability"] for d in details if "compute_capability" in d]
    return {
        "gpu_names": [d["device_name"] for d in details if "device_name" in d],
        "gpu_compute_capabilities": [".".join(map(str, pair)) for pair in capabilities],
        "tensor_float_32": (
            bool(tf.config.experimental.tensor_float_32_execution_enabled()) if details else None
        ),
    }


GROUPS: tuple[FactGroup, ...] = (driver_files, nvidia_smi, visible_to_tensorflow)
