"""The fastest configuration of each network on the machine, against measured limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from cnnbench.base.charts import HIGHER, Axis
from cnnbench.base.document import Content, Row, TableCell, Text, introduced, numeric, table
from cnnbench.base.grouping import grouped
from cnnbench.base.text.numbers import first_few, integer, percent
from cnnbench.base.text.table import natural_key
from cnnbench.judge.report.results import (
    FEWEST,
    MOST_DRAWN,
    Configured,
    ProcessValues,
    ReportSubject,
    newest,
    newest_text,
    peak,
    told_apart,
)
from cnnbench.judge.report.sections.quantities import process_chart
from cnnbench.records.roofline import Roofline

_Reached: TypeAlias = tuple[Configured, Roofline | None, tuple[Configured, ...]]
"""The fastest configuration of a network in one format, and others that may be as fast."""


_CHARTS = (
    ("Images/sec", "median images/sec", "number"),
    ("Share of the peak (MFU)", "achieved over peak FLOP/s", "percent"),
    ("Share of the bound", "images/sec over the bound's", "percent"),
)
"""Titles, axes and their formats."""


def reached(results: ReportSubject) -> list[_Reached]:
    """The fastest configuration of every network, kind of work, number format and origin."""
    # The verdict of an experiment compares its sides.
    whole = (one for one in results.configured if not (one.origin.side or one.flag("input_only")))
    alike = grouped(
        (one for one in whole if one.throughput.values),
        lambda one: (one.family, str(one.flag("precision")), one.device, one.origin),
    )
    rooflines = {_work(results.profiled[one.run.run_id]): one for one in results.rooflines}
    found: list[_Reached] = []
    for members in alike.values():
        best, *others = sorted(members, key=lambda one: -(one.throughput.median or 0.0))
        low, _ = best.throughput.interval or (0.0, 0.0)
        near = [one for one in others if low and one.throughput.interval]
        as_fast = tuple(one for one in near if (one.throughput.interval or (0.0, 0.0))[1] >= low)
        found.append((best, rooflines.pop(_work(best), None), as_fast))
    found += [(results.profiled[one.run.run_id], one, ()) for one in rooflines.values()]
    return sorted(found, key=lambda row: natural_key(row[0].name))


def _work(one: Configured) -> object:
    """Facts that determine the bound of a configuration."""
    images = next((run.batch.global_ for run in one.good if run.batch is not None), None)
    precision = str(one.flag("precision"))
    return (one.family, precision, one.device, one.devices, images, one.origin.machine)


@introduced
def reach(results: ReportSubject) -> Iterable[Content]:
    """The configuration of each network and number format with the highest median over processes.
    MFU is the share of the peak rate of matrix products, the roofline bound the images/sec if every
    layer took the least time that the machine's own rates of matrix products and of copying memory
    allow (cnnbench roofline).
    """
    rows = reached(results)
    if not rows:
        return
    if any(one.throughput.interval is None for one, _, _ in rows):
        message = f"A row without an interval has fewer than {FEWEST} processes: whether another "
        yield Text(f"{message}configuration is faster is open.", "unsure")
    yield table(_row(*row) for row in rows)
    shown = newest([one for one, _, _ in rows], MOST_DRAWN)
    which = newest_text(len(shown), len(rows))
    rows = [row for row in rows if row[0] in shown]
    _, labels = told_apart(shown)
    values = ((one.throughput, one.sample("mfu"), _of_bound(one, of)) for one, of, _ in rows)
    charts = (
        process_chart(
            f"{title}{which}",
            Axis(label=label, format=format, zero=True, better=HIGHER),
            zip(labels, column, strict=True),
            limit=1.0 if format == "percent" else None,
            limit_label="limit",
            bars=True,
        )
        for (title, label, format), column in zip(_CHARTS, zip(*values, strict=True), strict=True)
    )
    yield [chart for chart in charts if len(chart.rows) > 1]


def _of_bound(one: Configured, roofline: Roofline | None) -> ProcessValues:
    """Images/sec of each process as a share of those with every layer at its bound."""
    bound = None if roofline is None else roofline.bound_images_per_sec
    return ProcessValues(tuple(speed / bound for speed in one.throughput.values) if bound else ())


def _row(one: Configured, roofline: Roofline | None, others: tuple[Configured, ...]) -> Row:
    _, (_, *as_fast) = told_apart([one, *others])
    bound = None if roofline is None else roofline.bound_images_per_sec
    return {
        "configuration": one.name,
        "format": str(one.flag("precision")),
        "median images/sec": numeric(one.throughput.median),
        **one.throughput.ends,
        "as fast as": TableCell(first_few(as_fast, 2), kinds="prose"),
        "MFU": numeric(one.sample("mfu").median, percent),
        "peak, GFLOP/s": numeric(one.sample(peak).median, scale=1e-9),
        "roofline bound, images/sec": numeric(bound),
        "of the bound": numeric(_of_bound(one, roofline).median, percent),
        "processes": numeric(len(one.good), integer),
    }
