"""The sections of a report, one module each; None where there is nothing to say."""

from __future__ import annotations

from collections.abc import Callable

from cnnbench.report.document import Section
from cnnbench.report.material import Material
from cnnbench.report.sections import (
    accuracy,
    allreduce,
    baseline,
    commands,
    conditions,
    efficiency,
    environment,
    failures,
    memory,
    scaling,
    steps,
    throughput,
    warmup,
)

SECTIONS: tuple[Callable[[Material], Section | None], ...] = (
    failures.section,
    baseline.section,
    throughput.section,
    scaling.section,
    efficiency.section,
    memory.section,
    accuracy.section,
    warmup.section,
    steps.section,
    allreduce.section,
    conditions.section,
    environment.section,
    commands.section,
)
"""In the order of a report."""
