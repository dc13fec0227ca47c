"""The sections of a report, and the whole of it.

A function returns None where the records have nothing for its section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cnnbench.report.document import Report, Section
from cnnbench.report.renderers import wording
from cnnbench.report.results import Results, time_text
from cnnbench.report.sections import (
    allreduce,
    baseline,
    machine,
    processes,
    quantities,
    scaling,
    steps,
)
from cnnbench.report.sections.machine import disturbed, fact_text
from cnnbench.text.numbers import count, counted, first_few, number
from cnnbench.version import __version__

SECTIONS: tuple[Callable[[Results], Section | None], ...] = (
    processes.failures,
    baseline.baseline,
    quantities.THROUGHPUT.section,
    scaling.scaling,
    quantities.HARDWARE.section,
    quantities.MEMORY.section,
    quantities.ACCURACY.section,
    quantities.WARMUP.section,
    steps.steps,
    allreduce.allreduce,
    machine.conditions,
    machine.environment,
    processes.commands,
)
"""In the order of a report."""

_MACHINE = ("gpu_names", "cpu_model")
_MOST = 3


def build(results: Results, title: str = "") -> Report:
    """Makes all sections that the records have something for.

    Args:
      results: the subject of the report.
      title: of the page; one that names the models if empty.
    """
    sections = [found for make in SECTIONS if (found := make(results)) is not None]
    return Report(
        title=title or _title(results),
        subtitle=_subtitle(results),
        highlights=tuple(_highlights(results)),
        sections=tuple(sections),
    )


def _title(results: Results) -> str:
    models = list(dict.fromkeys(one.model for one in results.configured))
    if not models:
        return "All-reduce of gradients" if results.allreduces else "No results"
    return f"Speed of {first_few(models, _MOST, ', ')}"


def _subtitle(results: Results) -> str:
    starts = sorted(
        [time_text(run.started_at) for run in results.runs]
        + [time_text(one.started_at) for one in results.allreduces]
    )
    when = ""
    if starts:
        first, last = starts[0][:16], starts[-1][:16]
        when = f", measured {first}" + (f" to {last}" if last != first else "") + " UTC"
    return f"Measured with cnnbench; report of version {__version__}{when}"


def _highlights(results: Results) -> Iterable[tuple[str, str]]:
    runs = results.runs
    bad = sum(run.status != "ok" for run in runs)
    measured = []
    if runs:
        measured.append(count(len(results.configured), "configuration", "configurations"))
        measured.append(count(len(runs), "process", "processes"))
    if bad:
        measured.append(f"{bad} without a result")
    if results.allreduces:
        measured.append(count(len(results.allreduces), "all-reduce run", "all-reduce runs"))
    if measured:
        yield "measured", ", ".join(measured)
    environments = [one.environment for _, one in results.processes]
    machines = [values for name in _MACHINE if (values := _values(environments, name))]
    if machines:
        yield "machine", machines[0]
    marked, checked = disturbed(results)
    if marked:
        processes = count(checked, "process", "processes")
        yield "conditions", f"{marked} of {processes} {'was' if marked == 1 else 'were'} disturbed"
    elif checked:
        yield "conditions", "nothing disturbed the measurements"
    versions = _values(environments, "tensorflow_version")
    if versions:
        yield "TensorFlow", versions
    speeds = [(one.throughput.median, one.name) for one in results.configured]
    known = [(speed, name) for speed, name in speeds if speed is not None]
    if known:
        speed, name = max(known, key=lambda pair: pair[0])
        yield "highest median", f"{number(speed)} images/sec ({name})"
    comparison = results.comparison
    if comparison is not None:
        ending = wording.ending(comparison)
        yield "against the baseline", f"{ending}: {wording.outcome(comparison)}"
    if results.skipped:
        defects = sum(one.defect for one in results.skipped)
        yield "skipped", f"{count(len(results.skipped), 'file', 'files')}, {defects} of them faulty"


def _values(environments: list[Mapping[str, Any]], name: str) -> str:
    found = (facts[name] for facts in environments if name in facts)
    texts = (counted(one) if isinstance(one, list) else fact_text(one) for one in found)
    return first_few([text for text in dict.fromkeys(texts) if text], _MOST)
