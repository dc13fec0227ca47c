"""The results of `cnnbench strategies`: blocks for all formats, and answers of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from cnnbench.base.charts import HIGHER, Axis, RowChart
from cnnbench.base.document import (
    Answer,
    Content,
    Paragraph,
    Row,
    Section,
    TableCell,
    make_table,
    numeric_cell,
    prepend_docstring,
)
from cnnbench.base.stats import ValuesByProcess
from cnnbench.base.text import (
    NONE,
    capitalized,
    count_text,
    format_bytes,
    format_interval,
    number,
    percent,
)
from cnnbench.judge.compare.configuration import work_name_parts
from cnnbench.judge.report.results import ReportSubject, interval_cells, with_start_times
from cnnbench.judge.report.sections.quantities import process_chart
from cnnbench.records.campaigns import (
    DIFFERENT,
    EQUAL,
    ONE_TOWER,
    REFERENCE,
    StrategiesDocument,
    StrategyRow,
    images_per_sec_of_mode,
    weight_comparison_lines,
)

_TONES = {REFERENCE: "good", EQUAL: "good", DIFFERENT: "bad"}
_SPARE = ("processes", "all-reduce", "range")
_SPARE_COSTS = ("variables", "build, s", "copies", "first step, s", "reduction ops")
"""Columns that are omitted in narrow terminals, in this order."""


def strategies_sections(
    document: StrategiesDocument, not_compared: Mapping[str, str]
) -> Iterator[Section]:
    """The results of a comparison of modes: the answer, and then the tables.

    `not_compared` maps a mode whose weights were not compared to the reason.
    """
    work = work_text(document)
    answer = _fastest_answer(document, work)
    yield Section.of([None if answer is None else answer.text], title=f"Modes of {work}")
    yield Section.of(_mode_blocks(document, "", not_compared))


@prepend_docstring
def modes_section(results: ReportSubject) -> Iterable[Content]:
    """A comparison of modes of --variable_update (cnnbench strategies). Each process is new, and
    all modes run in random order within rounds. Overhead is the additional time of a step compared
    with one device, as a share of the time on one device. On GPUs, the one device processes the
    images of one device. Logical CPU devices share the cores, so the one device processes all
    images. Weights are compared after the same number of steps; one_tower processes a different
    batch.
    """
    for work, document in titled_strategies(results):
        yield from _mode_blocks(document, work, {})


def _mode_blocks(
    document: StrategiesDocument, work: str, not_compared: Mapping[str, str]
) -> Iterator[Content]:
    if document.incomplete is not None:
        yield Paragraph(f"Incomplete: {document.incomplete}", "bad")
    for text, right in weight_comparison_lines(document.rows, document.weights_tolerance):
        yield Paragraph(f"{capitalized(text)}.", "" if right else "bad")
    for mode, why in not_compared.items():
        yield f"Weights of {mode} were not compared: {why}."
    for row in document.rows:
        if row.problem:
            yield Paragraph(f"Failed: {row.mode}: {row.problem}", "bad")
    yield [modes_chart(document, work)]
    rows = (_speed_cells(document, row) for row in document.rows)
    yield make_table(rows, title=work or "speed and weights", spare=_SPARE)
    costs = map(_cost_cells, document.rows)
    title = f"{work}: memory, start-up, variables" if work else "memory, start-up, variables"
    yield make_table(costs, title=title, folded=True, spare=_SPARE_COSTS)


def _speed_cells(document: StrategiesDocument, row: StrategyRow) -> Row:
    weights, distance = row.weights or NONE, row.weight_distance
    if row.weights in (EQUAL, DIFFERENT) and distance is not None:
        by = "within" if row.weights == EQUAL else "by"
        weights += ", all bits" if distance == 0 else f", {by} {number(distance)}"
    return {
        "mode": row.mode,
        "median images/sec": numeric_cell(row.images_per_sec),
        **interval_cells(images_per_sec_of_mode(document.processes, row.mode)),
        "overhead": numeric_cell(row.overhead, partial(percent, signed=True)),
        "weights": TableCell(weights, tone=_TONES.get(row.weights, "")),
        "all-reduce": row.all_reduce,
        "processes": numeric_cell(row.processes),
    }


def _cost_cells(row: StrategyRow) -> Row:
    return {
        "mode": row.mode,
        "memory": numeric_cell(row.peak_memory_bytes, format_bytes),
        "build, s": numeric_cell(row.build_seconds),
        "first step, s": numeric_cell(row.first_step_seconds),
        "variables": numeric_cell(row.variables),
        "copies": numeric_cell(row.variable_copies),
        "reduction ops": numeric_cell(row.reduction_operations),
    }


def modes_chart(document: StrategiesDocument, work: str = "") -> RowChart:
    """Returns a chart of the images/sec of each mode, with a dot for each process."""
    return process_chart(
        work or work_text(document),
        Axis(label="images/sec over the timed steps", zero=True, better=HIGHER),
        ((row.mode, images_per_sec_of_mode(document.processes, row.mode)) for row in document.rows),
        " images/sec",
    )


def fastest_mode_answers(results: ReportSubject) -> Iterator[Answer]:
    """Yields an answer for each result: the fastest of the modes that train equal weights."""
    named = titled_strategies(results)
    yield from filter(None, (_fastest_answer(document, work) for work, document in named))


def _fastest_answer(document: StrategiesDocument, work: str) -> Answer | None:
    alike = [row for row in document.rows if row.weights in (REFERENCE, EQUAL)]
    known = [row for row in alike or document.rows if row.mode != ONE_TOWER]
    right = all(row.weights != DIFFERENT and not row.problem for row in document.rows)
    text, tone = _text_and_tone([row for row in known if row.images_per_sec is not None])
    if not text:
        return None
    lines = weight_comparison_lines(document.rows, document.weights_tolerance)
    ended = () if document.incomplete is None else (f"incomplete: {document.incomplete}",)
    details = (*ended, *(line for line, _ in lines))
    return Answer(f"Modes of {work}", text, tone if right else "bad", details)


def _text_and_tone(measured: Sequence[StrategyRow]) -> tuple[str, str]:
    """Returns the text of the answer, with the fastest mode and the modes whose intervals overlap
    with its interval, and the tone of the answer.
    """
    fewest = min((row.processes for row in measured), default=ValuesByProcess.FEWEST)
    if fewest < ValuesByProcess.FEWEST:
        few, rounds = count_text(fewest, "process", "processes"), ValuesByProcess.FEWEST
        text = f"{few} of a mode cannot show which one is fastest; --rounds={rounds} can"
        return text, "unsure"
    if not measured:
        return "", ""
    best, *others = sorted(measured, key=lambda row: -(row.images_per_sec or 0.0))
    near = [row for row in others if (row.high or 0.0) >= (best.low or 0.0)]
    low = min(row.low or 0.0 for row in (best, *near))
    interval = format_interval(low, best.high or 0.0)
    if near:
        names = ", ".join(row.mode for row in near)
        return f"{best.mode} is as fast as {names}: {interval} images/sec", ""
    speed = number(best.images_per_sec)
    return f"{best.mode} is the fastest: {speed} images/sec ({interval})", ""


def titled_strategies(results: ReportSubject) -> list[tuple[str, StrategiesDocument]]:
    """Returns the `cnnbench strategies` results with their titles: network, batch and devices.
    Equal titles also contain the start time.
    """
    return with_start_times((work_text(document), document) for document in results.strategies)


def work_text(document: StrategiesDocument) -> str:
    """Returns text with the network, batch size and devices of a `cnnbench strategies` result."""
    parts = work_name_parts(document.config)
    if document.config.get("precision") not in (None, "fp32"):
        parts.append(str(document.config["precision"]))
    return ", ".join(parts)
