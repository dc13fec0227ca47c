"""Reads properties and the current state of NVIDIA GPUs through NVML.

NVML provides everything within milliseconds, through the module pynvml (nvidia-ml-py, part of the
extra ``and-cuda``). If pynvml is not installed, models and driver version come from the driver's
files.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cnnbench.machine.cpu import FactGroup, Facts, Host, MemoryCapacity

# NVML's bits for the reasons why the clock of a GPU is reduced. Reasons that do not disturb a
# measurement, such as an idle GPU, are not listed.
_REASONS = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x20: "thermal_software",
    0x40: "thermal_hardware",
    0x80: "power_brake",
}

THROTTLE_REASONS = tuple(_REASONS.values())
"""Reasons for a reduced clock, as they appear in records."""

# Values of NVML's enumerations, such as NVML_CLOCK_SM.
_SM_CLOCK = 1
_THERMAL_POLICY = 1


EMULATED = "EMULATED_GPU"
"""Name of emulated GPUs in NVML and in TensorFlow. They compute on the host's CPUs."""

EMULATED_NOTICE = "the GPUs are emulated on the host's CPUs: times are no measurements"
"""The notice that a run prints if GPUs are emulated."""


@contextlib.contextmanager
def opened_nvml(host: Host) -> Iterator[Any]:
    """Context manager: the initialised module pynvml; None if it or the GPU driver is missing."""
    try:
        if host.modules is sys.modules:
            # If NVIDIA's library is missing, this call fails at once; pynvml would take much longer
            # to fail.
            ctypes.CDLL("libnvidia-ml.so.1")
            # Waits if another thread is importing pynvml.
            module = importlib.import_module("pynvml")
        else:
            module = host.modules["pynvml"]
        module.nvmlInit()
    except Exception:  # The driver is missing or too old.
        module = None
    try:
        yield module
    finally:
        if module is not None:
            with contextlib.suppress(Exception):
                module.nvmlShutdown()


def all_gpu_handles(module: Any) -> list[Any]:
    """Handles of all GPUs of the machine, in the order of NVML."""
    return [module.nvmlDeviceGetHandleByIndex(i) for i in range(module.nvmlDeviceGetCount())]


def gpu_handles_of_run(
    module: Any, host: Host, cards: Sequence[int] | None = None
) -> dict[int, Any]:
    """NVML handles of the GPUs that a run uses, by GPU number; see `gpus_of_run`."""
    all_handles = all_gpu_handles(module)
    uuids = [_decode_text(module.nvmlDeviceGetUUID(handle)) for handle in all_handles]
    return {i: all_handles[i] for i in gpus_of_run(uuids, host.environ, cards)}


def _decode_text(value: str | bytes) -> str:
    # Older versions of pynvml return bytes.
    return value.decode() if isinstance(value, bytes) else str(value)


def query_nvml(question: Callable[..., Any], *arguments: Any) -> Any:
    """Calls an NVML function. Returns None if the GPU or the driver does not support the query."""
    try:
        return question(*arguments)
    # pynvml may be missing, so its class NVMLError cannot be named here.
    except Exception:
        return None


def driver_file_facts(host: Host) -> Facts:
    """Reads the driver version and the GPU models from the files of the NVIDIA kernel module."""
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", host.read_text("proc/driver/nvidia/version") or "")
    names = []
    for folder in sorted((host.root / "proc/driver/nvidia/gpus").glob("*")):
        text = host.read_text(f"proc/driver/nvidia/gpus/{folder.name}/information") or ""
        names += re.findall(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE)
    return {"gpu_driver": version and version.group(0), "gpu_names": names}


def nvml_facts(host: Host) -> Facts:
    """Reads from NVML the names of the GPUs, the driver version, and the limits of power and
    clocks.

    A list contains only the GPUs that report a value.
    """
    with opened_nvml(host) as module:
        if module is None:
            return {}
        all_handles = all_gpu_handles(module)
        driver = query_nvml(module.nvmlSystemGetDriverVersion)

        def query_each_gpu(question: Callable[..., Any], *arguments: Any) -> list[Any]:
            answers = [query_nvml(question, handle, *arguments) for handle in all_handles]
            return [answer for answer in answers if answer is not None]

        limits = query_each_gpu(module.nvmlDeviceGetPowerManagementLimit)
        persistence = query_each_gpu(module.nvmlDeviceGetPersistenceMode)
        return {
            **_name_facts(
                [_decode_text(name) for name in query_each_gpu(module.nvmlDeviceGetName)]
            ),
            "gpu_driver": None if driver is None else _decode_text(driver),
            "gpu_power_limits_watts": [f"{milliwatts / 1000:.2f}" for milliwatts in limits],
            "gpu_max_clocks_mhz": [
                str(clock) for clock in query_each_gpu(module.nvmlDeviceGetMaxClockInfo, _SM_CLOCK)
            ],
            "gpu_persistence_mode": ["Enabled" if on else "Disabled" for on in persistence],
        }


def least_free_gpu_memory(
    cards: Sequence[int] | None = None, per_card: int = 1, host: Host | None = None
) -> MemoryCapacity | None:
    """Finds the GPU with the least free memory among the GPUs of a run. Returns the size of its
    memory and how much of it is free.

    Returns None without NVML. See `gpus_of_run`.

    If cards are divided into `per_card` GPUs, the memory is divided, too.
    """
    host = Host() if host is None else host
    with opened_nvml(host) as module:
        mine = {} if module is None else gpu_handles_of_run(module, host, cards)
        memory_infos = [
            query_nvml(module.nvmlDeviceGetMemoryInfo, handle) for handle in mine.values()
        ]
        sizes = [
            MemoryCapacity(int(info.total) // per_card, int(info.free) // per_card)
            for info in memory_infos
            if info is not None
        ]
    return min(sizes, key=lambda memory: memory.available, default=None)


def tensorflow_gpu_facts(host: Host) -> Facts:
    """Reads properties of the GPUs that TensorFlow uses, which replace properties from NVML. Empty
    if this process has not imported TensorFlow.
    """
    tf: Any = host.modules.get("tensorflow")
    if tf is None:
        return {}
    details = [
        tf.config.experimental.get_device_details(device)
        for device in tf.config.list_physical_devices("GPU")
    ]
    capabilities = [d["compute_capability"] for d in details if "compute_capability" in d]
    return {
        **_name_facts([d["device_name"] for d in details if "device_name" in d]),
        "gpu_compute_capabilities": [".".join(map(str, pair)) for pair in capabilities],
        "tensor_float_32": allows_tensor_float_32(host) if details else None,
    }


def allows_tensor_float_32(host: Host) -> bool:
    """Whether float32 products on GPUs use TF32, if the hardware supports it.

    TensorFlow enables TF32 by default. For NVIDIA's libraries, the environment variable takes
    precedence.
    """
    tf: Any = host.modules.get("tensorflow")
    enabled = tf is None or bool(tf.config.experimental.tensor_float_32_execution_enabled())
    return enabled and host.environ.get("NVIDIA_TF32_OVERRIDE") != "0"


def _name_facts(names: list[str]) -> Facts:
    return {"gpu_names": names, "emulated_gpus": True if EMULATED in names else None}


GROUPS: tuple[FactGroup, ...] = (driver_file_facts, nvml_facts, tensorflow_gpu_facts)


@dataclass(frozen=True)
class GpuState:
    """The state of one GPU at one time. Unknown values are None.

    Attributes:
      sm_clock_mhz: clock of its multiprocessors.
      throttle_reasons: reasons for a reduced clock; see `THROTTLE_REASONS`.
      processes: names of the processes that compute on this GPU, by process ID.
      thermal_seconds: time for which the GPU was throttled because of heat, since the driver
        started.
    """

    index: int
    uuid: str
    sm_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    processes: Mapping[int, str] | None = None
    thermal_seconds: float | None = None

    @property
    def other_processes(self) -> dict[int, str]:
        """Names of all processes on this GPU except this process, by process ID."""
        return {pid: name for pid, name in (self.processes or {}).items() if pid != os.getpid()}


def gpu_states(host: Host) -> tuple[GpuState, ...]:
    """Reads the states of all GPUs of the machine, in the driver's order; empty without NVML.

    The function never raises an exception.
    """
    with opened_nvml(host) as module:
        all_handles = None if module is None else query_nvml(all_gpu_handles, module)
        states = [
            query_nvml(_read_state, host, module, index, handle)
            for index, handle in enumerate(all_handles or ())
        ]
    return tuple(states) if None not in states else ()


def _read_state(host: Host, module: Any, index: int, handle: Any) -> GpuState:
    heat = query_nvml(module.nvmlDeviceGetViolationStatus, handle, _THERMAL_POLICY)
    mask = query_nvml(module.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    running = query_nvml(module.nvmlDeviceGetComputeRunningProcesses, handle)
    processes = None
    if running is not None:
        # In other containers, processes have no names that this process can read.
        pids = (process.pid for process in running)
        processes = {pid: host.read_text(f"proc/{pid}/comm") or "unknown" for pid in pids}
    return GpuState(
        index=index,
        uuid=_decode_text(module.nvmlDeviceGetUUID(handle)),
        sm_clock_mhz=query_nvml(module.nvmlDeviceGetClockInfo, handle, _SM_CLOCK),
        throttle_reasons=tuple(name for bit, name in _REASONS.items() if mask & bit),
        processes=processes,
        thermal_seconds=None if heat is None else heat.violationTime / 1e9,
    )


def visible_gpus(host: Host) -> list[str]:
    """The GPUs that a process may use now, as entries of CUDA_VISIBLE_DEVICES.

    CUDA ignores all entries after an empty or negative entry.
    """
    visible = host.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        entries = (entry.strip() for entry in visible.split(","))
        return [*itertools.takewhile(lambda entry: entry[:1] not in ("", "-"), entries)]
    return [str(number) for number in range(count_gpus(host))]


def visible_devices(host: Host, index: int, count: int, per_card: int = 1) -> str | None:
    """Divides the visible GPUs among several processes. Returns the value of CUDA_VISIBLE_DEVICES
    with the `count` GPUs of process number `index`.

    Every visible card is divided into `per_card` GPUs, so several processes may share a card. None
    if there are too few GPUs.
    """
    first, end = index * count // per_card, math.ceil((index + 1) * count / per_card)
    visible = visible_gpus(host)
    return ",".join(visible[first:end]) if end <= len(visible) else None


def count_gpus(host: Host) -> int:
    """Number of GPUs of the machine, from NVML or, without it, from the driver's files."""
    with opened_nvml(host) as module:
        if module is not None:
            return len(all_gpu_handles(module))
    names = driver_file_facts(host)["gpu_names"]
    return len(names) if isinstance(names, list) else 0


def gpus_of_run(
    uuids: Sequence[str], environ: Mapping[str, str], cards: Sequence[int] | None
) -> tuple[int, ...]:
    """Numbers of the GPUs that a run uses, in the driver's order.

    CUDA gives the fastest GPU the first number. If all GPUs are equal, CUDA's order is the driver's
    order.

    Args:
      uuids: UUIDs of all GPUs, in the driver's order.
      environ: environment variables. CUDA_VISIBLE_DEVICES contains numbers, UUIDs or beginnings of
        UUIDs. GPUs after an unknown entry are invisible.
      cards: indices among the visible GPUs; None for all.
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
    wanted = range(len(visible)) if cards is None else cards
    return tuple(visible[i] for i in wanted if i < len(visible))


class GpuStates(NamedTuple):
    """The states of all GPUs of the machine, and the numbers of the GPUs that a run uses."""

    states: tuple[GpuState, ...] = ()
    mine: tuple[int, ...] = ()

    def without_processes(self, peers: Collection[int]) -> GpuStates:
        """Returns a copy without the processes whose PIDs are in `peers`.

        These are the other processes of the same run.
        """
        states = list(self.states)
        for i in self.mine:
            running = states[i].processes
            if running is not None:
                left = {pid: name for pid, name in running.items() if pid not in peers}
                states[i] = replace(states[i], processes=left)
        return self._replace(states=tuple(states))

    @property
    def states_of_run_gpus(self) -> tuple[GpuState, ...]:
        """The states of the GPUs that the run uses."""
        return tuple(self.states[i] for i in self.mine)

    @property
    def free_indices(self) -> tuple[int, ...]:
        """Numbers of all GPUs on which no other processes run."""
        return tuple(state.index for state in self.states if not state.other_processes)

    def facts(self) -> dict[str, list[str] | list[int]]:
        """Returns the clocks of the run's GPUs and, if there are any, throttle reasons and other
        processes.
        """
        values_by_fact: dict[str, list[str] | list[int]] = {
            "gpu_clocks_mhz": [
                s.sm_clock_mhz for s in self.states_of_run_gpus if s.sm_clock_mhz is not None
            ],
            "gpu_throttle_reasons": [
                f"{s.index}: {', '.join(s.throttle_reasons)}"
                for s in self.states_of_run_gpus
                if s.throttle_reasons
            ],
            "gpu_processes": [
                f"{s.index}: {processes_text(s.other_processes)}"
                for s in self.states_of_run_gpus
                if s.other_processes
            ],
        }
        return {name: values for name, values in values_by_fact.items() if values}


def new_processes(before: GpuState | None, after: GpuState) -> dict[int, str]:
    """Finds the processes, except this process, that started on a GPU between two snapshots of the
    state of the GPU. Returns the names of the processes by PID.

    Inside a container, the driver uses a different PID for this process. Therefore, if this
    process's PID is missing and exactly one process is new, the new process is assumed to be this
    process.
    """
    known = {} if before is None else before.processes or {}
    new = {pid: name for pid, name in after.other_processes.items() if pid not in known}
    unrecognised = os.getpid() not in (after.processes or {})
    return {} if unrecognised and len(new) == 1 else new


def processes_text(processes: Mapping[int, str]) -> str:
    """Formats a list of processes, such as "4242 (python), 4711 (Xorg)"."""
    return ", ".join(f"{pid} ({name})" for pid, name in sorted(processes.items()))
