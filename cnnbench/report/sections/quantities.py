"""Sections with one quantity: a row per configuration, a chart per network and data set.

Throughput, use of the hardware, memory, accuracy and losses, start-up and warm-up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from cnnbench.charts import HIGHER, LOWER, Axis, Dots, Row
from cnnbench.records.run import RunRecord
from cnnbench.records.steady_state import RunSteadyState, run_steady_state
from cnnbench.report.document import (
    Cell,
    Charts,
    Column,
    Section,
    Table,
    Text,
    interval,
    number,
    section,
    table,
    text_cell,
)
from cnnbench.report.results import CONFIDENCE, Configured, Results, Sample, by_family
from cnnbench.stats.steady_state import Shape
from cnnbench.text import numbers
from cnnbench.text.numbers import percent

_MIB = 2**20
_MOST_NAMED = 5

_CellOf = Callable[[Configured], Cell]
_exact = partial(percent, digits=2)


def _mebibytes(size: float) -> str:
    return f"{size / _MIB:,.1f}"


def _median(value: Callable[[RunRecord], float | None], scale: float = 1.0) -> _CellOf:
    """A cell with the median over processes of a value of a record."""

    return lambda one: number(one.sample(value).median, scale=scale)


def _columns(*given: tuple[str, _CellOf]) -> list[tuple[Column, _CellOf]]:
    """Columns of numbers after one with the configuration."""
    first = (Column("configuration"), lambda one: text_cell(one.name))
    return [first, *((Column(title, number=True), cell) for title, cell in given)]


def _table(columns: Sequence[tuple[Column, _CellOf]], known: Iterable[Configured]) -> Table:
    rows = [[cell(one) for _, cell in columns] for one in known]
    return table([column for column, _ in columns], rows)


def family_charts(
    title: str,
    axis: Axis,
    configured: Iterable[Configured],
    sample: Callable[[Configured], Sample],
    *,
    limit: float | None = None,
    limit_label: str = "",
) -> Charts:
    """A dot chart for each network and data set with values, a row per configuration.

    Args:
      title: the quantity, after the family in the charts' titles.
      axis: of the values.
      configured: all configurations.
      sample: the values of one.
      limit, limit_label: a value to mark.
    """
    drawn = []
    for family, members in by_family(one for one in configured if sample(one).values).items():
        rows = tuple(_chart_row(one.variant, sample(one), axis) for one in members)
        note = "A dot is a process, the stroke their median"
        banded = any(row.low is not None for row in rows)
        note += f", the band its {100 * CONFIDENCE:.0f} % interval." if banded else "."
        drawn.append(
            Dots(
                title=f"{family}: {title}",
                x=axis,
                rows=rows,
                limit=limit,
                limit_label=limit_label,
                note=note,
            )
        )
    return Charts(charts=tuple(drawn))


def _chart_row(label: str, sample: Sample, axis: Axis) -> Row:
    low, high = sample.interval or (None, None)
    formats: dict[str, Callable[[float | None], str]]
    formats = {"percent": percent, "bytes": numbers.binary, "number": numbers.number}
    text = formats[axis.format]
    return Row(
        label=label,
        values=tuple(
            (value, f"{label}, process {index}: {text(value)}")
            for index, value in enumerate(sample.values, start=1)
        ),
        centre=sample.median,
        low=low,
        high=high,
        text=text(sample.median),
    )


# Throughput


def throughput(results: Results) -> Section | None:
    """Images per second by model, mode and devices, with the interval over processes."""
    measured = [one for one in results.configured if one.throughput.values]
    if not measured:
        return None
    axis = Axis(label="images/sec", zero=True, better=HIGHER)
    columns = _columns(
        ("devices", _devices),
        ("images per step", _batch),
        ("median images/sec", lambda one: number(one.throughput.median)),
        (f"{100 * CONFIDENCE:.0f} % interval", lambda one: interval(one.throughput.interval)),
        ("range", lambda one: interval(one.throughput.range)),
        ("spread", lambda one: number(one.throughput.spread, percent)),
        ("median step, ms", lambda one: number(one.step_seconds.median, scale=1000)),
        ("waits for input", _input_wait),
        ("processes", lambda one: number(len(one.good), str(len(one.good)))),
    )
    columns.insert(1, (Column("mode"), _mode))
    text = (
        "One value per process: images per step over the median step time; for evaluating runs "
        "the median of their evaluations. Images of all devices of the job together. The interval "
        "is of the median over processes, and needs six of them; the range is from the slowest "
        "process to the fastest, the spread its width as a share of the median."
    )
    charts = family_charts("throughput", axis, measured, lambda one: one.throughput)
    return section("throughput", "Throughput", Text(text=text), charts, _table(columns, measured))


def _mode(one: Configured) -> Cell:
    if one.flag("forward_only"):
        return text_cell("inference")
    if one.flag("eval"):
        return text_cell("evaluation")
    placements = (r.placement.variable_update for r in one.good if r.placement is not None)
    return text_cell(next(placements, ""))


def _devices(one: Configured) -> Cell:
    return number(one.devices or None, f"{one.devices} {one.device}")


def _batch(one: Configured) -> Cell:
    batch = next((record.batch for record in one.good if record.batch is not None), None)
    return number(None if batch is None else batch.global_, lambda images: f"{images:.0f}")


def _input_wait(one: Configured) -> Cell:
    return number(one.sample(lambda r: r.summary().input_wait_fraction).median, percent)


# Use of the hardware


def hardware(results: Results) -> Section | None:
    """Model FLOP/s utilisation against the peak."""
    known = [one for one in results.configured if one.sample(_achieved).values]
    if not known:
        return None
    charts = family_charts(
        "share of the peak",
        Axis(label="achieved over peak FLOP/s", format="percent", zero=True, better=HIGHER),
        known,
        lambda one: one.mfu,
        limit=1.0,
        limit_label="limit: the peak of all devices",
    )
    columns = _columns(
        ("MFU", lambda one: number(one.mfu.median, percent)),
        ("achieved, GFLOP/s", _median(_achieved, 1e-9)),
        ("peak, GFLOP/s", _median(lambda r: r.summary().peak_flops_per_sec, 1e-9)),
        ("GFLOP per image", _median(_flops_per_image, 1e-9)),
        ("parameters", _parameters),
        ("joules per image", _median(lambda r: r.summary().joules_per_image)),
    )
    columns.append((Column("source of the peak", prose=True), _peak_source))
    text = (
        "Model FLOP/s utilisation (MFU): two FLOPs per multiply-add of convolutions and affine "
        "layers that training an image needs (inference: the forward pass), times images/sec at "
        "the mean step, over the peak of all devices of the job. Energy is that of processors "
        "and GPUs over the timed loop, where counters can be read. Medians over processes."
    )
    unknown = above = None
    if not charts.charts:
        message = "No run knows the peak of its devices; --peak_flops gives it."
        unknown = Text(text=message, tone="unsure")
    if any(value > 1 for one in known for value in one.mfu.values):
        message = "More than 100 %: the peak of some runs was measured while the machine was busy,"
        above = Text(text=f"{message} or --peak_flops is too low.", tone="unsure")
    return section(
        "mfu",
        "Use of the hardware",
        Text(text=text),
        charts,
        unknown,
        above,
        _table(columns, known),
    )


def _achieved(record: RunRecord) -> float | None:
    return record.summary().achieved_flops_per_sec


def _flops_per_image(record: RunRecord) -> float | None:
    if record.model is None:
        return None
    if record.config.get("forward_only"):
        return record.model.forward_flops_per_image
    return record.model.training_flops_per_image


def _parameters(one: Configured) -> Cell:
    model = next((record.model for record in one.good if record.model is not None), None)
    return number(None if model is None else model.parameters, lambda count: f"{count:,.0f}")


def _peak_source(one: Configured) -> Cell:
    sources = {record.measured.peak_flops_source or "" for record in one.good}
    return text_cell("; ".join(sorted(filter(None, sources))))


# Memory


def memory(results: Results) -> Section | None:
    """Peak memory by configuration."""
    known = [one for one in results.configured if one.memory.values]
    if not known:
        return None
    axis = Axis(label="peak memory", format="bytes", zero=True, better=LOWER)
    columns = _columns(
        ("median peak memory, MiB", lambda one: number(one.memory.median, _mebibytes)),
        ("range, MiB", lambda one: interval(one.memory.range, _mebibytes)),
        ("processes", lambda one: number(len(one.memory.values), str(len(one.memory.values)))),
    )
    columns.insert(3, (Column("of"), _memory_scope))
    text = (
        "Peak memory: of one device on GPUs, without what TensorFlow reserves in advance; of the "
        "whole process on a CPU. Medians over processes."
    )
    charts = family_charts("peak memory", axis, known, lambda one: one.memory)
    return section("memory", "Memory", Text(text=text), charts, _table(columns, known))


def _memory_scope(one: Configured) -> Cell:
    return text_cell("one device" if one.device == "gpu" else "the process")


# Accuracy and losses


def accuracy(results: Results) -> Section | None:
    """Accuracies of evaluations, first and last losses of training."""
    known = [one for one in results.configured if one.accuracy.values or _trains(one)]
    if not known:
        return None
    axis = Axis(label="top-1 of the last evaluation", format="percent", zero=True, better=HIGHER)
    columns = _columns(
        ("top-1", lambda one: number(one.accuracy.median, _exact)),
        ("range", lambda one: interval(one.accuracy.range, _exact)),
        ("top-5", lambda one: number(one.sample(_top_5).median, _exact)),
        ("evaluation images/sec", _median(_evaluation_speed)),
        ("first loss", _median(lambda r: r.losses[0] if r.losses else None)),
        ("last loss", _median(lambda r: r.losses[-1] if r.losses else None)),
    )
    columns.append((Column("losses"), _broken_losses))
    text = (
        "Accuracy is that of the last evaluation, losses those of the first and last timed step; "
        "medians over processes. Losses on synthetic images only show that training works at all."
    )
    charts = family_charts("top-1 accuracy", axis, known, lambda one: one.accuracy)
    title = "Accuracy and losses"
    return section("accuracy", title, Text(text=text), charts, _table(columns, known))


def _trains(one: Configured) -> bool:
    # A forward pass computes no loss and records zeros.
    return not one.flag("forward_only") and any(record.losses for record in one.good)


def _top_5(record: RunRecord) -> float | None:
    return record.evaluations[-1].top_5 if record.evaluations else None


def _evaluation_speed(record: RunRecord) -> float | None:
    return record.evaluations[-1].images_per_sec if record.evaluations else None


def _broken_losses(one: Configured) -> Cell:
    broken = sum(not all(map(math.isfinite, record.losses)) for record in one.good)
    if not broken:
        return text_cell("")
    return text_cell(f"not finite in {broken} of {len(one.good)}", tone="bad")


# Start-up and warm-up


def warmup(results: Results) -> Section | None:
    """Start-up times, and whether the timed steps were steady."""
    known = [one for one in results.configured if one.good]
    steady = {one.configuration.key: _steady_states(one) for one in known}
    if not any(one.startup.values for one in known) and not any(steady.values()):
        return None
    axis = Axis(label="seconds to the end of the first step", zero=True, better=LOWER)
    columns = _columns(
        ("start-up, s", lambda one: number(one.startup.median)),
        ("import, s", _median(lambda r: r.startup_seconds.import_)),
        ("build, s", _median(lambda r: r.startup_seconds.build)),
        ("first step, s", _median(lambda r: r.startup_seconds.first_step)),
        ("warm-up steps", _warmup_steps),
        ("steady from step", lambda one: _steady_from(steady[one.configuration.key])),
    )
    columns.append((Column("steps in order"), lambda one: _shapes(steady[one.configuration.key])))
    text = (
        "Start-up is the import of TensorFlow, the building of the run and its very first step, "
        "medians over processes. Warm-up and timed steps together are tested for a steady state: "
        "steps are counted from the first timed one; 1 or less means that all timed steps were "
        "steady."
    )
    unsteady = [one.name for one in known if _is_unsteady(steady[one.configuration.key])]
    warning = None
    if unsteady:
        more = len(unsteady) - _MOST_NAMED
        named = "; ".join(unsteady[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        message = "Not steady, or not from the first timed step on, in at least one process: "
        advice = "More --num_warmup_batches or a quieter machine would help."
        warning = Text(text=f"{message}{named}. {advice}", tone="unsure")
    charts = family_charts("start-up", axis, known, lambda one: one.startup)
    title = "Start-up and warm-up"
    return section("warmup", title, Text(text=text), warning, charts, _table(columns, known))


def _steady_states(one: Configured) -> list[RunSteadyState]:
    found = map(run_steady_state, one.good)
    return [state for state in found if state.series.shape is not Shape.TOO_SHORT]


def _is_unsteady(states: Sequence[RunSteadyState]) -> bool:
    return any(state.unsteady_timed_steps != 0 for state in states)


def _warmup_steps(one: Configured) -> Cell:
    counts = sorted({len(record.warmup_step_seconds) for record in one.good})
    return number(counts[-1], " or ".join(map(str, counts)))


def _steady_from(states: Sequence[RunSteadyState]) -> Cell:
    starts = sorted(
        state.series.start - state.warmup_steps + 1
        for state in states
        if state.series.start is not None
    )
    if not starts:
        return number(None)
    ends = dict.fromkeys((starts[0], starts[-1]))
    return number(starts[-1], " to ".join(map(str, ends)))


def _shapes(states: Sequence[RunSteadyState]) -> Cell:
    shapes = Counter(state.series.shape.value for state in states)
    text = ", ".join(f"{count} {shape}" for shape, count in shapes.most_common())
    return Cell(text or "too few steps to tell", tone="unsure" if _is_unsteady(states) else "")
