"""A comparison as workflow commands of GitHub Actions: annotations of a check.

The commands are ``::level title=TITLE::MESSAGE``. GitHub decodes %25, %0D and %0A everywhere and
%3A and %2C in properties (``@actions/core``). It shows ten annotations of a level per step, so the
last one summarises the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

from cnnbench.base.text.escape import plain
from cnnbench.judge.compare.judgement import Level, Verdict
from cnnbench.judge.compare.result import ComparedConfiguration, Comparison, MetricResult, opening

_SHOWN = 10


def render(comparison: Comparison) -> str:
    """One command per line: errors, then warnings, then notices."""
    found: dict[str, list[tuple[str, str]]] = {level.value: [] for level in Level}
    for entry in comparison.by_severity():
        for result in entry.results:
            level = comparison.level(entry, result)
            if level is not Level.NONE:
                found[level.value].append(
                    (f"{entry.name}: {result.metric.name}", _message(entry, result))
                )
    for one in comparison.skipped:
        if one.defect:
            found["warning"].append(("file skipped", str(one)))
    lines = [line for level, items in found.items() for line in _commands(level, items)]
    told = "\n".join(map(plain, opening(comparison)))
    lines.append(_command("notice", "cnnbench compare", told))
    return "".join(f"{line}\n" for line in lines)


def _message(entry: ComparedConfiguration, result: MetricResult) -> str:
    judgement = result.judgement
    if result.verdict is Verdict.CHANGED_WORK:
        return judgement.reason
    values = ""
    if judgement.base_median is not None and judgement.new_median is not None:
        base = result.metric.value_text(judgement.base_median)
        values = f" ({base} -> {result.metric.value_text(judgement.new_median)})"
    return f"{result.word}{values}: {judgement.reason}"


def _commands(level: str, items: list[tuple[str, str]]) -> Iterable[str]:
    # Control characters could forge log lines.
    items = [(plain(title), plain(message)) for title, message in items]
    shown = items if len(items) <= _SHOWN else items[: _SHOWN - 1]
    for title, message in shown:
        yield _command(level, title, message)
    if len(items) > len(shown):
        rest = items[len(shown) :]
        yield _command(level, f"{len(rest)} more", "\n".join(f"{t}: {m}" for t, m in rest))


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_escape(title, ':,')}::{_escape(message)}"


def _escape(text: str, further: str = "") -> str:
    for character in ("%", "\r", "\n", *further):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
