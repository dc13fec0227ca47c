"""A comparison as Markdown for a pull request.

What comes from records and paths may hold anything, so it goes out as code; see
`cnnbench.text.escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cnnbench.compare.result import Comparison, Entry, Result
from cnnbench.metrics.policy import Verdict
from cnnbench.metrics.registry import Metric
from cnnbench.report.renderers import wording
from cnnbench.text.escape import code

_SIGNS = {
    Verdict.FASTER: "🟢",
    Verdict.SLOWER: "🔴",
    Verdict.SAME: "⚪",
    Verdict.INCONCLUSIVE: "🟡",
    Verdict.NOT_COMPARABLE: "🟡",
    Verdict.MISSING: "🟡",
    Verdict.FAILED: "🔴",
}

LIMIT = 65_536
"""Signs that GitHub takes in a comment; it refuses longer ones."""

# For all tables, and for what stands behind the reasons; these have the rest.
_TABLES, _REST = 32_000, 12_000


class _Room:
    """Signs that are left for lines of one sort."""

    def __init__(self, signs: int) -> None:
        self._left = signs

    def taking(self, lines: Sequence[str], more: str) -> Iterable[str]:
        """As many lines as fit, from the first; `more` says of how many that is not so."""
        for index, line in enumerate(lines):
            self._left -= len(line) + 1
            if self._left < 0:
                yield more.format(len(lines) - index)
                return
            yield line


def render(comparison: Comparison) -> str:
    """A heading, a table per metric that says something, and the details folded away.

    What does not fit into a comment on GitHub is left out, the worst last, and counted.
    """
    room = _Room(_TABLES)
    lines = [
        f"### cnnbench: {wording.ENDINGS[comparison.exit_code]}",
        "",
        f"{code(comparison.base_label)} → {code(comparison.new_label)}: "
        f"{wording.outcome(comparison)}.",
        "",
    ]
    leading = comparison.leading
    for metric in leading:
        rows = comparison.about(metric)
        if rows:
            title = [f"**{metric.name}**", ""] if len(leading) > 1 else []
            lines += [*title, *_table(comparison, metric, rows, room), ""]
    further = wording.also(comparison)
    for metric in comparison.metrics:
        of_metric = [(entry, result) for entry, result in further if result.metric is metric]
        if of_metric:
            lines += [f"**{metric.name}**", "", *_table(comparison, metric, of_metric, room), ""]
    text = "\n".join(lines) + "\n"
    return text + "\n".join(_details(comparison, LIMIT - len(text))) + "\n"


def _table(
    comparison: Comparison, metric: Metric, rows: Sequence[tuple[Entry, Result]], room: _Room
) -> list[str]:
    unit = "MiB" if metric.unit == "bytes" else metric.unit
    interval = f"{wording.confidence(comparison)} interval"
    head = ("", "configuration", f"base {unit}", f"new {unit}", "change", interval, "p", "runs")
    lines = [
        _row(
            (
                f"{_SIGNS[result.verdict]} {result.word}",
                code(entry.name),
                wording.value_text(result.judgement.base_median, metric, unit=False),
                wording.value_text(result.judgement.new_median, metric, unit=False),
                wording.change(result),
                wording.interval(result),
                wording.p_value(result),
                wording.runs(entry),
            )
        )
        for entry, result in rows
    ]
    more = _row(("…", "{} more", *[""] * 6))
    return [_row(head), "|---|---|--:|--:|--:|--:|--:|--:|", *room.taking(lines, more)]


def _details(comparison: Comparison, signs: int) -> list[str]:
    """Reasons, conditions, notes and skipped files, in at most so many signs."""
    reasons = [
        f"- {code(entry.name)} {result.word}: {_reason(result)}"
        for entry, result in (
            *(row for metric in comparison.leading for row in comparison.about(metric)),
            *wording.also(comparison),
        )
        if result.verdict is not Verdict.SAME
    ]
    head = ["<details><summary>Why, and how it was judged</summary>", ""]
    lines = [f"- {mean}" for mean in wording.mean_sentences(comparison)]
    lines += [
        f"- {metric.name}: {found}"
        for metric in comparison.metrics
        if metric not in comparison.leading and (found := wording.tally(comparison, metric))
    ]
    lines.append(f"- {wording.conditions(comparison)}")
    lines += [f"- note: {code(note)}" for note in comparison.notes]
    lines += [
        f"- also different, not held against the comparison: {code(mention)}"
        for mention in wording.mentions(comparison)
    ]
    lines += [f"- skipped: {code(str(one))}" for one in comparison.skipped]
    rest = list(_Room(_REST).taking(lines, "- … and {} lines more"))
    room = _Room(signs - sum(len(line) + 1 for line in (*head, *rest)) - 100)
    return [*head, *room.taking(reasons, "- … and {} reasons more"), *rest, "", "</details>"]


def _reason(result: Result) -> str:
    """Our own sentences as they are; what quotes records as code."""
    if result.judgement.p is None:
        return code(result.judgement.reason)
    return result.judgement.reason


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
