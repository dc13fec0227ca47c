"""What of the GPUs' state matters to a run: its own GPUs, and the processes of others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cnnbench.machine.nvidia import GpuState, used


@dataclass(frozen=True)
class GpuView:
    """The GPUs of a machine as one run sees them.

    Attributes:
      states: of all GPUs, in the driver's order.
      mine: numbers of those the run uses.
    """

    states: tuple[GpuState, ...] = ()
    mine: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        states: Sequence[GpuState],
        environ: Mapping[str, str],
        gpu_indices: str,
        num_gpus: int,
    ) -> GpuView:
        """The view of a run with these flags; see `cnnbench.machine.nvidia.used`."""
        uuids = [state.uuid for state in states]
        return cls(tuple(states), used(uuids, environ, gpu_indices, num_gpus))

    @property
    def own(self) -> tuple[GpuState, ...]:
        """The states of the run's own GPUs."""
        return tuple(self.states[i] for i in self.mine)

    @property
    def free(self) -> tuple[int, ...]:
        """Numbers of the GPUs on which nobody else computes."""
        return tuple(state.index for state in self.states if not foreign(state))

    def facts(self) -> dict[str, list[str] | list[int]]:
        """Clocks, throttle reasons and other processes of the run's GPUs, where there are any."""
        found: dict[str, list[str] | list[int]] = {
            "gpu_clocks_mhz": [s.sm_clock_mhz for s in self.own if s.sm_clock_mhz is not None],
            "gpu_throttle_reasons": [
                f"{s.index}: {', '.join(s.throttle_reasons)}"
                for s in self.own
                if s.throttle_reasons
            ],
            "gpu_processes": [f"{s.index}: {named(foreign(s))}" for s in self.own if foreign(s)],
        }
        return {name: values for name, values in found.items() if values}


def foreign(state: GpuState) -> dict[int, str]:
    """The processes on a GPU other than this one: names by number."""
    return {pid: name for pid, name in (state.processes or {}).items() if pid != os.getpid()}


def newcomers(before: GpuState | None, after: GpuState) -> dict[int, str]:
    """The processes that appeared on a GPU between two states, this one excluded.

    Inside a container the driver knows this process by another number. So where its own
    number is missing and one process is new, that one is taken for this.
    """
    known = {} if before is None else before.processes or {}
    new = {pid: name for pid, name in foreign(after).items() if pid not in known}
    unrecognised = os.getpid() not in (after.processes or {})
    return {} if unrecognised and len(new) == 1 else new


def named(processes: Mapping[int, str]) -> str:
    """Processes in words: "4242 (python), 4711 (Xorg)"."""
    return ", ".join(f"{pid} ({name})" for pid, name in sorted(processes.items()))
