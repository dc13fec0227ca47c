"""A comparison as Markdown for a pull request.

What comes from records and paths may hold anything, so it goes out as code; see
`cnnbench.inert`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.comparison.metrics import Metric
from cnnbench.comparison.render import words
from cnnbench.comparison.result import Comparison, Entry, Result
from cnnbench.comparison.verdict import Verdict
from cnnbench.inert import code

_SIGNS = {
    Verdict.FASTER: "🟢",
    Verdict.SLOWER: "🔴",
    Verdict.SAME: "⚪",
    Verdict.INCONCLUSIVE: "🟡",
    Verdict.NOT_COMPARABLE: "🟡",
    Verdict.MISSING: "🟡",
    Verdict.FAILED: "🔴",
}


def render(comparison: Comparison) -> str:
    """A heading, a table per metric that says something, and the details folded away."""
    lines = [
        f"### cnnbench: {words.ENDINGS[comparison.exit_code]}",
        "",
        f"{code(comparison.base_label)} → {code(comparison.new_label)}: "
        f"{words.outcome(comparison)}.",
        "",
    ]
    leading = comparison.leading
    for metric in leading:
        rows = comparison.about(metric)
        if rows:
            title = [f"**{metric.name}**", ""] if len(leading) > 1 else []
            lines += [*title, *_table(comparison, metric, rows), ""]
    further = words.also(comparison)
    for metric in comparison.metrics:
        of_metric = [(entry, result) for entry, result in further if result.metric is metric]
        if of_metric:
            lines += [f"**{metric.name}**", "", *_table(comparison, metric, of_metric), ""]
    return "\n".join([*lines, *_details(comparison)]) + "\n"


def _table(
    comparison: Comparison, metric: Metric, rows: Sequence[tuple[Entry, Result]]
) -> list[str]:
    unit = "MiB" if metric.unit == "bytes" else metric.unit
    interval = f"{words.confidence(comparison)} interval"
    head = ("", "configuration", f"base {unit}", f"new {unit}", "change", interval, "p", "runs")
    lines = [_row(head), "|---|---|--:|--:|--:|--:|--:|--:|"]
    for entry, result in rows:
        judgement = result.judgement
        lines.append(
            _row(
                (
                    f"{_SIGNS[result.verdict]} {result.word}",
                    code(entry.name),
                    words.value_text(judgement.base_median, metric, unit=False),
                    words.value_text(judgement.new_median, metric, unit=False),
                    words.change(result),
                    words.interval(result),
                    words.p_value(result),
                    words.runs(entry),
                )
            )
        )
    return lines


def _details(comparison: Comparison) -> list[str]:
    """Reasons, conditions, notes and skipped files."""
    reasons = [
        f"- {code(entry.name)} {result.word}: {_reason(result)}"
        for entry, result in (
            *(row for metric in comparison.leading for row in comparison.about(metric)),
            *words.also(comparison),
        )
        if result.verdict is not Verdict.SAME
    ]
    lines = ["<details><summary>Why, and how it was judged</summary>", ""]
    lines += [*reasons, *(f"- {mean}" for mean in words.mean_sentences(comparison))]
    lines += [
        f"- {metric.name}: {found}"
        for metric in comparison.metrics
        if metric not in comparison.leading and (found := words.tally(comparison, metric))
    ]
    lines.append(f"- {words.conditions(comparison)}")
    lines += [f"- note: {code(note)}" for note in comparison.notes]
    lines += [
        f"- also different, not held against the comparison: {code(mention)}"
        for mention in words.mentions(comparison)
    ]
    lines += [f"- skipped: {code(str(one))}" for one in comparison.skipped]
    return [*lines, "", "</details>"]


def _reason(result: Result) -> str:
    """Our own sentences as they are; what quotes records as code."""
    if result.judgement.p is None:
        return code(result.judgement.reason)
    return result.judgement.reason


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
