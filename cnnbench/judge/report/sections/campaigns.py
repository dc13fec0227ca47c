"""Sections of a report about `cnnbench strategies`, about `cnnbench tune`, and about the comparison
with a baseline.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from cnnbench.base import text as numbers
from cnnbench.base.charts import HIGHER, LOWER, Axis, DistributionRow, RowChart, draw, legend_text
from cnnbench.base.document import (
    Answer,
    Content,
    Paragraph,
    Row,
    Section,
    TableCell,
    interval_cell,
    make_table,
    numeric_cell,
    prepend_docstring,
)
from cnnbench.base.stats import ValuesByProcess
from cnnbench.base.text import (
    count_text,
    format_bytes,
    format_duration,
    integer,
    number,
    percent,
    percent_range,
)
from cnnbench.errors import ExitCode
from cnnbench.judge.compare import ComparedConfiguration, Comparison, MetricResult, phrases
from cnnbench.judge.compare.configuration import work_name_parts
from cnnbench.judge.compare.estimate import AnnotationLevel, Verdict
from cnnbench.judge.explain.explanation import (
    differences_chart,
    in_ms,
    measurement_sentence,
    rows_table,
    signed_ms,
)
from cnnbench.judge.report import comparison as verdicts
from cnnbench.judge.report.results import (
    ReportSubject,
    distinguish_by_start_time,
    interval_cells,
    speed_and_certainty,
    split_off_common_parts,
)
from cnnbench.judge.report.sections.quantities import process_chart
from cnnbench.records.campaigns import (
    AS_GIVEN,
    DIFFERENT,
    EQUAL,
    FASTER,
    NOT_FASTER,
    ONE_TOWER,
    OPEN,
    REFERENCE,
    SAME,
    SLOWER,
    StrategiesDocument,
    StrategyRow,
    TuneDocument,
    TuneRow,
    images_per_sec_of_mode,
    weight_comparison_lines,
)
from cnnbench.records.metric import HISTORY, Metric
from cnnbench.records.profiles import Explanation
from cnnbench.records.run import BENCHMARKS

# Shows the modes of `cnnbench strategies`, and the best flags of `cnnbench tune`.

_TONES = {REFERENCE: "good", EQUAL: "good", DIFFERENT: "bad"}


@prepend_docstring
def modes_section(results: ReportSubject) -> Iterable[Content]:
    """A comparison of modes of --variable_update (cnnbench strategies). Each process is new, and
    all modes run in random order within rounds. Overhead is the additional time of a step compared
    with one device, as a share of the time on one device. On GPUs, the one device processes the
    images of one device. Logical CPU devices share the cores, so the one device processes all
    images. Weights are compared after the same number of steps; one_tower processes a different
    batch.
    """
    for title, document in titled_strategies(results):
        if document.incomplete is not None:
            yield Paragraph(f"Incomplete: {document.incomplete}", "bad")
        for text, right in weight_comparison_lines(document.rows, document.weights_tolerance):
            yield Paragraph(f"{text[:1].upper()}{text[1:]}.", "" if right else "bad")
        for row in document.rows:
            yield Paragraph(f"Failed: {row.mode}: {row.problem}", "bad") if row.problem else None
        yield [modes_chart(document, title)]
        yield make_table((_mode_table_row(document, row) for row in document.rows), title=title)
        costs = ({"mode": row.mode, **_cost_cells(row)} for row in document.rows)
        yield make_table(costs, title=f"{title}: memory, start-up, variables", folded=True)


def mode_row(row: StrategyRow, spread: str) -> Row:
    """Returns the table cells for a mode of --variable_update in a terminal. `spread` is the title
    of the column with the interval.
    """
    return {
        "mode": row.mode,
        "all-reduce": row.all_reduce,
        "median images/sec": numeric_cell(row.images_per_sec),
        spread: interval_cell((row.low, row.high)),
        "overhead": numeric_cell(row.overhead, _signed),
        **_cost_cells(row),
        "weights": row.weights,
    }


def _cost_cells(row: StrategyRow) -> Row:
    return {
        "memory": numeric_cell(row.peak_memory_bytes, format_bytes),
        "build, s": numeric_cell(row.build_seconds),
        "first step, s": numeric_cell(row.first_step_seconds),
        "variables": numeric_cell(row.variables, integer),
        "copies": numeric_cell(row.variable_copies, integer),
        "reduction ops": numeric_cell(row.reduction_operations, integer),
    }


def fastest_mode_answers(results: ReportSubject) -> Iterable[Answer]:
    """Yields an answer for each `cnnbench strategies` result: the fastest of the modes that train
    equal weights.
    """
    for title, document in titled_strategies(results):
        alike = [row for row in document.rows if row.weights in (REFERENCE, EQUAL)]
        known = [row for row in alike or document.rows if row.mode != ONE_TOWER]
        right = all(row.weights != DIFFERENT and not row.problem for row in document.rows)
        text, tone = _fastest_text_and_tone(
            [row for row in known if row.images_per_sec is not None]
        )
        remarks = (
            words for words, _ in weight_comparison_lines(document.rows, document.weights_tolerance)
        )
        ended = () if document.incomplete is None else (f"incomplete: {document.incomplete}",)
        if text:
            tone = tone if right else "bad"
            yield Answer(f"Modes of {title}", text, tone, (*ended, *remarks))


def _fastest_text_and_tone(measured: Sequence[StrategyRow]) -> tuple[str, str]:
    """Returns the text of the answer, with the fastest mode and the modes whose intervals overlap
    with its interval, and the tone of the answer.
    """
    fewest = min((row.processes for row in measured), default=ValuesByProcess.FEWEST)
    if fewest < ValuesByProcess.FEWEST:
        text = (
            f"{count_text(fewest, 'process', 'processes')} of a mode cannot show which one "
            "is fastest"
        )
        return f"{text}; --rounds={ValuesByProcess.FEWEST} can", "unsure"
    if not measured:
        return "", ""
    best, *others = sorted(measured, key=lambda row: -(row.images_per_sec or 0.0))
    near = [row for row in others if (row.high or 0.0) >= (best.low or 0.0)]
    low = min(row.low or 0.0 for row in (best, *near))
    span = f"{numbers.number(low)} to {numbers.number(best.high)}"
    if near:
        names = ", ".join(row.mode for row in near)
        return f"{best.mode} is as fast as {names}: {span} images/sec", ""
    return (
        f"{best.mode} is the fastest: {numbers.number(best.images_per_sec)} images/sec ({span})",
        "",
    )


def titled_strategies(results: ReportSubject) -> list[tuple[str, StrategiesDocument]]:
    """Returns the `cnnbench strategies` results with their titles: network, batch and devices.
    Equal titles also contain the start time.
    """
    return distinguish_by_start_time(
        (work_text(document), document) for document in results.strategies
    )


def work_text(document: StrategiesDocument) -> str:
    """Returns text with the network, batch size and devices of a `cnnbench strategies` result."""
    parts = work_name_parts(document.config)
    if document.config.get("precision") not in (None, "fp32"):
        parts.append(str(document.config["precision"]))
    return ", ".join(parts)


def modes_chart(document: StrategiesDocument, title: str = "") -> RowChart:
    """Returns a chart of the images per second of each mode of --variable_update, with a dot for
    each process.
    """
    return process_chart(
        title or work_text(document),
        Axis(label="images/sec over the timed steps", zero=True, better=HIGHER),
        ((row.mode, images_per_sec_of_mode(document.processes, row.mode)) for row in document.rows),
        " images/sec",
    )


def _mode_table_row(document: StrategiesDocument, row: StrategyRow) -> Row:
    weights, distance = row.weights or numbers.NONE, row.weight_distance
    if row.weights in (EQUAL, DIFFERENT) and distance is not None:
        by = "within" if row.weights == EQUAL else "by"
        weights += ", all bits" if distance == 0 else f", {by} {numbers.number(distance)}"
    return {
        "mode": row.mode,
        "median images/sec": numeric_cell(row.images_per_sec),
        **interval_cells(images_per_sec_of_mode(document.processes, row.mode)),
        "overhead": numeric_cell(row.overhead, _signed),
        "weights": TableCell(weights, tone=_TONES.get(row.weights, "")),
        "all-reduce": row.all_reduce,
        "processes": numeric_cell(row.processes, integer),
    }


_MOST_DRAWN = 12
_MODEL = "--model="
_signed = partial(percent, signed=True)


@prepend_docstring
def best_flags_section(results: ReportSubject) -> Iterable[Content]:
    """A search for the fastest flags (cnnbench tune). Candidates ran in races: rounds of short
    processes, in random order. Significantly slower candidates were eliminated. The last candidate
    was measured in pairs against the given flags. A gain in the races is estimated within the
    rounds, so it differs from the change of the medians. The gain in the verdict is estimated only
    from the pairs.
    """
    for document in results.tunings:
        name = searched_network(document)
        command = TableCell(shlex.join(document.command), kinds="command")
        yield make_table([{"flags": _command_candidate(document), "command": command}], title=name)
        outcome, tone = tune_verdict(document)
        spent = f"{format_duration(document.seconds)} of {format_duration(document.budget_seconds)}"
        words = (outcome, document.reason, document.weights, f"it took {spent}")
        sentences = (f"{word[:1].upper()}{word[1:].rstrip('.')}." for word in words if word)
        yield Paragraph(" ".join(sentences), tone)
        yield [*_gains_chart(document, name)]
        yield make_table(map(candidate_row, document.rows), title=f"{name}: candidates")
        refused: Iterable[Row] = (
            {
                "candidate": row.candidate,
                "group": row.group,
                "reason": TableCell(row.reason, kinds="prose"),
            }
            for row in document.refused
        )
        yield make_table(refused, title=f"{name}: candidates that cannot run", folded=True)


def search_verdict_answers(results: ReportSubject) -> Iterable[Answer]:
    """Yields an answer for each `cnnbench tune` search: its verdict and the best command line."""
    for document in results.tunings:
        text, tone = tune_verdict(document)
        details = (
            f"{_command_candidate(document)}: {shlex.join(document.command)}",
            document.weights,
            document.failure,
        )
        yield Answer(
            f"Best flags of {searched_network(document)}", text, tone, tuple(filter(None, details))
        )


_COMPARED = {SAME: "as fast as", SLOWER: "slower than", NOT_FASTER: "not faster than"}


def tune_verdict(document: TuneDocument) -> tuple[str, str]:
    """Returns the outcome of a `cnnbench tune` search as text, and the tone of the answer: "good",
    "bad", "unsure" or "".
    """
    pairs = count_text(document.pairs, "pair", "pairs")
    if document.verdict == FASTER:
        gain = percent(document.gain)
        if document.low is not None and document.high is not None:
            gain += f" ({percent_range(document.low, document.high)})"
        if document.trains_alike is False:
            return f"{document.leader} is {gain} faster, but trains other weights", "bad"
        return f"{gain} faster than the flags as given, {pairs}", "good"
    if document.verdict == OPEN and document.leader == AS_GIVEN:
        return "no candidate was tried", "unsure"
    if document.verdict == OPEN:
        return (
            f"it is not proven that {document.leader} is faster than the flags as given",
            "unsure",
        )
    if document.verdict in _COMPARED:
        return f"{document.leader} is {_COMPARED[document.verdict]} the flags as given", ""
    return "no candidate was faster than the flags as given", ""


def _command_candidate(document: TuneDocument) -> str:
    """Returns the name of the candidate in the final command line of a search: the fastest
    candidate if its gain is proven, otherwise the given flags.
    """
    return document.leader if document.is_leader_proven_faster else AS_GIVEN


def searched_network(document: TuneDocument) -> str:
    """Returns the name of the network for which a `cnnbench tune` search looked for flags."""
    words = (word.removeprefix(_MODEL) for word in document.command if word.startswith(_MODEL))
    return next(words, "the default network")


def _gains_chart(document: TuneDocument, name: str) -> Iterator[RowChart]:
    """Yields a chart of the gains of the candidates, if any gain was measured."""
    measured = [row for row in document.rows if row.gain is not None and row.candidate != AS_GIVEN]
    if not measured:
        return
    drawn = measured[:_MOST_DRAWN]
    shared, labels = split_off_common_parts([row.candidate.split(" ") for row in drawn], " ")
    rows = tuple(
        DistributionRow(
            label=label,
            values=((row.gain or 0.0, f"{label}: {_signed(row.gain)}"),),
            low=row.low,
            high=row.high,
            text=_signed(row.gain),
        )
        for row, label in zip(drawn, labels, strict=True)
    )
    which = "the candidates" if drawn == measured else f"the {_MOST_DRAWN} fastest candidates"
    alike = f", all with {shared}" if shared else ""
    yield RowChart(
        title=f"{name}: gain of {which} over the flags as given, in the races{alike}",
        x=Axis(label="speed above the flags as given", format="percent", better=HIGHER),
        rows=rows,
        limit=(0.0, "as given"),
        note=legend_text(rows, dot="the estimate from all rounds", band="its 95 % interval"),
    )


RACE_GAIN, RACE_MEDIAN = "gain in races", "median images/sec in races"
"""Titles of columns with numbers of the races, which differ from those of the pairs."""


def candidate_row(row: TuneRow, with_elimination_reason: bool = True) -> Row:
    """Returns the table cells of a candidate. If `with_elimination_reason` is true, they include
    the reason why the candidate was eliminated.
    """
    when = "" if row.after is None else f" after round {row.after} of {row.group}"
    left = f"{row.left}{when}{': ' if row.reason else ''}{row.reason}"
    left = left if with_elimination_reason else f"{row.left}, {row.group} {row.after}"
    return {
        "candidate": row.candidate + (f" ({', '.join(row.changes)})" if row.changes else ""),
        RACE_GAIN: numeric_cell(None if row.candidate == AS_GIVEN else row.gain, _signed),
        ValuesByProcess.INTERVAL: interval_cell((row.low, row.high), _signed),
        RACE_MEDIAN: numeric_cell(row.images_per_sec),
        "processes": numeric_cell(row.processes, integer),
        "left": TableCell(left if row.left else "", kinds="prose"),
    }


# Shows verdicts against a baseline and, for profiled processes, the causes of a difference.

_MOST_NAMED = 3


def baseline_section(results: ReportSubject) -> Iterable[Content]:
    """Yields the section about a comparison with a baseline: the blocks of the comparison, except
    its answer and causes, and charts of the changes and of the processes.
    """
    comparison = results.comparison
    if comparison is None:
        return
    sections = verdicts.blocks(comparison)
    yield from _blocks_of(sections, "sides", "verdicts")
    metrics = comparison.requested_and_deciding_metrics
    changes = [chart for metric in metrics for chart in _changes_chart(comparison, metric)]
    processes = [chart for metric in metrics for chart in _process_charts(comparison, metric)]
    if len(comparison.deciding_configurations) == 1:
        yield [*changes, *processes]
    else:
        yield changes
        yield processes
    yield from _blocks_of(sections, "notes", "method")


def _blocks_of(sections: Iterable[Section], *keys: str) -> Iterator[Content]:
    for section in sections:
        yield from section.blocks if section.key in keys else ()


def speed_answer(results: ReportSubject) -> Answer | None:
    """Returns the answer of a report without a baseline: the mean speed of each configuration over
    its processes, and how certain it is. None if the report is only about all-reduces, which have
    their own answers.
    """
    hint = "--baseline=RECORDS judges these records against others"
    measured = [
        (
            group.name,
            *speed_and_certainty(group.own_speeds, imported=group.is_imported, is_job=group.is_job),
            fmean(group.own_speeds),
        )
        for group in results.configured
        if group.own_speeds
    ]
    if not measured and not results.configured and (results.allreduces or results.predictions):
        return None
    if not measured:
        return _benchmarks_answer(results, hint)
    if len(measured) == 1:
        ((name, speed, certainty, _),) = measured
        certainty = f"{certainty[0].upper()}{certainty[1:]}"
        return Answer(f"Speed of {name}", speed, "", (certainty, hint))
    means = [mean for *_, mean in measured]
    ends = f"{number(min(means))} to {number(max(means))} images/sec"
    lines = [f"{name}: {speed}, {certainty}" for name, speed, certainty, _ in measured]
    more = f"and {len(lines) - _MOST_NAMED} more, under Throughput"
    lines = [*lines[:_MOST_NAMED], *([more] if len(lines) > _MOST_NAMED else [])]
    return Answer(f"Speed of {len(measured)} configurations", ends, "", (*lines, hint))


def _benchmarks_answer(results: ReportSubject, hint: str) -> Answer:
    """Returns the answer of a report without speeds: the medians of the imported benchmarks of
    other programs, or that nothing was measured.
    """
    medians = []
    for group in results.configured:
        kind = group.configuration.kind
        values = group.process_values(kind) if kind in BENCHMARKS else None
        if values is not None and values.values:
            processes = count_text(values.values, "process", "processes")
            medians.append((group.name, HISTORY[kind].value_text(values.median), processes))
    if not medians:
        return Answer("Speed", "No speed was measured", "", ("No process has timed steps",))
    if len(medians) == 1:
        ((name, value, processes),) = medians
        return Answer(f"Median of {name}", value, "", (processes, hint))
    lines = [f"{name}: median {value}, {processes}" for name, value, processes in medians]
    title = "Benchmarks of other programs"
    further = len(lines) - _MOST_NAMED
    more = [f"and {further} more, under {title}"] if further > 0 else []
    return Answer(title, f"{len(lines)} benchmarks", "", (*lines[:_MOST_NAMED], *more, hint))


def baseline_answer(results: ReportSubject) -> Answer | None:
    """Returns the answer about the comparison with a baseline: its outcome and its worst
    configurations. Without a baseline, it is the `speed_answer`.
    """
    comparison = results.comparison
    if comparison is None:
        return speed_answer(results)
    ending = verdicts.exit_code_meaning(comparison)
    _, *lines = verdicts.summary_lines(comparison)
    tone = {0: "good", 1: "bad", 4: "bad"}.get(int(comparison.exit_code), "unsure")
    if ending == Verdict.CHANGED_WORK.value:
        tone = ""
    name = f"{comparison.new_label} against {comparison.base_label}"
    outcome = verdicts.all_verdict_counts_text(comparison)
    if comparison.same_code is not None:
        outcome = ""  # The headline says that the code is the same.
    elif comparison.exit_code is not ExitCode.INCONCLUSIVE:
        outcome = f"{ending[0].upper()}{ending[1:]}: {outcome}"
    elif len(comparison.entries) == 1:
        outcome = ""  # The headline contains the outcome.
    details = (
        *comparison.lines_below_headline,
        *lines,
        outcome,
        *_worst_result_texts(comparison),
        *_mean_texts(comparison),
    )
    return Answer(name, comparison.headline, tone, tuple(filter(None, details)))


def _worst_result_texts(comparison: Comparison) -> list[str]:
    """Returns texts about the results that set the exit code, except the worst one, about which
    the answer of the comparison is.
    """
    texts = []
    worst = next(iter(comparison.deciding_configurations), None)
    for entry in comparison.by_severity():
        for result in entry.results:
            if entry is worst and result is entry.main:
                continue
            if result.verdict is Verdict.CHANGED_WORK:
                texts.append(f"{entry.name}: {result.judgement.reason}")
            elif comparison.annotation_level(entry, result) is AnnotationLevel.ERROR:
                decisive = entry.deciding_result(result)
                of = "" if decisive is result else " CPU time"
                change = ""
                if result.judgement.change is not None:
                    change = f"{of} {phrases.change_text(*decisive.interval)}"
                texts.append(f"{entry.name}: {result.metric.name} {result.word}{change}")
    texts = list(dict.fromkeys(texts))
    more = count_text(len(texts) - _MOST_NAMED, "more configuration", "more configurations")
    return texts[:_MOST_NAMED] + ([f"and {more}"] if len(texts) > _MOST_NAMED else [])


def _mean_texts(comparison: Comparison) -> list[str]:
    return [f"{mean[0].upper()}{mean[1:]}" for mean in verdicts.mean_sentences(comparison)]


def _changes_chart(comparison: Comparison, metric: Metric) -> Iterator[RowChart]:
    """Yields a chart of the changes of a metric, if any change is known."""
    judged = _results_with_change(comparison, metric)
    if not judged:
        return
    shared, labels = split_off_common_parts([entry.name.split(", ") for entry, _ in judged])
    rows = [
        DistributionRow(
            label=label,
            values=((result.judgement.change or 0.0, _hint(label, result)),),
            low=result.judgement.low,
            high=result.judgement.high,
            text=metric.change_text(result.judgement.change or 0.0),
            tone=verdicts.verdict_tone(comparison, entry, result),
        )
        for (entry, result), label in zip(judged, labels, strict=True)
    ]
    of = f" of {shared}" if shared else ""
    interval = f"its {verdicts.confidence_text(comparison)} interval"
    yield RowChart(
        title=f"Change of {metric.name}{of} against the baseline",
        x=Axis(
            label=f"change of {metric.name}",
            format="percent" if metric.relative else "number",
            better=HIGHER if metric.higher_is_better else LOWER,
        ),
        rows=tuple(rows),
        limit=(0.0, "no change"),
        note=legend_text(rows, dot="the estimated change", band=interval),
    )


def _hint(label: str, result: MetricResult) -> str:
    return f"{label}: {result.word} {phrases.change_text(*result.interval)}"


_MOST_STRIPS = 3
"""Maximum number of configurations whose processes are drawn: the worst ones."""

_LEAST_SPAN = 0.05
"""Minimum length of an axis of processes, as a share of the values, so that small noise does not
fill the chart.
"""


def _process_charts(comparison: Comparison, metric: Metric) -> Iterator[RowChart]:
    """Yields a strip plot for each of the worst configurations whose change is known: each process
    of BASE and NEW is a dot, on a common axis.
    """
    format = "number"
    if metric.unit == "bytes":
        format = "bytes"
    elif metric.unit_text != metric.unit:
        format = "percent"
    axis = Axis(
        label=metric.title if format == "number" else metric.name,
        format=format,
        better=HIGHER if metric.higher_is_better else LOWER,
        least_span=_LEAST_SPAN,
    )
    for entry, result in _results_with_change(comparison, metric)[:_MOST_STRIPS]:
        sides = (ValuesByProcess(tuple(values)) for values in (result.base, result.new))
        chart = process_chart(
            f"{entry.name}: {metric.name} of each process",
            axis,
            zip(comparison.names, sides, strict=True),
        )
        if draw.begins_above_zero(axis, (*result.base, *result.new)):
            chart = replace(chart, note=f"{chart.note} The axis does not begin at 0.")
        yield chart


def _results_with_change(
    comparison: Comparison, metric: Metric
) -> list[tuple[ComparedConfiguration, MetricResult]]:
    return [
        pair for pair in comparison.deciding_results(metric) if pair[1].judgement.change is not None
    ]


def explanation_section(results: ReportSubject) -> Iterable[Content]:
    """Yields the section about the causes of a difference: the answer, a chart of the largest rows,
    the causes, and all rows as a table.
    """
    for explained in results.explanations:
        yield from _explanation_contents(explained)


def explanation_answers(results: ReportSubject) -> Iterator[Answer]:
    """Yields an answer for each explanation of `cnnbench explain`."""
    for study in results.studies:
        if isinstance(study, Explanation):
            sides = (study.base_label, study.new_label)
            yield Answer("Why B differs from A", study.answer, "", sides)


def _explanation_contents(explained: Explanation) -> Iterable[Content]:
    yield explained.answer
    yield [differences_chart(explained)]
    yield make_table(
        {
            "cause": cause.place,
            "difference, ms": numeric_cell(cause.difference, signed_ms),
            "A, ms": numeric_cell(cause.base, in_ms),
            "B, ms": numeric_cell(cause.new, in_ms),
            "what": TableCell("; ".join((cause.text, *cause.evidence_not_in_text)), kinds="prose"),
        }
        for cause in explained.causes
    )
    yield rows_table(explained, title="The largest rows, mean of a step")
    yield rows_table(explained, 0, title="All rows", folded=True)
    facts = ({"fact": change.fact, "A": change.base, "B": change.new} for change in explained.facts)
    yield make_table(facts, title="Also different", folded=True)
    yield measurement_sentence(explained)
