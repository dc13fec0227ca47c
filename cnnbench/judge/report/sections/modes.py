"""The modes of --variable_update side by side, from `cnnbench strategies`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from cnnbench.base.charts import HIGHER, Axis, Rows
from cnnbench.base.text import numbers
from cnnbench.base.text.numbers import binary, count, integer, percent
from cnnbench.judge.report.document import (
    Answer,
    Block,
    Charts,
    Section,
    TableCell,
    TableColumn,
    Text,
    interval,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import (
    CONFIDENCE,
    FEWEST,
    ProcessValues,
    ReportSubject,
    time_text,
)
from cnnbench.judge.report.sections.quantities import process_key, process_row
from cnnbench.records.strategies import (
    DIFFERENT,
    EQUAL,
    ONE_TOWER,
    REFERENCE,
    StrategiesDocument,
    StrategyRow,
    weight_remarks,
)

_TONES = {REFERENCE: "good", EQUAL: "good", DIFFERENT: "bad"}


def modes(results: ReportSubject) -> Section | None:
    """Images/sec, overhead and weights of every mode, a chart and a table per comparison."""
    if not results.strategies:
        return None
    text = (
        "Fresh processes of every mode in random order within rounds (cnnbench strategies). "
        "Overhead is the time of a step beyond that of one device alone, as a share of it: on GPUs "
        "with the images of one device, on logical CPU devices, which share the cores, with all "
        "of them. Weights are compared after the same steps; one_tower sees another batch."
    )
    blocks: list[Block | None] = [Text(text=text)]
    for title, one in titled(results):
        rows = [(one, row) for row in one.rows]
        blocks += [
            *_remarks(one),
            Charts(charts=(chart(one, title),)),
            table(_COLUMNS, rows, title=title),
            table(_COSTS, rows, title=f"{title}: memory, start-up, variables", folded=True),
        ]
    return section("modes", "Modes side by side", *blocks)


def fastest_modes(results: ReportSubject) -> Iterable[Answer]:
    """The fastest modes among those with equal weights, per comparison."""
    for title, one in titled(results):
        alike = [row for row in one.rows if row.weights in (REFERENCE, EQUAL)]
        known = [row.mode for row in alike or one.rows if row.mode != ONE_TOWER]
        found = {mode: ProcessValues(one.speeds(mode)) for mode in known}
        right = all(row.weights != DIFFERENT and not row.problem for row in one.rows)
        text, tone = _fastest({mode: speeds for mode, speeds in found.items() if speeds.values})
        details = [words for words, _ in weight_remarks(one.rows, one.weights_tolerance)]
        if one.incomplete is not None:
            details.insert(0, f"incomplete: {one.incomplete}")
        if text:
            yield Answer(
                name=f"Modes of {title}",
                text=text,
                tone=tone if right else "bad",
                details=tuple(details),
            )


def _fastest(found: Mapping[str, ProcessValues]) -> tuple[str, str]:
    """The fastest modes, several if their intervals overlap, and a tone."""
    ordered = sorted(found, key=lambda mode: -(found[mode].median or 0.0))
    known = [(mode, ends) for mode in ordered if (ends := found[mode].interval)]
    if len(known) < len(ordered):
        fewest = count(min(len(one.values) for one in found.values()), "process", "processes")
        text = f"{fewest} of a mode cannot show which one is fastest; --rounds={FEWEST} can"
        return text, "unsure"
    if not known:
        return "", ""
    best, (low, high) = known[0]
    near = [(mode, ends) for mode, ends in known[1:] if ends[1] >= low]
    if near:
        low = min(low, *(ends[0] for _, ends in near))
    span = f"{numbers.number(low)} to {numbers.number(high)}"
    if near:
        return f"{best} is as fast as {', '.join(m for m, _ in near)}: {span} images/sec", ""
    return f"{best} is the fastest: {numbers.number(found[best].median)} images/sec ({span})", ""


def titled(results: ReportSubject) -> list[tuple[str, StrategiesDocument]]:
    """Comparisons by network, batch and devices, with the time if that repeats."""
    names = [work_text(one) for one in results.strategies]
    return [
        (f"{name}, {time_text(one.started_at)}" if names.count(name) > 1 else name, one)
        for name, one in zip(names, results.strategies, strict=True)
    ]


def work_text(one: StrategiesDocument) -> str:
    """The network, batch and devices of a comparison."""
    config = one.config
    parts = [config.get("model")]
    parts += [config["data_name"]] if config.get("data_name") not in (None, "imagenet") else []
    parts += [
        f"batch {config.get('batch_size')}",
        f"{config.get('num_gpus')} {config.get('device')}",
    ]
    parts += [config["precision"]] if config.get("precision") not in (None, "fp32") else []
    return ", ".join(map(str, parts))


def _remarks(one: StrategiesDocument) -> Iterable[Text]:
    if one.incomplete is not None:
        yield Text(text=f"Incomplete: {one.incomplete}", tone="bad")
    for text, right in weight_remarks(one.rows, one.weights_tolerance):
        yield Text(text=f"{text[:1].upper()}{text[1:]}.", tone="" if right else "bad")
    for row in one.rows:
        if row.problem:
            yield Text(text=f"Failed: {row.mode}: {row.problem}", tone="bad")


def chart(document: StrategiesDocument, title: str = "") -> Rows:
    """Images/sec of every case, a dot per process."""
    rows = tuple(
        process_row(speeds, row.mode, row.mode, numbers.number, " images/sec")
        for row in document.rows
        if (speeds := ProcessValues(document.speeds(row.mode))).values
    )
    return Rows(
        title=title or work_text(document),
        x=Axis(label="images/sec at the median step", zero=True, better=HIGHER),
        rows=rows,
        note=process_key(rows),
    )


_Row: TypeAlias = tuple[StrategiesDocument, StrategyRow]


def _spread(
    title: str, ends: Callable[[ProcessValues], tuple[float, float] | None]
) -> TableColumn[_Row]:
    return interval(title, lambda row: ends(ProcessValues(row[0].speeds(row[1].mode))))


def _weights(row: _Row) -> TableCell:
    weights, distance = row[1].weights, row[1].weight_distance
    text = weights or numbers.NONE
    if weights in (EQUAL, DIFFERENT) and distance is not None:
        by = "within" if weights == EQUAL else "by"
        text += ", all bits" if distance == 0 else f", {by} {numbers.number(distance)}"
    return TableCell(text, tone=_TONES.get(weights, ""))


_COLUMNS: tuple[TableColumn[_Row], ...] = (
    TableColumn("mode", lambda row: row[1].mode),
    numeric("median images/sec", lambda row: row[1].images_per_sec),
    _spread(f"{100 * CONFIDENCE:.0f} % interval", lambda speeds: speeds.interval),
    _spread("range", lambda speeds: speeds.range),
    numeric("overhead", lambda row: row[1].overhead, lambda share: percent(share, signed=True)),
    TableColumn("weights", _weights),
    TableColumn("all-reduce", lambda row: row[1].all_reduce),
    numeric("processes", lambda row: row[1].processes, integer),
)
_COSTS: tuple[TableColumn[_Row], ...] = (
    TableColumn("mode", lambda row: row[1].mode),
    numeric("memory", lambda row: row[1].peak_memory_bytes, binary),
    numeric("build, s", lambda row: row[1].build_seconds),
    numeric("first step, s", lambda row: row[1].first_step_seconds),
    numeric("variables", lambda row: row[1].variables, integer),
    numeric("copies", lambda row: row[1].variable_copies, integer),
    numeric("reduction operations", lambda row: row[1].reduction_operations, integer),
)
