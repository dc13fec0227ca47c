"""What NVIDIA GPUs are doing now: clocks, throttling, processes; by NVML or nvidia-smi.

NVML is asked through the module pynvml where that is installed; it answers within
milliseconds. nvidia-smi takes up to seconds, so it has a time limit, and whoever must not
wait calls this on a thread.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cnnbench.machine.host import Host

SMI_SECONDS = 5
"""Time limit of each call of nvidia-smi."""

# Bits of the reasons why a GPU clocks lower than it could. Idleness, clocks set on
# purpose and displays are left out: they are no disturbance, or facts of their own.
_REASONS = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x20: "thermal_software",
    0x40: "thermal_hardware",
    0x80: "power_brake",
}
_THERMAL_POLICY = 1


@dataclass(frozen=True)
class GpuState:
    """One GPU at one moment; None where unknown.

    Attributes:
      index: number that the driver gives it.
      uuid: its name that never changes.
      sm_clock_mhz: clock of its multiprocessors.
      throttle_reasons: why it clocks lower than it could, see `_REASONS`.
      processes: those that compute on it: names by process number.
      thermal_seconds: time for which heat has lowered its clock since the driver started.
    """

    index: int
    uuid: str
    sm_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    processes: Mapping[int, str] | None = None
    thermal_seconds: float | None = None


def driver_loaded(host: Host) -> bool:
    """Whether there is anything to ask."""
    return host.text("proc/driver/nvidia/version") is not None


def gpu_states(host: Host) -> tuple[GpuState, ...]:
    """All GPUs of the machine, in the driver's order; none where they cannot be asked.

    Never raises; takes milliseconds by NVML, up to twice `SMI_SECONDS` by nvidia-smi.
    """
    if not driver_loaded(host):
        return ()
    with nvml(host) as module:
        if module is not None:
            with contextlib.suppress(Exception):
                return _by_nvml(host, module)
    try:
        return _by_smi()
    except Exception:  # a fact is never worth a run
        return ()


@contextlib.contextmanager
def nvml(host: Host) -> Iterator[Any]:
    """The initialised module pynvml, or None where it or its library is missing."""
    module: Any = host.modules.get("pynvml")
    try:
        if module is None:
            module = importlib.import_module("pynvml")
        module.nvmlInit()
    except Exception:  # of pynvml's own making, where the library is missing or too old
        yield None
        return
    try:
        yield module
    finally:
        with contextlib.suppress(Exception):
            module.nvmlShutdown()


def handles(module: Any) -> list[Any]:
    """NVML's handles of all GPUs, in its order."""
    return [module.nvmlDeviceGetHandleByIndex(i) for i in range(module.nvmlDeviceGetCount())]


def uuid_of(module: Any, handle: Any) -> str:
    """The UUID of a GPU, which older versions of pynvml give as bytes."""
    found = module.nvmlDeviceGetUUID(handle)
    return found.decode() if isinstance(found, bytes) else str(found)


def used(
    uuids: Sequence[str], environ: Mapping[str, str], gpu_indices: str, num_gpus: int
) -> tuple[int, ...]:
    """Which of a machine's GPUs a run uses.

    Args:
      uuids: of all GPUs, in the driver's order.
      environ: for CUDA_VISIBLE_DEVICES: numbers or (beginnings of) UUIDs; what comes
        after one that does not exist is invisible.
      gpu_indices, num_gpus: the flags; numbers among the visible ones.

    Returns:
      Numbers in the driver's order. CUDA numbers the fastest GPU first, which is the
      same order where all are alike.
    """
    visible = list(range(len(uuids)))
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is not None:
        visible = []
        for word in (piece.strip() for piece in text.split(",")):
            matching = [i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)]
            if word.isdigit() and int(word) < len(uuids):
                matching = [int(word)]
            if len(matching) != 1:
                break
            visible += matching
    wanted = [int(i) for i in gpu_indices.split(",")] if gpu_indices else range(num_gpus)
    return tuple(visible[i] for i in list(wanted)[:num_gpus] if i < len(visible))


def reasons(mask: int) -> tuple[str, ...]:
    """The names in a bit mask of throttle reasons."""
    return tuple(name for bit, name in _REASONS.items() if mask & bit)


def _by_nvml(host: Host, module: Any) -> tuple[GpuState, ...]:
    return tuple(
        GpuState(
            index=index,
            uuid=uuid_of(module, handle),
            sm_clock_mhz=_ask(lambda h=handle: module.nvmlDeviceGetClockInfo(h, 1)),
            throttle_reasons=reasons(
                _ask(lambda h=handle: module.nvmlDeviceGetCurrentClocksThrottleReasons(h)) or 0
            ),
            processes=_ask(lambda h=handle: _nvml_processes(host, module, h)),
            thermal_seconds=_ask(
                lambda h=handle: (
                    module.nvmlDeviceGetViolationStatus(h, _THERMAL_POLICY).violationTime / 1e9
                )
            ),
        )
        for index, handle in enumerate(handles(module))
    )


def _nvml_processes(host: Host, module: Any, handle: Any) -> dict[int, str]:
    running = module.nvmlDeviceGetComputeRunningProcesses(handle)
    return {one.pid: _name(host, one.pid) for one in running}


def _name(host: Host, pid: int) -> str:
    # Of another container's process only the number is known.
    return host.text(f"proc/{pid}/comm") or "unknown"


def _ask(question: Any) -> Any:
    """The answer, or None where this GPU or driver has none."""
    try:
        return question()
    except Exception:  # of pynvml's own making
        return None


def _by_smi() -> tuple[GpuState, ...]:
    gpus = _smi("--query-gpu=index,uuid,clocks.sm,clocks_throttle_reasons.active")
    running = _smi("--query-compute-apps=gpu_uuid,pid,process_name")
    processes: dict[str, dict[int, str]] = {}
    for uuid, pid, name in (row for row in running if len(row) == 3):
        # Not the whole path: it may name users and projects.
        processes.setdefault(uuid, {})[int(pid)] = name.rsplit("/", 1)[-1] or "unknown"
    return tuple(
        GpuState(
            index=int(index),
            uuid=uuid,
            sm_clock_mhz=int(clock) if clock.isdigit() else None,
            throttle_reasons=reasons(int(mask, 16)) if re.match("0x", mask) else (),
            processes=processes.get(uuid, {}),
        )
        for index, uuid, clock, mask in gpus
    )


def _smi(query: str) -> list[list[str]]:
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=SMI_SECONDS,
        check=True,
    )
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line]
