"""From what was found to the whole report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cnnbench.report.counted import counted
from cnnbench.report.document import Report, figure
from cnnbench.report.material import Material, time_text
from cnnbench.report.renderers import wording as said
from cnnbench.report.sections import SECTIONS
from cnnbench.report.sections.conditions import disturbed
from cnnbench.report.sections.environment import text
from cnnbench.text.numbers import count
from cnnbench.version import __version__

_MACHINE = ("gpu_names", "cpu_model")
_MANY = 3


def build(material: Material, title: str = "") -> Report:
    """Writes all sections that have something to say.

    Args:
      material: see there.
      title: of the page; one that names the models if empty.
    """
    sections = [found for make in SECTIONS if (found := make(material)) is not None]
    return Report(
        title=title or _title(material),
        subtitle=_subtitle(material),
        figures=tuple(_figures(material)),
        sections=tuple(sections),
    )


def _title(material: Material) -> str:
    models = list(dict.fromkeys(one.model for one in material.configured))
    if not models:
        return "All-reduce of gradients" if material.allreduces else "No results"
    named = ", ".join(models[:_MANY])
    more = len(models) - _MANY
    return f"Speed of {named}" + (f" and {more} more" if more > 0 else "")


def _subtitle(material: Material) -> str:
    starts = sorted(
        [time_text(run.started_at) for run in material.runs]
        + [time_text(one.started_at) for one in material.allreduces]
    )
    when = ""
    if starts:
        first, last = starts[0][:16], starts[-1][:16]
        when = f", measured {first}" + (f" to {last}" if last != first else "") + " UTC"
    return f"Measured with cnnbench; report of version {__version__}{when}"


def _figures(material: Material) -> Iterable[tuple[str, str]]:
    runs = material.runs
    bad = sum(run.status != "ok" for run in runs)
    measured = []
    if runs:
        measured.append(count(len(material.configured), "configuration", "configurations"))
        measured.append(count(len(runs), "process", "processes"))
    if bad:
        measured.append(f"{bad} without a result")
    if material.allreduces:
        measured.append(count(len(material.allreduces), "all-reduce run", "all-reduce runs"))
    if measured:
        yield "measured", ", ".join(measured)
    environments = [run.environment for run in runs] + [
        one.environment for one in material.allreduces
    ]
    for name in _MACHINE:
        machines = _values(environments, name)
        if machines:
            yield "machine", machines
            break
    marked, looked = disturbed(material)
    if looked:
        remarks = f"{marked} of {count(looked, 'process', 'processes')} "
        remarks += f"{'was' if marked == 1 else 'were'} disturbed"
        yield "conditions", remarks if marked else "nothing disturbed the measurements"
    versions = _values(environments, "tensorflow_version")
    if versions:
        yield "TensorFlow", versions
    fastest = max(
        (one for one in material.configured if one.throughput.median is not None),
        key=lambda one: one.throughput.median or 0.0,
        default=None,
    )
    if fastest is not None and fastest.throughput.median is not None:
        yield "fastest", f"{figure(fastest.throughput.median)} images/sec ({fastest.name})"
    comparison = material.comparison
    if comparison is not None:
        told = f"{said.ENDINGS[comparison.exit_code]}: {said.outcome(comparison)}"
        yield "against the baseline", told
    if material.skipped:
        defects = sum(one.defect for one in material.skipped)
        found = count(len(material.skipped), "file", "files")
        yield "skipped", f"{found}, {defects} of them faulty"


def _fact(value: Any) -> str:
    return counted(value) if isinstance(value, list) else text(value)


def _values(environments: list[Any], name: str) -> str:
    seen = dict.fromkeys(_fact(facts[name]) for facts in environments if name in facts)
    values = [value for value in seen if value]
    return "; ".join(values[:_MANY]) + (
        f" and {len(values) - _MANY} more" if len(values) > _MANY else ""
    )
