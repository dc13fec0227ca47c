"""Writes the verdicts of a comparison as workflow commands of GitHub Actions, which add annotations
to a check.

The commands have the form ``::level title=TITLE::MESSAGE``. GitHub decodes %25, %0D and %0A
everywhere, and %3A and %2C in properties (``@actions/core``). It shows at most ten annotations of
each level per step of a job, so the last annotation summarises the remaining ones.
"""

from __future__ import annotations

from cnnbench.base.escapes import to_plain_line
from cnnbench.judge.compare import Comparison, MetricResult, Verdict
from cnnbench.judge.compare.verdicts import AnnotationLevel
from cnnbench.judge.report.comparison import summary_lines, verdict_with_reason

_MOST_ANNOTATIONS = 10


def workflow_commands(comparison: Comparison) -> str:
    """Returns a comparison as workflow commands, one a line: errors, warnings, notices."""
    annotations = [
        (
            comparison.annotation_level(entry, result),
            f"{entry.name}: {result.metric.name}",
            _message(result),
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
        # Control characters could forge lines of the log, so they are removed.
        items = [
            (to_plain_line(title), to_plain_line(message))
            for of, title, message in annotations
            if of is level
        ]
        shown = items if len(items) <= _MOST_ANNOTATIONS else items[: _MOST_ANNOTATIONS - 1]
        lines += [_command(level, *item) for item in shown]
        if rest := items[len(shown) :]:
            others = "\n".join(map(": ".join, rest))
            lines.append(_command(level, f"{len(rest)} more", others))
    text = "\n".join(map(to_plain_line, summary_lines(comparison)))
    lines.append(_command(AnnotationLevel.NOTICE, "cnnbench compare", text))
    return "".join(f"{line}\n" for line in lines)


def _message(result: MetricResult) -> str:
    judgement, text = result.judgement, result.metric.value_text
    medians = judgement.base_median, judgement.new_median
    if result.verdict is Verdict.CHANGED_WORK:
        return judgement.reason
    message = verdict_with_reason(result)
    if None in medians:
        return message
    base, new = (text(median) for median in medians)
    return f"{message}; medians {base} -> {new}"


def _command(level: AnnotationLevel, title: str, message: str) -> str:
    return f"::{level.value} title={_escape(title, ':,')}::{_escape(message)}"


def _escape(text: str, further: str = "") -> str:
    for character in ("%", "\r", "\n", *further):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
