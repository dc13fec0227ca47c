"""Fastest configuration of each network on the machine, against measured limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cnnbench.base.charts import HIGHER, Axis, Rows
from cnnbench.base.text.numbers import integer, number, percent
from cnnbench.base.text.table import natural_key
from cnnbench.judge.report.document import (
    Charts,
    Section,
    TableColumn,
    Text,
    interval,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import CONFIDENCE, Configured, ProcessValues, ReportSubject
from cnnbench.judge.report.sections.quantities import process_row
from cnnbench.records.roofline import Roofline


@dataclass(frozen=True)
class Reached:
    """The fastest configuration of a network in one number format.

    Attributes:
      one: the configuration.
      roofline: of the same work on the same kind of machine; None if there is none.
    """

    one: Configured
    roofline: Roofline | None = None

    @property
    def label(self) -> str:
        """Network, kind of work and number format."""
        return f"{self.one.family}, {self.one.flag('precision')}"

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
        """Shares of that, one per process."""
        bound = self.bound
        return ProcessValues(
            tuple(speed / bound for speed in self.one.throughput.values) if bound else ()
        )


def reached(results: ReportSubject) -> list[Reached]:
    """The fastest configuration of every network, kind of work, number format and origin.

    A roofline of other work than these, such as another batch size, stands for itself.
    """
    best: dict[object, Configured] = {}
    for one in results.configured:
        speed = one.throughput.median
        # Sides of an experiment are for its verdict.
        if speed is None or one.origin.side or one.flag("input_only"):
            continue
        key = (one.family, str(one.flag("precision")), one.device, one.origin)
        if key not in best or speed > (best[key].throughput.median or 0.0):
            best[key] = one
    rooflines = {_work(results.profiled[one.run_id]): one for one in results.rooflines}
    found = [Reached(one, rooflines.get(_work(one))) for one in best.values()]
    covered = {_work(one) for one in best.values()}
    found += [
        Reached(results.profiled[one.run_id], one)
        for work, one in rooflines.items()
        if work not in covered
    ]
    return sorted(found, key=lambda one: natural_key(f"{one.label}, {one.one.name}"))


def _work(one: Configured) -> object:
    """Facts that decide the bound of a configuration."""
    images = next((run.batch.global_ for run in one.good if run.batch is not None), None)
    precision = str(one.flag("precision"))
    return (one.family, precision, one.device, one.devices, images, one.origin.machine)


def reach(results: ReportSubject) -> Section | None:
    """Throughput, share of the peak and share of the roofline, where a limit is known."""
    rows = reached(results)
    if not any(one.mfu.values or one.of_bound.values for one in rows):
        return None
    text = (
        "The fastest configuration of each network and number format, medians over processes, "
        "against what the machine can do: MFU is the share of the peak rate of matrix products, "
        "the roofline bound the images/sec if every layer took the least time that the machine's "
        "own rates of matrix products and of copying memory allow (cnnbench roofline). Above "
        "100 % of it where values are still in a cache, which is faster than memory."
    )
    charts = (
        _chart("images/sec", rows, lambda one: one.one.throughput, _SPEED, number),
        _chart("share of the peak (MFU)", rows, lambda one: one.mfu, _OF_PEAK, percent, 1.0),
        _chart("share of the bound", rows, lambda one: one.of_bound, _OF_BOUND, percent, 1.0),
    )
    drawn = tuple(one for one in charts if len(one.rows) > 1)
    title = "What the machine reaches"
    return section("reach", title, Text(text=text), Charts(charts=drawn), table(_COLUMNS, rows))


_SPEED = Axis(label="median images/sec", log=True, better=HIGHER)
_OF_PEAK = Axis(label="achieved over peak FLOP/s", format="percent", zero=True, better=HIGHER)
_OF_BOUND = Axis(label="images/sec over the bound's", format="percent", zero=True, better=HIGHER)


def _chart(
    title: str,
    rows: Sequence[Reached],
    values: Callable[[Reached], ProcessValues],
    axis: Axis,
    text: Callable[[float | None], str],
    limit: float | None = None,
) -> Rows:
    labels = [one.label for one in rows]
    drawn = tuple(
        process_row(
            found,
            one.label if labels.count(one.label) == 1 else one.one.name,
            one.one.name,
            text,
        )
        for one in rows
        if (found := values(one)).values
    )
    return Rows(title=title, x=axis, rows=drawn, limit=limit, limit_label="limit")


_COLUMNS: tuple[TableColumn[Reached], ...] = (
    TableColumn("configuration", lambda one: one.one.name),
    TableColumn("format", lambda one: str(one.one.flag("precision"))),
    numeric("median images/sec", lambda one: one.one.throughput.median),
    interval(f"{100 * CONFIDENCE:.0f} % interval", lambda one: one.one.throughput.interval),
    interval("range", lambda one: one.one.throughput.range),
    numeric("MFU", lambda one: one.mfu.median, percent),
    numeric("peak, GFLOP/s", lambda one: one.one.sample(one.one.peak).median, scale=1e-9),
    numeric("roofline bound, images/sec", lambda one: one.bound),
    numeric("of the bound", lambda one: one.of_bound.median, percent),
    numeric(
        "images per step",
        lambda one: one.one.sample(lambda run: run.batch.global_ if run.batch else None).median,
        integer,
    ),
    numeric("processes", lambda one: len(one.one.good), integer),
)
