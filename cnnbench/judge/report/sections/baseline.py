"""The verdicts against a baseline, and where the difference is if processes were profiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cnnbench.base.charts import HIGHER, LOWER, Axis, DistributionRow, Rows, key_of
from cnnbench.base.document import Answer, Content, Row, TableCell, numeric, table
from cnnbench.base.text.numbers import count
from cnnbench.errors import ExitCode
from cnnbench.judge.compare import ComparedConfiguration, Comparison, MetricResult
from cnnbench.judge.compare.judgement import Level, Verdict
from cnnbench.judge.compare.result import opening
from cnnbench.judge.explain.explanation import about, chart, in_ms, rows_table, signed_ms
from cnnbench.judge.metrics.registry import Metric
from cnnbench.judge.report.renderers import wording
from cnnbench.judge.report.results import ReportSubject, apart

_MOST_NAMED = 3


def baseline(results: ReportSubject) -> Iterable[Content]:
    """A table per metric, and the changes with their intervals."""
    comparison = results.comparison
    if comparison is None:
        return
    judged = wording.tables(comparison)
    yield f"Baseline {comparison.base_label}; {comparison.new_label} is judged against it."
    yield [chart for metric in comparison.leading for chart in _changes(comparison, metric)]
    for place, (metric, rows) in enumerate(judged):
        also = f"Also {metric.name}" if place >= len(comparison.leading) else ""
        yield table((_row(comparison, *row) for row in rows), title=also, folded=bool(also))
    reasons: Iterable[Row] = (
        {
            "configuration": entry.name,
            "metric": result.metric.name,
            "verdict": wording.verdict(comparison, entry, result),
            "why": TableCell(result.judgement.reason, kinds="prose"),
        }
        for _, rows in judged
        for entry, result in rows
    )
    yield table(reasons, title="Why", folded=True)
    yield from (f"{mean}." for mean in _means(comparison))
    yield wording.conditions(comparison)
    yield from (f"Note: {note}." for note in comparison.notes)
    if mentions := "; ".join(wording.mentions(comparison)):
        yield f"Also different: {mentions}."
    yield from (f"Skipped: {one}." for one in comparison.skipped)


def verdict(results: ReportSubject) -> Answer:
    """The comparison's outcome with its worst configurations."""
    comparison = results.comparison
    if comparison is None:
        hint = "--baseline=RECORDS judges these records against others"
        return Answer("Verdict", "Not compared with anything", "", (hint,))
    ending = wording.ending(comparison)
    told = opening(comparison)
    tone = {0: "good", 1: "bad", 4: "bad"}.get(int(comparison.exit_code), "unsure")
    if ending == Verdict.CHANGED_WORK.value:
        tone = "unsure"
    name = f"{comparison.new_label} against {comparison.base_label}"
    outcome = wording.outcome(comparison)
    if comparison.exit_code is not ExitCode.INCONCLUSIVE:
        outcome = f"{ending[0].upper()}{ending[1:]}: {outcome}"
    elif len(comparison.entries) == 1:
        outcome = ""  # The answer says it.
    details = (*told[1:], outcome, *_worst(comparison), *_means(comparison))
    return Answer(name, told[0], tone, tuple(filter(None, details)))


def _worst(comparison: Comparison) -> list[str]:
    found = []
    for entry in comparison.by_severity():
        for result in entry.results:
            if result.verdict is Verdict.CHANGED_WORK:
                found.append(f"{entry.name}: {result.judgement.reason}")
            elif comparison.level(entry, result) is Level.ERROR:
                decisive = entry.decided_by(result)
                of = "" if decisive is result else " CPU time"
                change = "" if result.judgement.change is None else f"{of} {decisive.estimate}"
                found.append(f"{entry.name}: {result.metric.name} {result.word}{change}")
    found = list(dict.fromkeys(found))
    more = count(len(found) - _MOST_NAMED, "more configuration", "more configurations")
    return found[:_MOST_NAMED] + ([f"and {more}"] if len(found) > _MOST_NAMED else [])


def _means(comparison: Comparison) -> list[str]:
    return [f"{mean[0].upper()}{mean[1:]}" for mean in wording.mean_sentences(comparison)]


def _row(comparison: Comparison, entry: ComparedConfiguration, result: MetricResult) -> Row:
    """The cells of `wording.row` in the order of a page, some with longer titles."""
    cells, unit = wording.row(comparison, entry, result), result.metric.unit_text
    order = ("configuration", "verdict", *wording.titles(comparison), "base", "new", "p", "runs")
    longer = {"verdict": result.metric.name, "runs": "processes"}
    longer |= {"base": f"baseline median, {unit}", "new": f"new median, {unit}"}
    return {longer.get(title, title): cells[title] for title in order}


def _changes(comparison: Comparison, metric: Metric) -> Iterator[Rows]:
    """The chart of the changes, if there are some."""
    judged = [one for one in comparison.about(metric) if one[1].judgement.change is not None]
    if not judged:
        return
    shared, labels = apart([entry.name.split(", ") for entry, _ in judged])
    rows = [
        DistributionRow(
            label=label,
            values=((result.judgement.change or 0.0, f"{label}: {result.word} {result.estimate}"),),
            low=result.judgement.low,
            high=result.judgement.high,
            text=metric.change_text(result.judgement.change or 0.0),
            tone=wording.tone(comparison, entry, result),
        )
        for (entry, result), label in zip(judged, labels, strict=True)
    ]
    of = f" of {shared}" if shared else ""
    interval = f"its {wording.confidence(comparison)} interval"
    yield Rows(
        title=f"Change of {metric.name}{of} against the baseline",
        x=Axis(
            label=f"change of {metric.name}",
            format="percent" if metric.relative else "number",
            better=HIGHER if metric.higher_is_better else LOWER,
        ),
        rows=tuple(rows),
        limit=(0.0, "no change"),
        note=key_of(rows, dot="the estimated change", band=interval),
    )


def explanation(results: ReportSubject) -> Iterable[Content]:
    """The answer, its causes, the largest rows as a chart and all of them as a table."""
    found = None if results.comparison is None else results.comparison.explanation
    if found is None:
        return
    yield found.answer
    yield [chart(found)]
    yield table(
        {
            "cause": cause.place,
            "difference, ms": numeric(cause.difference, signed_ms),
            "A, ms": numeric(cause.base, in_ms),
            "B, ms": numeric(cause.new, in_ms),
            "what": TableCell("; ".join((cause.text, *cause.further)), kinds="prose"),
        }
        for cause in found.causes
    )
    yield rows_table(found, title="The largest rows, of a step")
    yield rows_table(found, 0, title="All rows", folded=True)
    facts = ({"fact": one.fact, "A": one.base, "B": one.new} for one in found.facts)
    yield table(facts, title="Also different", folded=True)
    yield about(found)
