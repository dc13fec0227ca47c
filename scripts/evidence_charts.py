"""Draws the charts of docs/evidence from the tables there.

Usage: scripts/evidence_charts

Each chart becomes an SVG file in docs/evidence. Draw the charts again after a change of a table.
The exit status is 0, or 2 for wrong use.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from command_line import run_script

from cnnbench.base.charts import (
    Axis,
    Chart,
    ChartSeries,
    DistributionRow,
    LineChart,
    RowChart,
    legend_text,
)
from cnnbench.base.charts.draw import render_chart_file
from cnnbench.base.text import compact_number, format_interval, percent
from cnnbench.errors import ExitCode, UsageError

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "evidence"

Row: TypeAlias = Mapping[str, str]
"""A row of a table: the text of each cell by the heading of its column."""


def read_table(name: str) -> list[Row]:
    """Reads the rows of docs/evidence/NAME.csv."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def _share(row: Row, heading: str) -> float:
    return float(row[heading]) / 100


# Ratios of speeds.


def _processor(row: Row) -> str:
    """The generation of a CPU, such as "Zen 4", without its family."""
    return row["CPU"].partition(" ")[2]


def _tone(low: float, high: float) -> str:
    if low > 1:
        return "good"
    return "bad" if high < 1 else "unsure"


def _ratio_row(label: str, row: Row) -> DistributionRow:
    ratio, low, high = (
        float(row[name]) for name in ("A / B", "low (95 % interval)", "high (95 % interval)")
    )
    return DistributionRow(
        label=label,
        centre=ratio,
        low=low,
        high=high,
        text=f"{ratio:.3f}",
        hint=f"{label}: {ratio:.3f} ({format_interval(low, high)})",
        tone=_tone(low, high),
    )


def _ratio_chart(title: str, rows: Sequence[DistributionRow]) -> Chart:
    return RowChart(
        title=title,
        x=Axis(label="ratio of images/sec"),
        rows=tuple(rows),
        limit=(1.0, "equal speed"),
        note=legend_text(rows, centre="is the ratio", band="is its 95 % interval"),
    )


def _of_speeds(*peers: str) -> list[Row]:
    """The ratios of the images/sec of cnnbench and of other programs."""
    return [
        row
        for row in read_table("speed")
        if row["quotient of"] == "images/sec"
        and row["B"] in peers
        and row["A"] in ("cnnbench", "cnnbench with TF_ENABLE_ONEDNN_OPTS=1")
    ]


def _speed() -> list[Chart]:
    rows = [
        _ratio_row(f"{row['network']}, {_processor(row)}", row)
        for row in _of_speeds("tf_cnn_benchmarks")
    ]
    return [_ratio_chart("Training speed: cnnbench / tf_cnn_benchmarks", rows)]


def _peers() -> list[Chart]:
    rows = []
    for row in _of_speeds("PyTorch", "Keras 3 (train_step)"):
        precision = row["network"].rpartition(", ")[2]
        kernels = ", oneDNN" if "ONEDNN" in row["A"] else ""
        rows.append(_ratio_row(f"{row['B']}: {precision}{kernels}, {_processor(row)}", row))
    return [_ratio_chart("Speed of resnet50: cnnbench / another framework", rows)]


def _convolutions() -> list[Chart]:
    table = read_table("conv_avx2")
    rows = []
    for heading in table[0]:
        name, _, unit = heading.partition(" (ratio of CPU times")
        if unit:
            ratios = [float(row[heading]) for row in table if row[heading]]
            first, middle, third = statistics.quantiles(ratios, n=4, method="inclusive")
            low, high = min(ratios), max(ratios)
            rows.append(
                DistributionRow(
                    label=name,
                    centre=middle,
                    low=low,
                    high=high,
                    box=(first, third),
                    text=compact_number(middle, 3),
                    hint=f"{len(ratios)} shapes, {format_interval(low, high)}",
                )
            )
    return [
        RowChart(
            title="Gradients of convolutions with stride 1, AVX2",
            x=Axis(label="CPU time of TensorFlow / CPU time of the algorithm", log=True),
            rows=tuple(rows),
            limit=(1.0, "TensorFlow"),
            note="Box: quartiles of the shapes; whiskers: all shapes; stroke and number: median.",
        )
    ]


# Shares of comparisons.


def _bars(
    title: str, label: str, shares: Mapping[str, float], limit: tuple[float, str] | None = None
) -> Chart:
    return RowChart(
        title=title,
        x=Axis(label=label, format="percent", zero=True),
        rows=tuple(
            DistributionRow(label=name, centre=share, text=percent(share))
            for name, share in shares.items()
        ),
        limit=limit,
        bars=True,
    )


_CALLED = "B is called slower (% of experiments)"
_SLOWDOWN = "true slowdown of B (%)"


def _rules() -> list[Chart]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in read_table("rules"):
        if row["noise"] == "normal, 3 %":
            point = (_share(row, _SLOWDOWN), _share(row, _CALLED))
            points.setdefault(row["rule"], []).append(point)
    slowdowns = tuple(slowdown for slowdown, _ in points["cnnbench ab"])
    return [
        LineChart(
            title="How often B is called slower, noise of 3 %",
            x=Axis(label="true slowdown of B", format="percent", ticks=slowdowns),
            y=Axis(label="experiments that call B slower", format="percent", zero=True),
            series=tuple(
                ChartSeries(
                    name=rule,
                    points=tuple(of_rule),
                    hints=tuple(percent(share) for _, share in of_rule),
                )
                for rule, of_rule in points.items()
            ),
            note="Values at a true slowdown of 0 % are false positives.",
        )
    ]


def _drift() -> list[Chart]:
    titles = {
        "drift of 20 %": "Equal programs, the machine becomes 20 % slower",
        "two regimes, x 0.59": "Equal programs, the machine has two states",
    }
    table = read_table("rules")
    return [
        _bars(
            title,
            "experiments that call B slower",
            {row["rule"]: _share(row, _CALLED) for row in table if row["noise"] == noise},
        )
        for noise, title in titles.items()
    ]


def _verdicts() -> list[Chart]:
    table = read_table("verdicts")
    noise = next(iter(table[0]))
    equal, slower = "equal: slower (% of experiments)", "5 % slower: slower (%)"
    return [
        _bars(
            "A and B are equal",
            "experiments that call B slower",
            {row[noise]: _share(row, equal) for row in table},
            (0.02, "2 %, the limit"),
        ),
        _bars(
            "B is 5 % slower",
            "experiments that call B slower",
            {row[noise]: _share(row, slower) for row in table},
        ),
    ]


def _history() -> list[Chart]:
    table = read_table("history_noise")
    kinds = dict.fromkeys(row["noise of 5 %"] for row in table)
    alarms = "--fail_on=step sets exit code 1 (%)"
    series = []
    for kind in kinds:
        points = [
            (float(row["commits"]), _share(row, alarms))
            for row in table
            if row["noise of 5 %"] == kind
        ]
        hints = tuple(percent(share) for _, share in points)
        series.append(ChartSeries(name=kind, points=tuple(points), hints=hints))
    commits = tuple(x for x, _ in series[0].points)
    return [
        LineChart(
            title="False alarms of cnnbench history",
            x=Axis(label="commits in the time series", log=True, ticks=commits),
            y=Axis(label="time series with exit code 1", format="percent", zero=True),
            series=tuple(series),
        )
    ]


CHARTS: Mapping[str, Callable[[], list[Chart]]] = {
    "speed": _speed,
    "peers": _peers,
    "convolutions": _convolutions,
    "rules": _rules,
    "drift": _drift,
    "verdicts": _verdicts,
    "history": _history,
}
"""Functions that describe the charts of each SVG file, by the name of the file."""


def draw(name: str) -> bytes:
    """Draws the charts of docs/evidence/NAME.svg, as the content of this file."""
    charts = CHARTS[name]()
    return render_chart_file(charts, "svg", charts[0].title)


def main(arguments: Sequence[str]) -> int:
    """Writes all charts; returns the exit status."""
    if arguments:
        raise UsageError(f"takes no arguments, not {' '.join(arguments)!r}")
    for name in CHARTS:
        (FOLDER / f"{name}.svg").write_bytes(draw(name))
    return ExitCode.OK


if __name__ == "__main__":
    run_script(main, __doc__)
