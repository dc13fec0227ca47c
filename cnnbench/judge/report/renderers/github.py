"""A comparison as workflow commands of GitHub Actions: annotations of a check.

The commands are ``::level title=TITLE::MESSAGE``. GitHub decodes %25, %0D and %0A everywhere and
%3A and %2C in properties (``@actions/core``). It shows ten annotations of a level per step, so the
last one summarises the rest.
"""

from __future__ import annotations

from cnnbench.base.text import plain
from cnnbench.judge.compare.judgement import Level, Verdict
from cnnbench.judge.compare.result import Comparison, MetricResult

_SHOWN = 10


def render(comparison: Comparison) -> str:
    """One command per line: errors, then warnings, then notices."""
    found = [
        (comparison.level(entry, result), f"{entry.name}: {result.metric.name}", _message(result))
        for entry in comparison.by_severity()
        for result in entry.results
    ]
    found += [(Level.WARNING, "file skipped", str(one)) for one in comparison.skipped if one.defect]
    lines = []
    for level in (Level.ERROR, Level.WARNING, Level.NOTICE):
        # Control characters could forge log lines.
        items = [(plain(title), plain(message)) for of, title, message in found if of is level]
        shown = items if len(items) <= _SHOWN else items[: _SHOWN - 1]
        lines += [_command(level, *item) for item in shown]
        if rest := items[len(shown) :]:
            others = "\n".join(map(": ".join, rest))
            lines.append(_command(level, f"{len(rest)} more", others))
    told = "\n".join(map(plain, comparison.opening))
    lines.append(_command(Level.NOTICE, "cnnbench compare", told))
    return "".join(f"{line}\n" for line in lines)


def _message(result: MetricResult) -> str:
    judgement = result.judgement
    if result.verdict is Verdict.CHANGED_WORK:
        return judgement.reason
    values = ""
    if judgement.base_median is not None and judgement.new_median is not None:
        base = result.metric.value_text(judgement.base_median)
        values = f" ({base} -> {result.metric.value_text(judgement.new_median)})"
    return f"{result.word}{values}: {judgement.reason}"


def _command(level: Level, title: str, message: str) -> str:
    return f"::{level.value} title={_escape(title, ':,')}::{_escape(message)}"


def _escape(text: str, further: str = "") -> str:
    for character in ("%", "\r", "\n", *further):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
