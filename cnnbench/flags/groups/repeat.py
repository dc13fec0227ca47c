"""Flags of ``cnnbench run`` that start several processes. They are not part of ``Params``."""

from __future__ import annotations

from dataclasses import dataclass

from cnnbench.flags.declare import flag


@dataclass(frozen=True, kw_only=True)
class RepeatFlags:
    """Flags with which ``cnnbench run`` measures the same run in several new processes."""

    repeats: int | None = flag(
        None,
        "Measure the run in this many new processes, one after the other, and print their mean "
        "speed, for 3 and more processes with a 95 % interval.",
        minimum=1,
        maximum=1000,
    )
    seconds: float | None = flag(
        None,
        "With --repeats: seconds of timed steps in each process. The number of steps is chosen "
        "after a short first process, whose result is not used.",
        above=0,
        maximum=86400,
    )
    results: str | None = flag(
        None,
        "With --repeats: folder for records and logs. If not given, run-DATE-TIME.",
        path="folder",
    )
