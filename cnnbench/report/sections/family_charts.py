"""Charts of one value per process: one for each network, a row for each configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cnnbench.report.charts import Axis, Dots, Row
from cnnbench.report.document import NONE, figure, percent
from cnnbench.report.samples import CONFIDENCE, Configured, Sample, by_family


def family_charts(
    what: str,
    axis: Axis,
    configured: Iterable[Configured],
    sample: Callable[[Configured], Sample],
    *,
    limit: float | None = None,
    limit_label: str = "",
) -> tuple[Dots, ...]:
    """A dot chart for each family of configurations that have values.

    Args:
      what: is shown, for the titles.
      axis: of the values.
      configured: all configurations.
      sample: the values of one.
      limit, limit_label: a value to mark.
    """
    known = [one for one in configured if sample(one).values]
    return tuple(
        _chart(
            f"{family}: {what}",
            axis,
            [(one.variant, sample(one)) for one in members],
            limit,
            limit_label,
        )
        for family, members in by_family(known).items()
    )


def _chart(
    title: str, axis: Axis, samples: list[tuple[str, Sample]], limit: float | None, limit_label: str
) -> Dots:
    rows = tuple(_row(label, sample, axis) for label, sample in samples)
    note = "A dot is a process, the stroke their median"
    banded = any(row.low is not None for row in rows)
    note += f", the band its {100 * CONFIDENCE:.0f} % interval." if banded else "."
    return Dots(title=title, x=axis, rows=rows, limit=limit, limit_label=limit_label, note=note)


def _row(label: str, sample: Sample, axis: Axis) -> Row:
    low, high = sample.interval or (None, None)
    return Row(
        label=label,
        values=tuple(
            (value, f"{label}, process {index}: {_figure(value, axis)}")
            for index, value in enumerate(sample.values, start=1)
        ),
        centre=sample.median,
        low=low,
        high=high,
        text=NONE if sample.median is None else _figure(sample.median, axis),
    )


def _figure(value: float, axis: Axis) -> str:
    if axis.format == "percent":
        return percent(value)
    if axis.format == "bytes":
        return f"{value / 2**20:,.0f} MiB"
    return figure(value)
