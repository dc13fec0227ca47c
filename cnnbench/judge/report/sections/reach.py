"""The fastest configuration of each network on the machine, against measured limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cnnbench.base.charts import HIGHER, Axis, Rows
from cnnbench.base.text.numbers import first_few, integer, number, percent
from cnnbench.base.text.table import natural_key
from cnnbench.judge.report.document import Content, Row, TableCell, Text, interval, numeric, table
from cnnbench.judge.report.results import (
    CONFIDENCE,
    FEWEST,
    Configured,
    ProcessValues,
    ReportSubject,
    told_apart,
)
from cnnbench.judge.report.sections.quantities import process_key, process_row
from cnnbench.records.roofline import Roofline


@dataclass(frozen=True)
class Reached:
    """The fastest configuration of a network in one format, and others that may be as fast."""

    one: Configured
    roofline: Roofline | None = None
    as_fast: tuple[Configured, ...] = ()

    @property
    def mfu(self) -> ProcessValues:
        """Shares of the peak."""
        return self.one.sample(self.one.mfu)

    @property
    def bound(self) -> float | None:
        """Images/sec if every layer took the time of its bound."""
        return None if self.roofline is None else self.roofline.bound_images_per_sec

    @property
    def of_bound(self) -> ProcessValues:
        """Shares of `bound`, one per process."""
        bound = self.bound
        return ProcessValues(
            tuple(speed / bound for speed in self.one.throughput.values) if bound else ()
        )


def reached(results: ReportSubject) -> list[Reached]:
    """The fastest configuration of every network, kind of work, number format and origin."""
    alike: dict[object, list[Configured]] = {}
    for one in results.configured:
        # The verdict of an experiment compares its sides.
        if one.throughput.values and not one.origin.side and not one.flag("input_only"):
            key = (one.family, str(one.flag("precision")), one.device, one.origin)
            alike.setdefault(key, []).append(one)
    rooflines = {_work(results.profiled[one.run_id]): one for one in results.rooflines}
    found = []
    for members in alike.values():
        best, *others = sorted(members, key=lambda one: -(one.throughput.median or 0.0))
        low, _ = best.throughput.interval or (0.0, 0.0)
        near = [one for one in others if low and one.throughput.interval]
        as_fast = tuple(one for one in near if (one.throughput.interval or (0.0, 0.0))[1] >= low)
        found.append(Reached(best, rooflines.pop(_work(best), None), as_fast))
    found += [Reached(results.profiled[one.run_id], one) for one in rooflines.values()]
    return sorted(found, key=lambda one: natural_key(one.one.name))


def _work(one: Configured) -> object:
    """Facts that determine the bound of a configuration."""
    images = next((run.batch.global_ for run in one.good if run.batch is not None), None)
    precision = str(one.flag("precision"))
    return (one.family, precision, one.device, one.devices, images, one.origin.machine)


def reach(results: ReportSubject) -> Iterable[Content]:
    """Throughput, share of the peak and share of the roofline of all networks and formats."""
    rows = reached(results)
    if not rows:
        return
    yield (
        "The configuration of each network and number format with the highest median over "
        "processes. MFU is the share of the peak rate of matrix products, the roofline bound the "
        "images/sec if every layer took the least time that the machine's own rates of matrix "
        "products and of copying memory allow (cnnbench roofline)."
    )
    if any(one.one.throughput.interval is None for one in rows):
        message = f"A row without an interval has fewer than {FEWEST} processes: whether another "
        yield Text(f"{message}configuration is faster is open.", "unsure")
    yield table(map(_row, rows))
    _, labels = told_apart([one.one for one in rows])
    charts = (
        _chart("Images/sec", rows, labels, lambda one: one.one.throughput, _SPEED, number),
        _chart("Share of the peak (MFU)", rows, labels, lambda one: one.mfu, _OF_PEAK, percent),
        _chart("Share of the bound", rows, labels, lambda one: one.of_bound, _OF_BOUND, percent),
    )
    yield [one for one in charts if len(one.rows) > 1]


_SPEED = Axis(label="median images/sec", zero=True, better=HIGHER)
_OF_PEAK = Axis(label="achieved over peak FLOP/s", format="percent", zero=True, better=HIGHER)
_OF_BOUND = Axis(label="images/sec over the bound's", format="percent", zero=True, better=HIGHER)


def _chart(
    title: str,
    rows: Sequence[Reached],
    labels: Sequence[str],
    values: Callable[[Reached], ProcessValues],
    axis: Axis,
    text: Callable[[float | None], str],
) -> Rows:
    drawn = tuple(
        process_row(found, label, text)
        for one, label in zip(rows, labels, strict=True)
        if (found := values(one)).values
    )
    limit = 1.0 if axis.format == "percent" else None
    key = process_key(drawn)
    return Rows(
        title=title, x=axis, rows=drawn, limit=limit, limit_label="limit", note=key, bars=True
    )


def _row(found: Reached) -> Row:
    one = found.one
    _, (_, *as_fast) = told_apart([one, *found.as_fast])
    return {
        "configuration": one.name,
        "format": str(one.flag("precision")),
        "median images/sec": numeric(one.throughput.median),
        f"{100 * CONFIDENCE:.0f} % interval": interval(one.throughput.interval),
        "range": interval(one.throughput.range),
        "as fast as": TableCell(first_few(as_fast, 2), kinds="prose"),
        "MFU": numeric(found.mfu.median, percent),
        "peak, GFLOP/s": numeric(one.sample(one.peak).median, scale=1e-9),
        "roofline bound, images/sec": numeric(found.bound),
        "of the bound": numeric(found.of_bound.median, percent),
        "processes": numeric(len(one.good), integer),
    }
