"""Converts a comparison to blocks, from which all formats are written: the answer, tables by
metric, reasons.

`blocks` is the only function that turns a comparison into text and tables. Writers of formats know
nothing about comparisons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TypeAlias

from cnnbench.base.document import (
    CommandLine,
    Content,
    Items,
    Paragraph,
    Section,
    TableCell,
    make_table,
    numeric_cell,
    quantity_cell,
)
from cnnbench.base.text import NONE, capitalized, compact_number, count_text, p_value, percent
from cnnbench.judge.compare import ComparedConfiguration, Comparison, MetricResult, Verdict
from cnnbench.judge.compare.comparability import differing_values_text
from cnnbench.judge.compare.verdicts import USUAL_FAIL_ON, AnnotationLevel
from cnnbench.judge.metrics.judged import SPEEDS
from cnnbench.records.metric import Metric

Rows: TypeAlias = list[tuple[ComparedConfiguration, MetricResult]]


# Marks are ASCII characters, so that they can be read without colours and in every font.
_MARKS: dict[Verdict, str] = {
    Verdict.FASTER: "+",
    Verdict.SLOWER: "-",
    Verdict.SAME: "=",
    Verdict.NOT_SLOWER: ">",
    Verdict.NOT_FASTER: "<",
    Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_MEASURED: "?",
    Verdict.CHANGED_WORK: "#",
    Verdict.NOT_COMPARABLE: "x",
    Verdict.MISSING: "o",
    Verdict.FAILED: "!",
}

_SHOWN = (Verdict.FASTER, Verdict.SLOWER, Verdict.FAILED, Verdict.NOT_MEASURED)
"""Verdicts that the tables of further metrics show."""

_MOST_CHANGED = 3
"""Maximum number of configurations with changed work that are named before the tables."""


def blocks(comparison: Comparison) -> list[Section]:
    """Returns a comparison as sections without titles: the answer, what was compared, a table for
    each metric with reasons, causes, and how it was judged.
    """
    (clear, why), answer = _causes(comparison), comparison.answer
    changed = _changed_work(comparison, answer)
    tables = (
        Section.of([_table(comparison, *table)], "verdicts") for table in metric_tables(comparison)
    )
    return [
        Section.of(_answer(comparison, answer, clear), "answer"),
        Section.of(_sides(comparison, changed), "sides"),
        *tables,
        *([why] if why is not None else []),
        Section.of(_notes(comparison), "notes"),
        Section.of(_method(comparison), "method"),
    ]


def answer_blocks(comparison: Comparison) -> list[Paragraph | CommandLine]:
    """Returns the answer of a comparison: the answer itself, the cause, the advice and a command,
    as far as they are known.
    """
    answer = Section.of(_answer(comparison, comparison.answer, _causes(comparison)[0]))
    return [block for block in answer.blocks if isinstance(block, (Paragraph, CommandLine))]


def summary_lines(comparison: Comparison) -> list[str]:
    """Returns the texts of the answer of a comparison: the answer, the advice and a command."""
    return [block.text for block in answer_blocks(comparison)]


def _answer(comparison: Comparison, answer: str, clear_cause: str) -> Iterator[Content]:
    yield answer
    yield clear_cause
    yield comparison.advice
    # A comment's readers do not have the folder of results, so they get a command that repeats the
    # measurement.
    if comparison.repeat:
        yield CommandLine(comparison.repeat, "Repeat")
    elif comparison.next_step:
        yield CommandLine(comparison.next_step, "Next")


def _sides(comparison: Comparison, changed: Mapping[str, str]) -> Iterator[Content]:
    yield Paragraph(f"BASE {comparison.base_label}", whole=True)
    yield Paragraph(f"NEW  {comparison.new_label}", whole=True)
    yield from (Paragraph(f"{name}: {reason}", "changed") for name, reason in changed.items())
    if comparison.same_code is not None and comparison.same_code.files:
        files = comparison.same_code.files
        yield Items(texts=files, title="The files that differ", folded=True, about="files")


def _changed_work(comparison: Comparison, answer: str) -> dict[str, str]:
    """Returns the reasons for the verdict "changed work", by the name of the configuration, of the
    first configurations that the answer does not explain.
    """
    results = ((entry.name, entry.main) for entry in comparison.deciding_configurations)
    reasons = (
        (name, main.judgement.reason)
        for name, main in results
        if main.verdict is Verdict.CHANGED_WORK and not _is_said(main.judgement.reason, answer)
    )
    return dict(islice(reasons, _MOST_CHANGED))


def _is_said(text: str, answer: str) -> bool:
    return text.rstrip(".") in answer


def _causes(comparison: Comparison) -> tuple[str, Section | None]:
    """Returns the cause of a difference as a sentence, "" if it is not significant, and the section
    with all causes; None if nothing was profiled.
    """
    if comparison.explanation is None:
        return "", None
    # Imported late, because only few comparisons have an explanation.
    from cnnbench.judge.explain.blocks import explanation_sections

    found = comparison.explanation
    is_clear = found.differs_significantly and not found.by_work
    answer, *parts = explanation_sections(found)
    shown = parts if is_clear else [answer, *parts]
    blocks = tuple(block for part in shown for block in part.blocks)
    section = Section(key="why", title="Why", blocks=blocks, folded=not is_clear)
    return found.answer if is_clear else "", section


def _table(comparison: Comparison, metric: Metric, rows: Rows) -> Content:
    titles = change_column_titles(comparison)
    cells = (result_cells(comparison, *row, titles) for row in rows)
    title = f"{metric.name}, median {metric.unit_text}"
    return make_table(cells, title=title, whole=True, notes=tuple(_notes_of(comparison, rows)))


def _notes_of(comparison: Comparison, rows: Rows) -> list[str]:
    """Returns the note of each verdict; "" if something above the tables already says it."""
    answer = comparison.answer
    changed = _changed_work(comparison, answer)
    return [
        "" if entry.name in changed and result is entry.main else _note(result, answer)
        for entry, result in rows
    ]


def reasons(comparison: Comparison) -> list[str]:
    """Returns the notes of the verdicts that are as bad as the worst, each with the name of its
    configuration if there are several.
    """
    rows = [row for _, rows in metric_tables(comparison) for row in rows]
    worst = rows[0][0].main.verdict if rows else None
    several = len(comparison.entries) > 1
    return [
        f"{entry.name}: {note}" if several else capitalized(note)
        for (entry, _), note in zip(rows, _notes_of(comparison, rows), strict=True)
        if note and entry.main.verdict is worst
    ]


def _note(result: MetricResult, answer: str) -> str:
    """Returns the note of a verdict, unless the table or the answer already says it; then ""."""
    judgement = result.judgement
    note = judgement.reason if judgement.note is None else judgement.note
    return "" if result.verdict is Verdict.SAME or _is_said(note, answer) else note


def _notes(comparison: Comparison) -> Iterator[Content]:
    notes = tuple(f"note: {note}" for note in comparison.notes)
    yield Items(texts=notes, about="notes")
    skipped = tuple(f"skipped: {file}" for file in comparison.skipped)
    yield Items(texts=skipped, about="skipped files")


def _method(comparison: Comparison) -> Iterator[Content]:
    texts = []
    if len(comparison.entries) > 1:
        counts = ((one.name, counts_text(comparison, one)) for one in comparison.metrics)
        texts += [f"{metric}: {text}" for metric, text in counts if text]
    texts += mean_sentences(comparison)
    if comparison.same_code is None:
        texts.append(pairing_sentence(comparison))
    texts += [f"also different: {text}" for text in mentioned_differences(comparison)]
    texts.append(f"exit code {int(comparison.exit_code)}: {exit_code_meaning(comparison)}")
    yield Items(texts=tuple(texts), title="How it was judged", folded=True, about="lines")


# Words and numbers of a comparison.

_MEANINGS = {0: "no regression", 3: "undecided", 4: "the benchmark failed", 130: "interrupted"}
_FAILURES = {"slower": "a regression", "faster": "an unexpected gain", "changed": "changed work"}
"""Meanings of exit code 1, by the words of --fail_on."""


def exit_code_meaning(comparison: Comparison) -> str:
    """Returns text with the meaning of the comparison's exit code, such as "a regression" or
    "undecided".
    """
    code = comparison.exit_code
    if comparison.same_code is not None:
        return "the measured code is the same"
    if code == 1:
        return " and ".join(_FAILURES[word] for word in comparison.failed_on)
    if code == 0 and any(
        result.accepted for entry in comparison.entries for result in entry.results
    ):
        return "an accepted change"
    if code == 0 and replace(comparison, fail_on=USUAL_FAIL_ON).exit_code == 1:
        return "a regression, which --fail_on or a rule does not name"
    return _MEANINGS[code]


def confidence_text(comparison: Comparison) -> str:
    """Returns text with the confidence level of the intervals: "96 %", or "96 to 98 %" if tests
    share the significance level.
    """
    usual = comparison.policy.confidence
    own = (result.judgement.confidence for entry in comparison.entries for result in entry.results)
    levels = [usual if level is None else level for level in own] or [usual]
    ends = dict.fromkeys(compact_number(100 * level) for level in (min(levels), max(levels)))
    return f"{' to '.join(ends)} %"


def verdict_tone(comparison: Comparison, entry: ComparedConfiguration, result: MetricResult) -> str:
    """Returns the tone (colour) of a verdict in a table cell: "good", "bad", "unsure", "changed" or
    "".

    "unsure" is only for undecided results. Changed work is neither good nor bad.
    """
    level = comparison.annotation_level(entry, result)
    if result.verdict is Verdict.CHANGED_WORK:
        return "changed"
    if level is AnnotationLevel.ERROR:
        return "bad"
    if result.verdict is Verdict.FASTER:
        return "good"
    if level is AnnotationLevel.WARNING:
        return "bad" if result.verdict is Verdict.SLOWER else "unsure"
    return ""


def verdict_with_reason(result: MetricResult) -> str:
    """Returns text with the word for a verdict and the reason. If the first 40 characters of the
    reason contain this word, returns only the reason.
    """
    reason = result.judgement.reason
    return reason if f" {result.word}" in reason[:40] else f"{result.word}: {reason}"


def metric_tables(comparison: Comparison) -> list[tuple[Metric, Rows]]:
    """Returns the metrics to show, each with the rows of its table. Requested metrics are first,
    with all configurations, worst first.

    Tables of further metrics contain only results that are neither inconclusive nor the same. They
    also contain the configurations that do not affect the exit code.
    """
    leading = comparison.leading_metrics
    further = [
        (entry, result)
        for entry in comparison.by_severity()
        for result in entry.results
        if result.verdict in _SHOWN and not (entry.affects_exit_code and result.metric in leading)
    ]
    by_metric = (
        (metric, [row for row in further if row[1].metric is metric])
        for metric in comparison.metrics
    )
    return [
        *((metric, comparison.deciding_results(metric)) for metric in leading),
        *((metric, rows) for metric, rows in by_metric if rows),
    ]


def change_column_titles(comparison: Comparison) -> tuple[str, str]:
    """Returns the titles of the table columns with the change and its confidence interval.

    If BASE and NEW were compared in pairs, the title says so, because the change then differs from
    the change of the medians in the same row.
    """
    change = "paired change" if comparison.paired else "change"
    return change, f"{confidence_text(comparison)} interval"


def result_cells(
    comparison: Comparison,
    entry: ComparedConfiguration,
    result: MetricResult,
    titles: tuple[str, str] | None = None,
) -> dict[str, TableCell]:
    """Returns the cells of the table row for a result, by column title: verdict, change, interval,
    medians, p-value and so on. A narrow window cuts off the last ones.

    The p-value is corrected for interim analyses, metrics and configurations. All numbers are of
    the result's own metric. If the CPU time determined the verdict on the throughput, the verdict
    says so. `titles` are the `change_column_titles`, if they are known.
    """
    judgement, metric = result.judgement, result.metric
    change, interval = titles or change_column_titles(comparison)
    low, high = judgement.low, judgement.high
    ends = NONE if low is None or high is None else metric.range_text(low, high)
    runs = f"{len(entry.base_runs)}+{len(entry.new_runs)}"
    by_cpu_time = entry.deciding_result(result) is not result
    word = f"{result.word} by CPU time" if by_cpu_time else result.word
    tone = verdict_tone(comparison, entry, result)
    return {
        "configuration": TableCell(entry.name),
        "verdict": TableCell(word, tone=tone, mark=_MARKS[result.verdict]),
        change: numeric_cell(judgement.change, metric.change_text, why=judgement.reason),
        interval: numeric_cell(low, ends),
        "base": quantity_cell(judgement.base_median, metric.unit),
        "new": quantity_cell(judgement.new_median, metric.unit),
        "p": numeric_cell(judgement.p_adjusted, p_value),
        "runs": numeric_cell(len(entry.runs), runs),
    }


def counts_text(comparison: Comparison, metric: Metric) -> str:
    """Returns text with the number of configurations for each verdict on a metric, the worst
    verdict first: "1 slower, 2 same".
    """
    counts = Counter(result.verdict for _, result in comparison.results_of_metric(metric))
    return ", ".join(f"{counts[one]} {one.word(metric)}" for one in Verdict if counts[one])


def all_counts_text(comparison: Comparison) -> str:
    """Returns text with the number of configurations by verdict, for each requested metric."""
    tallies = {
        metric.name: counts_text(comparison, metric) for metric in comparison.requested_metrics
    }
    if len(tallies) == 1:
        return next(iter(tallies.values())) or "nothing was compared"
    return "; ".join(f"{name} {text}" for name, text in tallies.items())


def pairing_sentence(comparison: Comparison) -> str:
    """Returns a sentence that says whether BASE and NEW were compared in pairs, which changes are
    too small to be relevant, and how many configurations were tested together.
    """
    how = (
        "Compared by one value per process: a change is the median of the changes from each "
        "process of BASE to each process of NEW, not the change of the medians"
    )
    if comparison.paired:
        how = "Compared in pairs: a change is estimated from the changes within pairs, not from "
        how += "the medians"
    parts = [how, *(f"changes under {text} are ignored" for text in _floor_texts(comparison))]
    judged = [entry.main.judgement for entry in comparison.deciding_configurations]
    tested = max((judgement.family or 0 for judgement in judged), default=0)
    if tested > 1:
        share = percent(comparison.policy.alpha, 0)
        text = f"{tested} configurations were tested together: on average, at most {share} of the "
        parts.append(f"{text}reported changes are false")
    return f"{'; '.join(parts)}."


def _floor_texts(comparison: Comparison) -> list[str]:
    """Returns the range of the smallest relevant changes of each metric over all configurations,
    such as "3.0 to 5.0 %". Equal ranges of relative changes have one text.
    """
    texts: dict[tuple[float, float, str], str] = {}
    for metric in comparison.leading_metrics:
        judged = (result.judgement.floor for _, result in comparison.deciding_results(metric))
        if floors := [floor for floor in judged if floor is not None]:
            low, high = min(floors), max(floors)
            text = metric.change_text(low, signed=False)
            if metric.shows_change(high - low):
                text = metric.range_text(low, high, signed=False)
            texts.setdefault((low, high, "" if metric.relative else metric.name), text)
    return [*texts.values()]


def mean_sentences(comparison: Comparison) -> Iterator[str]:
    """Yields a sentence for each metric of speed with the geometric mean of its changes, if there
    are several configurations.
    """
    for metric in SPEEDS:
        mean = comparison.geometric_means.get(metric.name)
        if mean is not None and mean.configurations > 1:
            of = count_text(mean.of, "configuration", "configurations")
            if mean.configurations != mean.of:
                of = f"{mean.configurations} of {of}"
            yield f"{metric.name} {metric.change_text(mean.change)} in the geometric mean of {of}"


def mentioned_differences(comparison: Comparison) -> list[str]:
    """Returns texts about recorded properties that differ but do not prevent a verdict."""
    values: dict[str, tuple[set[str], set[str]]] = {}
    for entry in comparison.entries:
        for difference in entry.differences:
            if not difference.blocks:
                base, new = values.setdefault(difference.fact, (set(), set()))
                base.update(difference.base)
                new.update(difference.new)
    # The measured code differs on purpose, so its revision is not listed as a difference, and
    # neither is the commit of cnnbench if it is the measured code.
    revision = values.get("subject_revision")
    return [
        differing_values_text(fact, tuple(sorted(base)), tuple(sorted(new)))
        for fact, (base, new) in values.items()
        if not fact.startswith("subject_") and (fact != "git_commit" or (base, new) != revision)
    ]
