"""How long it takes until a run is at full speed: start-up, first step, steady state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from cnnbench.records.run import RunRecord
from cnnbench.records.steady_state import RunSteadyState, run_steady_state
from cnnbench.report.charts import LOWER, Axis
from cnnbench.report.document import (
    Block,
    Cell,
    Charts,
    Column,
    Section,
    Text,
    number,
    table,
    words,
)
from cnnbench.report.material import Material
from cnnbench.report.samples import Configured
from cnnbench.report.sections.family_charts import family_charts
from cnnbench.stats.steady_state import Shape

_COLUMNS = (
    Column("configuration"),
    Column("start-up, s", number=True),
    Column("import, s", number=True),
    Column("build, s", number=True),
    Column("first step, s", number=True),
    Column("warm-up steps", number=True),
    Column("steady from step", number=True),
    Column("steps in order"),
)


def section(material: Material) -> Section | None:
    """Start-up times, and whether the timed steps were steady."""
    known = [one for one in material.configured if one.good]
    series = [_series(one) for one in known]
    if not any(one.startup.values for one in known) and not any(series):
        return None
    axis = Axis(label="seconds to the end of the first step", zero=True, better=LOWER)
    charts = family_charts("start-up", axis, known, lambda one: one.startup)
    blocks: list[Block] = [
        Text(
            text="Start-up is the import of TensorFlow, the building of the run and its very "
            "first step, medians over processes. Warm-up and timed steps together are tested "
            "for a steady state: steps are counted from the first timed one, so that 1 or less "
            "means that all timed steps were steady."
        )
    ]
    unsteady = [one.name for one, found in zip(known, series, strict=True) if _unsteady(found)]
    if unsteady:
        some = "; ".join(unsteady[:5]) + (f" and {len(unsteady) - 5} more" if unsteady[5:] else "")
        blocks.append(
            Text(
                text=f"Not steady, or not from the first timed step on, in at least one "
                f"process: {some}. More --num_warmup_batches or a quieter machine would help.",
                tone="unsure",
            )
        )
    if charts:
        blocks.append(Charts(charts=charts))
    rows = [_row(one, found) for one, found in zip(known, series, strict=True)]
    blocks.append(table(_COLUMNS, rows))
    return Section(key="warmup", title="Start-up and warm-up", blocks=tuple(blocks))


def _series(one: Configured) -> list[RunSteadyState]:
    return [
        found
        for record in one.good
        if (found := run_steady_state(record)).series.shape is not Shape.TOO_SHORT
    ]


def _unsteady(series: Sequence[RunSteadyState]) -> bool:
    return any(found.unsteady_timed_steps != 0 for found in series)


def _row(one: Configured, found: Sequence[RunSteadyState]) -> tuple[Cell, ...]:
    starts = [
        run.series.start - run.warmup_steps + 1 for run in found if run.series.start is not None
    ]
    shapes = Counter(run.series.shape.value for run in found)
    latest = max(starts, default=None)
    bad = _unsteady(found)
    return (
        words(one.name),
        number(one.startup.median),
        *(_median(one, part) for part in _PARTS),
        _warmup(one.good),
        number(
            latest,
            None
            if latest is None
            else f"{min(starts)} to {latest}"
            if min(starts) < latest
            else str(latest),
        ),
        Cell(
            ", ".join(f"{count} {shape}" for shape, count in shapes.most_common())
            or "too few steps to tell",
            tone="unsure" if bad else "",
        ),
    )


_PARTS: tuple[Callable[[RunRecord], float | None], ...] = (
    lambda record: record.startup_seconds.import_,
    lambda record: record.startup_seconds.build,
    lambda record: record.startup_seconds.first_step,
)


def _median(one: Configured, part: Callable[[RunRecord], float | None]) -> Cell:
    return number(one.sample(part).median)


def _warmup(records: Sequence[RunRecord]) -> Cell:
    counts = sorted({len(record.warmup_step_seconds) for record in records})
    return number(counts[-1], " or ".join(map(str, counts)))
