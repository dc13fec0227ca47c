"""The sections of a report; a function returns None where records have nothing for it."""

from __future__ import annotations

from collections.abc import Callable

from cnnbench.report.document import Section
from cnnbench.report.results import Results
from cnnbench.report.sections import (
    allreduce,
    baseline,
    machine,
    processes,
    quantities,
    scaling,
    steps,
)

SECTIONS: tuple[Callable[[Results], Section | None], ...] = (
    processes.failures,
    baseline.baseline,
    quantities.throughput,
    scaling.scaling,
    quantities.hardware,
    quantities.memory,
    quantities.accuracy,
    quantities.warmup,
    steps.steps,
    allreduce.allreduce,
    machine.conditions,
    machine.environment,
    processes.commands,
)
"""In the order of a report."""
