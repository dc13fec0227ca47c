"""Names of the conditions that are checked, for ``--quiet_conditions`` and the docs."""

from __future__ import annotations

import difflib

from cnnbench.errors import FlagError

CONDITIONS: dict[str, str] = {
    "load": "other processes use the CPUs",
    "steal": "the hypervisor gives CPU time to other machines",
    "threads": "more threads are asked for than there are CPUs to run them",
    "quota": "a control group allows less CPU time than the threads can use",
    "governor": "the clock frequency is held down, or differs from CPU to CPU",
    "thermal": "the processor slows down because of heat",
    "memory": "memory runs short, so that pages are swapped",
    "numa": "threads and memory may lie on different NUMA nodes",
    "battery": "the machine runs on battery",
    "gpu_processes": "other processes use the GPUs",
    "gpu_throttle": "GPUs slow down because of heat or power supply",
}
"""What a condition of that name says."""

ALL = "all"


def parse_quiet(text: str, flag: str = "quiet_conditions") -> frozenset[str]:
    """The names in a list with commas; "all" stands for every one.

    Raises:
      FlagError: a name that is none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name != ALL and name not in CONDITIONS:
            close = difflib.get_close_matches(name, [*CONDITIONS, ALL], n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(CONDITIONS)}"
            raise FlagError(flag, text, f"{name!r} is no condition; {hint}")
    return frozenset(CONDITIONS if ALL in names else names)
