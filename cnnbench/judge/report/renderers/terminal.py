"""A comparison as a table for a terminal; colours only repeat the words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TextIO

from cnnbench.base.document import Content, Section, Text, table, writers
from cnnbench.base.terminal import is_terminal
from cnnbench.base.text import count
from cnnbench.judge.compare.judgement import Verdict
from cnnbench.judge.compare.result import Comparison
from cnnbench.judge.explain import explanation
from cnnbench.judge.report.renderers import wording

_INDENT = 6


def wants_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal and NO_COLOR is not set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def render(comparison: Comparison, colour: bool = False) -> str:
    """The answer, the advice, the tables with reasons, the worst first, and a summary."""
    return writers.text_of(_sections(comparison), colour)


def _sections(comparison: Comparison) -> Iterator[Section | Iterable[Content]]:
    yield comparison.answer, comparison.why, comparison.advice
    labels = (f"BASE {comparison.base_label}", f"NEW  {comparison.new_label}")
    yield (Text(label, whole=True) for label in labels)
    for metric, found in wording.tables(comparison):
        yield (
            table(
                (wording.row(comparison, *one) for one in found),
                title=f"{metric.name}, median {metric.unit_text}",
                whole=True,
                notes=tuple(
                    "" if result.verdict is Verdict.SAME else result.judgement.reason
                    for _, result in found
                ),
            ),
        )
    if comparison.explanation is not None:
        causes, *others = explanation.sections(comparison.explanation)
        yield from (["Why, milliseconds of a step:", *causes], *others)
    yield _summary(comparison)


def _summary(comparison: Comparison) -> Iterator[Content]:
    for metric in comparison.metrics:
        if found := wording.tally(comparison, metric):
            yield Text(f"{metric.name}: {found}", whole=True)
    notes = (f"note: {note}" for note in comparison.notes)
    for sentence in (*wording.mean_sentences(comparison), wording.conditions(comparison), *notes):
        yield Text(sentence, hanging=_INDENT)
    if mentions := wording.mentions(comparison):
        yield "Also different:"
        yield from (Text(mention, indent=_INDENT) for mention in mentions)
    if comparison.skipped:
        yield f"skipped: {count(len(comparison.skipped), 'file', 'files')}"
    yield f"exit code {int(comparison.exit_code)}: {wording.ending(comparison)}"
