"""Writes a comparison as text: for a terminal, a pull request, another program or a CI system.

GitHub's workflow commands have the form ``::level title=TITLE::MESSAGE``. GitHub decodes %25, %0D
and %0A everywhere, and %3A and %2C in properties (``@actions/core``). It shows at most ten
annotations of each level per step of a job, so the last annotation summarises the remaining ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TextIO, TypeAlias
from xml.etree import ElementTree as xml

from cnnbench.base.document import (
    Content,
    Paragraph,
    Section,
    TableCell,
    make_table,
    numeric_cell,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.document.markdown import markdown_row
from cnnbench.base.terminal import is_terminal
from cnnbench.base.text import (
    NONE,
    count_text,
    escape_markdown,
    first_few,
    item_count,
    markdown_code,
    p_value,
    percent,
    to_plain_line,
)
from cnnbench.judge.compare.comparability import differing_values_text
from cnnbench.judge.compare.configuration import configuration_name
from cnnbench.judge.compare.estimate import AnnotationLevel, Verdict
from cnnbench.judge.compare.result import (
    USUAL_FAIL_ON,
    ComparedConfiguration,
    Comparison,
    MetricResult,
    SameCode,
)
from cnnbench.judge.metrics import SPEEDS, THROUGHPUT
from cnnbench.records.files import register_file_kind
from cnnbench.records.metric import ALL, Metric

# Creates the tables, words and numbers that all formats use.

Rows: TypeAlias = list[tuple[ComparedConfiguration, MetricResult]]


# Marks are ASCII, so that no meaning depends on a colour or a font.
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
_ENDINGS = {
    0: "no regression",
    3: "undecided",
    4: "the benchmark failed",
    130: "interrupted",
}

_FAILURES = {"slower": "a regression", "faster": "an unexpected gain", "changed": "changed work"}
"""Meanings of exit code 1, by the words of --fail_on."""

_SHOWN = (Verdict.FASTER, Verdict.SLOWER, Verdict.FAILED, Verdict.NOT_MEASURED)
"""Verdicts that the tables of further metrics show."""

_SPREAD = ", and so are changes within the A/A spread"
_SPREAD_OF_PAIRS = (
    "; the A/A spread has no part in the verdict, because A and B run in random order"
)


def exit_code_meaning(comparison: Comparison) -> str:
    """Returns text with the meaning of the comparison's exit code, such as "a regression" or
    "undecided".
    """
    code = comparison.exit_code
    if comparison.same_code is not None:
        return "the measured code is the same"
    if code == 0 and replace(comparison, ends_with=None).exit_code:
        return "an A/A measurement, whatever the verdict"
    if code == 1:
        return " and ".join(_FAILURES[word] for word in comparison.failed_on)
    if code == 3 and comparison.unconfirmed_results:
        return "not confirmed"
    if code == 0 and any(
        result.accepted for entry in comparison.entries for result in entry.results
    ):
        return "an accepted change"
    if code == 0 and replace(comparison, fail_on=USUAL_FAIL_ON).exit_code == 1:
        return "a regression, which --fail_on or a rule does not name"
    return _ENDINGS[code]


def confidence_text(comparison: Comparison) -> str:
    """Returns text with the confidence level of the intervals: "96 %", or "96 to 98 %" if tests
    share the significance level.
    """
    usual = comparison.policy.confidence
    own = (result.judgement.confidence for entry in comparison.entries for result in entry.results)
    all_levels = [usual if level is None else level for level in own] or [usual]
    levels = (min(all_levels), max(all_levels))
    return f"{' to '.join(dict.fromkeys(f'{100 * level:.4g}' for level in levels))} %"


def verdict_tone(comparison: Comparison, entry: ComparedConfiguration, result: MetricResult) -> str:
    """Returns the tone (colour) of a verdict in a table cell: "good", "bad", "unsure" or "".

    "unsure" is only for undecided results. Changed work is neither good nor bad.
    """
    level = comparison.annotation_level(entry, result)
    if result.verdict is Verdict.CHANGED_WORK:
        return ""
    if level is AnnotationLevel.ERROR:
        return "bad"
    if result.is_unconfirmed:
        return "unsure"
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
    leading = comparison.requested_and_deciding_metrics
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
    comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> dict[str, TableCell]:
    """Returns the cells of the table row for a result, by column title: verdict, medians, change,
    interval, p-value and so on.

    The p-value is corrected for interim analyses, metrics and configurations. All numbers are of
    the result's own metric. If the CPU time determined the verdict on the throughput, the verdict
    says so.
    """
    judgement, metric = result.judgement, result.metric
    change, interval = change_column_titles(comparison)
    low, high = judgement.low, judgement.high
    ends = NONE if low is None or high is None else metric.range_text(low, high)
    value = partial(metric.value_text, unit=False)
    runs = f"{item_count(entry.base_runs)}+{item_count(entry.new_runs)}"
    return {
        "verdict": verdict_cell(comparison, entry, result),
        "configuration": TableCell(entry.name),
        "base": numeric_cell(judgement.base_median, value),
        "new": numeric_cell(judgement.new_median, value),
        change: numeric_cell(judgement.change, metric.change_text),
        interval: numeric_cell(low, ends),
        "p": numeric_cell(judgement.p_adjusted, p_value),
        "runs": numeric_cell(len(entry.runs), runs),
    }


def verdict_cell(
    comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> TableCell:
    """Returns a table cell with the mark and the word of a verdict: "- slower"."""
    text = f"{_MARKS[result.verdict]} {_verdict_text(entry, result)}"
    return TableCell(text, tone=verdict_tone(comparison, entry, result))


def _verdict_text(entry: ComparedConfiguration, result: MetricResult) -> str:
    by_cpu_time = entry.deciding_result(result) is not result
    return f"{result.word} by CPU time" if by_cpu_time else result.word


def verdict_counts_text(comparison: Comparison, metric: Metric) -> str:
    """Returns text with the number of configurations for each verdict on a metric, the worst
    verdict first: "1 slower, 2 same".
    """
    tallies = (
        verdicts for verdicts in comparison.summary.tallies if verdicts.metric == metric.name
    )
    return ", ".join(
        f"{verdicts.configurations} {verdicts.verdict.word(metric)}" for verdicts in tallies
    )


def all_verdict_counts_text(comparison: Comparison) -> str:
    """Returns text with the number of configurations for each verdict, for each requested
    metric.
    """
    tallies = {
        metric.name: verdict_counts_text(comparison, metric)
        for metric in comparison.requested_metrics
    }
    if len(tallies) == 1:
        return next(iter(tallies.values())) or "nothing was compared"
    return "; ".join(f"{name} {text}" for name, text in tallies.items())


def pairing_and_floors_sentence(comparison: Comparison) -> str:
    """Returns a sentence that says whether BASE and NEW were compared in pairs, which changes are
    too small to be relevant, and how many configurations were tested together.
    """
    how = "from each process of BASE to each process of NEW"
    text = f"Compared by one value per process: a change is the median of the changes {how}, not "
    text += "the change of the medians"
    if comparison.paired:
        text = (
            "Compared in pairs: a change is estimated from the changes within pairs, not from "
            "the medians"
        )
    for floors in dict.fromkeys(
        filter(
            None, map(partial(_floor_range, comparison), comparison.requested_and_deciding_metrics)
        )
    ):
        text += f"; changes under {_floors_text(*floors)} are ignored"
    judged = [entry.main.judgement for entry in comparison.deciding_configurations]
    if any(judgement.noise is not None for judgement in judged):
        text += _SPREAD_OF_PAIRS if comparison.paired else _SPREAD
    tested = max((judgement.family or 0 for judgement in judged), default=0)
    if tested > 1:
        share = percent(comparison.policy.alpha, 0)
        text += f"; {tested} configurations were tested together: on average, at most {share} of "
        text += "the reported changes are false"
    return f"{text}."


def _floor_range(comparison: Comparison, metric: Metric) -> tuple[float, float, str] | None:
    """Returns the range of the smallest relevant changes of a metric over all configurations, and
    the name that `_floors_text` needs; None if no smallest relevant change is known.
    """
    judged = [result.judgement for _, result in comparison.deciding_results(metric)]
    floors = [judgement.floor for judgement in judged if judgement.floor is not None]
    return (min(floors), max(floors), "" if metric.relative else metric.name) if floors else None


def _floors_text(low: float, high: float, name: str) -> str:
    """Returns text with a range of smallest relevant changes: "3.0 to 5.0 %". `name` is the metric,
    or "" for relative changes.
    """
    metric = ALL[name] if name else THROUGHPUT
    if metric.is_nonzero_after_rounding(high - low):
        return metric.range_text(low, high, signed=False)
    return metric.change_text(low, signed=False)


def mean_sentences(comparison: Comparison) -> Iterator[str]:
    """Yields a sentence for each metric of speed with the geometric mean of its changes, if there
    are several configurations.
    """
    for metric in SPEEDS:
        mean = comparison.geometric_means.get(metric.name)
        if mean is not None and mean.configurations > 1:
            of = count_text(mean.of, "configuration", "configurations")
            of = of if mean.configurations == mean.of else f"{mean.configurations} of {of}"
            yield f"{metric.name} {metric.change_text(mean.change)} in the geometric mean of {of}"


def mentioned_differences(comparison: Comparison) -> list[str]:
    """Returns texts about recorded properties that differ between BASE and NEW but do not prevent a
    verdict.
    """
    values: dict[str, tuple[set[str], set[str]]] = {}
    for entry in comparison.entries:
        for difference in entry.differences:
            if not difference.blocks:
                base, new = values.setdefault(difference.fact, (set(), set()))
                base.update(difference.base)
                new.update(difference.new)
    # The measured code differs on purpose, so its revision is not mentioned.
    # If cnnbench itself was measured, its commit is not mentioned either.
    revision = values.get("subject_revision")
    return [
        differing_values_text(fact, tuple(sorted(base)), tuple(sorted(new)))
        for fact, (base, new) in values.items()
        if not fact.startswith("subject_") and (fact != "git_commit" or (base, new) != revision)
    ]


# Writes tables for a terminal. Colours only emphasise what the text says.

_HANGING = 6


def wants_colour(stream: TextIO) -> bool:
    """Whether text for the stream may be coloured: the stream is a terminal, and NO_COLOR is not
    set.
    """
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def terminal_text(comparison: Comparison, colour: bool = False) -> str:
    """Returns a comparison as text for a terminal: the answer, advice, tables with reasons (worst
    rows first), and a summary.
    """
    return sections_to_text(_table_sections(comparison), colour)


def _table_sections(comparison: Comparison) -> Iterator[Section | Iterable[Content]]:
    yield comparison.answer, comparison.explanation_sentence, comparison.advice
    labels = (f"BASE {comparison.base_label}", f"NEW  {comparison.new_label}")
    yield (Paragraph(label, whole=True) for label in labels)
    for metric, pairs in metric_tables(comparison):
        yield (
            make_table(
                (result_cells(comparison, *pair) for pair in pairs),
                title=f"{metric.name}, median {metric.unit_text}",
                whole=True,
                notes=tuple(
                    "" if result.verdict is Verdict.SAME else result.judgement.reason
                    for _, result in pairs
                ),
            ),
        )
    if comparison.explanation is not None:
        # Only few comparisons have an explanation, and a history has none.
        from cnnbench.judge.explain import explanation

        causes, *others = explanation.terminal_sections(comparison.explanation)
        yield from (["Why, mean milliseconds of a step:", *causes], *others)
    yield _summary_contents(comparison)


def _summary_contents(comparison: Comparison) -> Iterator[Content]:
    for metric in comparison.metrics:
        if text := verdict_counts_text(comparison, metric):
            yield Paragraph(f"{metric.name}: {text}", whole=True)
    notes = (f"note: {note}" for note in comparison.notes)
    how = [] if comparison.same_code else [pairing_and_floors_sentence(comparison)]
    for sentence in (*mean_sentences(comparison), *how, *notes):
        yield Paragraph(sentence, hanging=_HANGING)
    if facts := mentioned_differences(comparison):
        yield "Also different:"
        yield from (Paragraph(fact, indent=_HANGING) for fact in facts)
    if comparison.skipped:
        yield f"skipped: {count_text(len(comparison.skipped), 'file', 'files')}"
    yield f"exit code {int(comparison.exit_code)}: {exit_code_meaning(comparison)}"


# Writes Markdown for a pull request.
# Text from records and paths is untrusted, and is therefore formatted as code.

LIMIT = 60_000
"""Maximum number of characters in a comment. GitHub accepts 65,536, and counts some of them
twice.
"""

# Maximum numbers of characters of tables and of remarks. Reasons and remarks together get the rest
# of `LIMIT`, at least `_DETAILS`.
_TABLES, _DETAILS, _REMARKS = 28_000, 16_000, 10_000
# Longer names, sentences and commands are cut. A character may become an entity of six characters.
_LONGEST_NAME, _LONGEST_SENTENCE, _LONGEST_COMMAND = 200, 600, 2_000

_SYMBOLS, _CHANGED_WORK = {"good": "🟢", "bad": "🔴", "unsure": "🟡", "": "⚪"}, "🔵"
"""Symbols of verdicts by their tone, and the symbol for changed work."""

_MOST_ANSWERS = 3
"""Maximum number of configurations with changed work that are named before the tables."""


def markdown_comment(comparison: Comparison) -> str:
    """Returns a comparison as Markdown for a pull request: heading, tables and folded details.

    It has at most `LIMIT` characters. Whole lines or sections are left out, which the text says.
    """
    lines = _answer_lines(comparison)
    left_out = []
    room = min(_TABLES, LIMIT - _DETAILS - _character_count(lines))
    for metric, pairs in metric_tables(comparison):
        if not pairs:
            continue
        _, *heads = result_cells(comparison, *pairs[0])
        head = markdown_row((f"{metric.name}, median {metric.unit_text}", *heads))
        rows = [_result_row(comparison, entry, result) for entry, result in pairs]
        rows = _lines_that_fit(rows, room, markdown_row(("…", "{} more", *[""] * 6)))
        table = [head, "|---|---|--:|--:|--:|--:|--:|--:|", *rows, ""]
        if _character_count(table) > room + _LONGEST_NAME:
            left_out.append(f"the table of {metric.name}")
        else:
            lines += table
            room -= _character_count(table)
    if comparison.explanation is not None:
        from cnnbench.judge.explain.explanation import markdown_details

        body = [*markdown_details(comparison.explanation), ""]
        if _character_count([*lines, *body]) > LIMIT - _DETAILS:
            left_out.append("the explanation")
        else:
            lines += body
    if left_out:
        names = first_few(left_out, _MOST_ANSWERS, ", ")
        lines += [f"This comment is too long for {names}. cnnbench compare shows them.", ""]
    room = LIMIT - _character_count(lines)
    if comparison.same_code is not None:
        details = _files_that_differ(comparison.same_code, room)
    else:
        details = _folded_details(comparison, room)
    return "\n".join([*lines, *details]) + "\n"


def _files_that_differ(same: SameCode, room: int) -> list[str]:
    files = [f"- {_code(path)}" for path in same.files]
    head = ["<details><summary>The files that differ</summary>", ""]
    shown = _lines_that_fit(files, min(room, _DETAILS), "- … and {} more")
    return [*head, *shown, "", "</details>"] if files else []


def _answer_lines(comparison: Comparison) -> list[str]:
    """The heading of a comment, the answer, and the configurations with changed work."""
    causes, sentences = [], [comparison.answer]
    if comparison.explanation is not None:
        from cnnbench.judge.explain.explanation import markdown_causes

        causes = markdown_causes(comparison.explanation)[:_MOST_ANSWERS]
        sentences += [comparison.explanation_sentence] if causes else []
    shown = [escape_markdown(_cut(line, _LONGEST_SENTENCE)) for line in sentences]
    if causes:
        shown.append("\n".join(causes))
    if comparison.advice:
        shown.append(escape_markdown(_cut(comparison.advice, _LONGEST_SENTENCE)))
    # Readers of the comment do not have the folder of the results.
    if comparison.repeat:
        shown.append(f"Repeat: {_code(comparison.repeat, _LONGEST_COMMAND)}")
    elif comparison.next_step:
        shown.append(f"Next: {_code(comparison.next_step, _LONGEST_COMMAND)}")
    counts = all_verdict_counts_text(comparison)
    if comparison.same_code is not None:
        counts = "not measured"
    lines = [
        f"### cnnbench: {exit_code_meaning(comparison)}",
        "",
        "\n\n".join(shown),
        "",
        f"{_code(comparison.base_label)} → {_code(comparison.new_label)}: {counts}.",
        "",
    ]
    answers = [
        f"- {_CHANGED_WORK} {_code(entry.name)}: "
        f"{escape_markdown(_cut(entry.main.judgement.reason, _LONGEST_SENTENCE))}"
        for entry in comparison.deciding_configurations
        if entry.main.verdict is Verdict.CHANGED_WORK
    ]
    return [*lines, *answers[:_MOST_ANSWERS], ""] if answers else lines


def _result_row(comparison: Comparison, entry: ComparedConfiguration, result: MetricResult) -> str:
    _, _, *numbers = result_cells(comparison, entry, result).values()
    symbol = _SYMBOLS[verdict_tone(comparison, entry, result)]
    symbol = _CHANGED_WORK if result.verdict is Verdict.CHANGED_WORK else symbol
    return markdown_row(
        (
            f"{symbol} {_verdict_text(entry, result)}",
            _code(entry.name),
            *(cell.text for cell in numbers),
        )
    )


def _folded_details(comparison: Comparison, room: int) -> list[str]:
    reasons = [
        f"- {_code(entry.name)}: {_reason_markdown(result)}"
        for _, rows in metric_tables(comparison)
        for entry, result in rows
        if result.verdict is not Verdict.SAME
    ]
    head = ["<details><summary>Why, and how it was judged</summary>", ""]
    lines = [f"- {mean}" for mean in mean_sentences(comparison)]
    lines += [
        f"- {metric.name}: {text}"
        for metric in comparison.metrics
        if metric not in comparison.requested_and_deciding_metrics
        and (text := verdict_counts_text(comparison, metric))
    ]
    lines.append(f"- {pairing_and_floors_sentence(comparison)}")
    remarks = {
        "note": comparison.notes,
        "also different": mentioned_differences(comparison),
        "skipped": [str(file) for file in comparison.skipped],
    }
    lines += [
        f"- {kind}: {_code(text, _LONGEST_SENTENCE)}"
        for kind, texts in remarks.items()
        for text in texts
    ]
    shown = _lines_that_fit(lines, _REMARKS, "- … and {} lines more")
    reasons = _lines_that_fit(
        reasons, room - _character_count([*head, *shown]) - 100, "- … and {} reasons more"
    )
    return [*head, *reasons, *shown, "", "</details>"]


def _reason_markdown(result: MetricResult) -> str:
    if result.judgement.p is None:
        return f"{result.word}: {_code(result.judgement.reason, _LONGEST_SENTENCE)}"
    return verdict_with_reason(result)


def _code(text: str, longest: int = _LONGEST_NAME) -> str:
    return markdown_code(_cut(text, longest))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _character_count(lines: Sequence[str]) -> int:
    return sum(len(line) + 1 for line in lines)


def _lines_that_fit(lines: Sequence[str], room: int, more: str) -> list[str]:
    """Returns the first lines that fit into `room` characters. If lines are left out, the last line
    is `more`, in which {} is replaced by their number.
    """
    for index, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return [*lines[:index], more.format(len(lines) - index)]
    return list(lines)


# Writes workflow commands of GitHub Actions, which add annotations to a check.

_MOST_ANNOTATIONS = 10


def workflow_commands(comparison: Comparison) -> str:
    """Returns a comparison as GitHub workflow commands, one in each line: errors, then warnings,
    then notices.
    """
    annotations = [
        (
            comparison.annotation_level(entry, result),
            f"{entry.name}: {result.metric.name}",
            _annotation_message(result),
        )
        for entry in comparison.by_severity()
        for result in entry.results
    ]
    annotations += [
        (AnnotationLevel.WARNING, "file skipped", str(file))
        for file in comparison.skipped
        if file.defect
    ]
    lines = []
    for level in (AnnotationLevel.ERROR, AnnotationLevel.WARNING, AnnotationLevel.NOTICE):
        # Control characters are removed, because they could forge lines of the log.
        items = [
            (to_plain_line(title), to_plain_line(message))
            for of, title, message in annotations
            if of is level
        ]
        shown = items if len(items) <= _MOST_ANNOTATIONS else items[: _MOST_ANNOTATIONS - 1]
        lines += [_workflow_command(level, *item) for item in shown]
        if rest := items[len(shown) :]:
            others = "\n".join(map(": ".join, rest))
            lines.append(_workflow_command(level, f"{len(rest)} more", others))
    text = "\n".join(map(to_plain_line, comparison.opening_lines))
    lines.append(_workflow_command(AnnotationLevel.NOTICE, "cnnbench compare", text))
    return "".join(f"{line}\n" for line in lines)


def _annotation_message(result: MetricResult) -> str:
    judgement = result.judgement
    if result.verdict is Verdict.CHANGED_WORK:
        return judgement.reason
    values = ""
    if judgement.base_median is not None and judgement.new_median is not None:
        base = result.metric.value_text(judgement.base_median)
        values = f" (medians {base} -> {result.metric.value_text(judgement.new_median)})"
    return f"{result.word}{values}: {judgement.reason}"


def _workflow_command(level: AnnotationLevel, title: str, message: str) -> str:
    return f"::{level.value} title={_escape_command(title, ':,')}::{_escape_command(message)}"


def _escape_command(text: str, further: str = "") -> str:
    for character in ("%", "\r", "\n", *further):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


# Writes JUnit XML with a test case for each configuration and metric.

_SUITE = "cnnbench compare"


def junit_xml(comparison: Comparison) -> str:
    """Returns a comparison as JUnit XML. Regressions are failures, failed runs are errors, and
    warnings are skipped test cases.
    """
    suites = xml.Element("testsuites", name=_SUITE)
    for metric in comparison.metrics:
        if own := comparison.results_of_metric(metric):
            suite = xml.SubElement(suites, "testsuite", name=f"{_SUITE}: {metric.name}")
            if comparison.repeated_pairs:
                properties = xml.SubElement(suite, "properties")
                value = str(comparison.repeated_pairs)
                xml.SubElement(properties, "property", name="repeated_pairs", value=value)
            for entry, result in own:
                _add_result(suite, comparison, entry, result)
    if comparison.same_code is not None:
        suite = xml.SubElement(suites, "testsuite", name=f"{_SUITE}: code")
        _add_test_case(suite, "cnnbench.code", exit_code_meaning(comparison))
    if len(suites):
        xml.SubElement(suites[0], "system-out").text = "\n".join(
            map(to_plain_line, comparison.opening_lines)
        )
    if comparison.skipped:
        suite = xml.SubElement(suites, "testsuite", name=f"{_SUITE}: files")
        for file in comparison.skipped:
            case = _add_test_case(suite, "cnnbench.files", file.path)
            xml.SubElement(case, "skipped", message=to_plain_line(file.reason))
    for suite in suites:
        counted = {"tests": "", "failures": "/failure", "errors": "/error", "skipped": "/skipped"}
        for name, tag in counted.items():
            suite.set(name, str(len(suite.findall(f"testcase{tag}"))))
    xml.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + xml.tostring(suites, "unicode") + "\n"


def _add_test_case(suite: xml.Element, classname: str, name: str) -> xml.Element:
    return xml.SubElement(
        suite, "testcase", classname=classname, name=to_plain_line(name), time="0"
    )


def _add_result(
    suite: xml.Element, comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> None:
    # Programs track cases by name, so a name must not depend on other configurations.
    name = f"{configuration_name(entry.configuration)} [{entry.configuration.key}]"
    case = _add_test_case(suite, f"cnnbench.{result.metric.name}", name)
    level, failed = comparison.annotation_level(entry, result), result.verdict is Verdict.FAILED
    tag = (
        "skipped"
        if level is AnnotationLevel.WARNING or failed or result.verdict.is_undecided
        else ""
    )
    if level is AnnotationLevel.ERROR:
        tag = "error" if failed else "failure"
    if tag:
        xml.SubElement(
            case, tag, message=to_plain_line(verdict_with_reason(result)), type=result.word
        )
    xml.SubElement(case, "system-out").text = to_plain_line(
        _numbers_text(comparison, entry, result)
    )


def _numbers_text(
    comparison: Comparison, entry: ComparedConfiguration, result: MetricResult
) -> str:
    judgement, metric = result.judgement, result.metric
    base, new = map(metric.value_text, (judgement.base_median, judgement.new_median))
    cells = {title: cell.text for title, cell in result_cells(comparison, entry, result).items()}
    titles = change_column_titles(comparison)
    change, interval = (cells[title] for title in titles)
    return (
        f"medians: base {base}, new {new}; {titles[0]} {change} ({interval}), p {cells['p']}, "
        f"runs {cells['runs']}: {judgement.reason}"
    )


FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "table": terminal_text,
    "markdown": markdown_comment,
    "json": Comparison.to_json,
    "junit": junit_xml,
    "github": workflow_commands,
}
"""Maps the name of a format to the function that writes a comparison in this format."""

register_file_kind("junit", rb'<\?xml[^>]*>\s*<testsuites name="cnnbench')
register_file_kind("github", rb"::(error|warning|notice) title=")


def render(comparison: Comparison, format: str) -> str:
    """Returns a comparison in one of the formats in `FORMATS`, without colours. Raises KeyError for
    other formats.
    """
    return FORMATS[format](comparison)
