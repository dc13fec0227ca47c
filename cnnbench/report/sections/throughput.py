"""How fast each configuration trains."""

from __future__ import annotations

from cnnbench.records.run import RunRecord
from cnnbench.report.charts import HIGHER, Axis
from cnnbench.report.document import (
    Block,
    Cell,
    Charts,
    Column,
    Section,
    Text,
    number,
    percent,
    span,
    table,
    words,
)
from cnnbench.report.material import Material
from cnnbench.report.samples import CONFIDENCE, Configured, Sample
from cnnbench.report.sections.family_charts import family_charts
from cnnbench.stats.descriptive import median

_COLUMNS = (
    Column("configuration"),
    Column("mode"),
    Column("devices", number=True),
    Column("images per step", number=True),
    Column("images/sec", number=True),
    Column(f"{100 * CONFIDENCE:.0f} % interval", number=True),
    Column("range", number=True),
    Column("spread", number=True),
    Column("step, ms", number=True),
    Column("waits for input", number=True),
    Column("processes", number=True),
)


def section(material: Material) -> Section | None:
    """Images per second by model, mode and devices, with the interval over processes."""
    measured = [one for one in material.configured if one.throughput.values]
    if not measured:
        return None
    axis = Axis(label="images/sec", zero=True, better=HIGHER)
    charts = family_charts("throughput", axis, measured, lambda one: one.throughput)
    blocks: list[Block] = [
        Text(
            text="One value per process: images per step over the median step time, of an "
            "evaluating run the median of its evaluations. Images of all devices of the job "
            "together. The interval is of the median over processes, and needs six of them; "
            "the range is from the slowest process to the fastest, the spread its width as a "
            "share of the median."
        ),
        Charts(charts=charts),
        table(_COLUMNS, [_row(one) for one in measured]),
    ]
    return Section(key="throughput", title="Throughput", blocks=tuple(blocks))


def _cells(sample: Sample) -> tuple[Cell, Cell, Cell, Cell]:
    """Median, interval, range and spread."""
    interval, ends, spread = sample.interval, sample.range, sample.spread
    return (
        number(sample.median),
        number(None) if interval is None else number(interval[1] - interval[0], span(*interval)),
        number(None)
        if ends is None or ends[0] == ends[1]
        else number(ends[1] - ends[0], span(*ends)),
        number(spread, None if spread is None else percent(spread)),
    )


def _row(one: Configured) -> tuple[Cell, ...]:
    placed = next((record for record in one.good if record.placement is not None), None)
    batch = next((record.batch for record in one.good if record.batch is not None), None)
    steps = one.sample(median_step)
    waits = one.sample(lambda record: record.summary().input_wait_fraction)
    wait = waits.median
    mode = placed.placement.variable_update if placed and placed.placement else ""
    kind = "inference" if one.flag("forward_only") else "evaluation" if one.flag("eval") else mode
    return (
        words(one.name),
        words(kind),
        number(one.devices, f"{one.devices} {one.device}") if one.devices else number(None),
        number(
            None if batch is None else batch.global_, None if batch is None else str(batch.global_)
        ),
        *_cells(one.throughput),
        number(None if steps.median is None else 1000 * steps.median),
        number(wait, None if wait is None else percent(wait)),
        number(len(one.good), str(len(one.good))),
    )


def median_step(record: RunRecord) -> float | None:
    """Seconds of the median timed step."""
    return median(record.step_seconds) if record.step_seconds else None
