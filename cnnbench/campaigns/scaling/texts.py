"""The results of a scaling measurement as text, as an answer for reports, and as a chart."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.charts import HIGHER, Axis, ChartSeries, LineChart
from cnnbench.base.document import Answer, Row, make_table, numeric_cell
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.text import count_text, integer, number, percent
from cnnbench.campaigns.processes.answers import store_answer
from cnnbench.campaigns.processes.results_dir import ResultsFolder
from cnnbench.campaigns.scaling.points import STRONG, ScalingPoint

_WEAK_BATCH = "every worker has the same batch"
_MOST_NAMED = 3


def table_text(points: Sequence[ScalingPoint]) -> str:
    """The results of a scaling measurement as text: a title and a table."""
    return f"{_about(points)}\n{sections_to_text([[make_table(map(_point_cells, points))]])}"


def _about(points: Sequence[ScalingPoint]) -> str:
    images = sorted({point.images_per_step for point in points})
    batch = "all jobs have {} images per step" if points[0].kind == STRONG else _WEAK_BATCH
    return f"{points[0].kind} scaling: {batch.format(images[0])}, efficiency against one worker"


def store_points(folder: ResultsFolder, title: str, points: Sequence[ScalingPoint]) -> None:
    """Stores the results of a scaling measurement in its journal, for reports. The answer is about
    the largest job.
    """
    *others, largest = map(_point_text, points)
    answer = Answer(title, largest, "", tuple(reversed(others[-_MOST_NAMED:])))
    store_answer(folder, answer, _about(points), map(_point_cells, points))


def _point_text(point: ScalingPoint) -> str:
    workers = count_text(point.workers, "worker", "workers")
    text = f"{workers}: {number(point.images_per_sec)} images/sec, efficiency "
    text += percent(point.efficiency)
    if point.efficiency_low is None or point.efficiency_high is None:
        return text
    return f"{text} ({percent(point.efficiency_low)} to {percent(point.efficiency_high)})"


def _point_cells(point: ScalingPoint) -> Row:
    low, high = point.efficiency_low, point.efficiency_high
    span = f"{percent(low)} to {percent(high)}"
    return {
        "workers": numeric_cell(point.workers, integer),
        "towers": numeric_cell(point.towers, integer),
        "median images/sec": numeric_cell(point.images_per_sec),
        "mean step, ms": numeric_cell(point.step_seconds, scale=1e3),
        "efficiency": numeric_cell(point.efficiency, percent),
        "of single runs": numeric_cell(point.efficiency_low, span),
        "communication": numeric_cell(point.communication, percent),
        "predicted images/sec": numeric_cell(point.predicted_images_per_sec),
        "predicted efficiency": numeric_cell(point.predicted_efficiency, percent),
    }


def scaling_chart(points: Sequence[ScalingPoint], title: str) -> LineChart:
    """Draws images/sec by number of workers: measured, predicted, and without communication."""
    first = points[0]
    ideal = first.images_per_sec / first.efficiency / first.workers
    curves = (
        ("measured", [(point.workers, point.images_per_sec) for point in points]),
        ("cost model", [(p.workers, p.predicted_images_per_sec) for p in points]),
        ("no exchange", [(point.workers, ideal * point.workers) for point in points]),
    )
    series = tuple(
        ChartSeries(
            name=name,
            points=tuple((float(x), y) for x, y in curve if y is not None),
            marks=name == "measured",
            reference=name == "no exchange",
        )
        for name, curve in curves
        if any(y is not None for _, y in curve)
    )
    return LineChart(
        title=title,
        x=Axis(label="workers", log=True, base=2),
        y=Axis(label="median images/sec", zero=True, better=HIGHER),
        series=series,
    )
