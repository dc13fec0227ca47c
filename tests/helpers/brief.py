"""What a run measures beside its steps, measured for a moment: most tests read none of it."""

from __future__ import annotations

from collections.abc import Iterator


def brief() -> Iterator[tuple[object, str, object]]:
    """Owner, name and value of what has to be set; a test of a measurement itself sets nothing."""
    from cnnbench.run.driver import input_only
    from cnnbench.run.runtime import peak_flops

    yield input_only.time_whole, "__defaults__", (0.05,)
    yield peak_flops, "_BUDGET_SECONDS", 0.01
