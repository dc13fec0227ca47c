"""The results of `cnnbench tune`: blocks for all formats, and answers of a report."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from cnnbench.base.charts import HIGHER, Axis, DistributionRow, RowChart, legend_text
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
from cnnbench.base.stats import ValuesByProcess, group_by
from cnnbench.base.text import (
    capitalized,
    count_text,
    first_few,
    format_duration,
    percent,
    percent_range,
)
from cnnbench.judge.report.results import ReportSubject, split_common
from cnnbench.records.campaigns import (
    AS_GIVEN,
    FASTER,
    NONE,
    NOT_FASTER,
    OPEN,
    SAME,
    SLOWER,
    TuneDocument,
    TuneRow,
)

_COMPARED = {SAME: "as fast as", SLOWER: "slower than", NOT_FASTER: "not faster than"}
_LEFT = {
    "slower": "slower beyond doubt",
    "behind": "left behind for lack of time",
    "failed": "failed",
    "untried": "not tried for lack of time",
}

_NEXT = 5
"""Number of candidates in the table of a summary, besides the leader."""

_MOST_NAMED, _MOST_REASONS, _MOST_DRAWN = 6, 5, 12
_MODEL = "--model="
_signed = partial(percent, signed=True)


def search_sections(document: TuneDocument, full: bool = False) -> list[Section]:
    """The result of a search for the fastest flags: the command line, the answer, the candidates,
    and the candidates that left the races or cannot run.

    Unless it is in `full`, the fastest candidates are in a table, and sentences name the others.
    """
    network = searched_network(document)
    _, tone = search_verdict(document)
    command, name = shlex.join(document.command), _command_candidate(document)
    cell = TableCell(command, kinds="command")
    reason = document.reason if full and document.verdict not in (NONE, OPEN) else ""
    said = filter(None, (reason, _changes_text(document)))
    sentences = (f"{capitalized(text).rstrip('.')}." for text in said)
    shown = [*document.rows] if full else _fastest_rows(document)
    more = len([row for row in document.rows if row.processes]) - len(shown)
    title = f"{network}: candidates" if full else ""
    contents: tuple[Iterable[Content], ...] = (
        (
            make_table([{"flags": name, "command": cell}], title=network)
            if full
            else Paragraph(command, whole=True),
        ),
        (Paragraph(answer_sentence(document), tone), *sentences, _time_sentence(document)),
        (
            [*_gains_chart(document, network)],
            make_table(
                (_candidate_row(row, full) for row in shown),
                title=title,
                spare=("processes", RACE_MEDIAN),
            ),
            _gains_sentence(document, shown),
            f"{more} more were measured." if more > 0 and not full else None,
        ),
        _refused_table(document, network) if full else _left_and_refused(document),
    )
    return [Section.of(one) for one in contents]


@prepend_docstring
def best_flags_section(results: ReportSubject) -> Iterable[Content]:
    """A search for the fastest flags (cnnbench tune). Candidates ran in races: rounds of short
    processes, in random order. Significantly slower candidates were eliminated. The last candidate
    was measured in pairs against the given flags. A gain in the races is estimated within the
    rounds, so it differs from the change of the medians. The gain in the verdict is estimated only
    from the pairs.
    """
    for document in results.tunings:
        for section in search_sections(document, full=True):
            yield from section.blocks


def search_verdict_answers(results: ReportSubject) -> Iterator[Answer]:
    """Yields an answer for each `cnnbench tune` search: its verdict and the best command line."""
    for document in results.tunings:
        text, tone = search_verdict(document)
        details = (
            f"{_command_candidate(document)}: {shlex.join(document.command)}",
            _changes_text(document),
            document.failure,
        )
        title = f"Best flags of {searched_network(document)}"
        yield Answer(title, text, tone, tuple(filter(None, details)))


def search_verdict(document: TuneDocument) -> tuple[str, str]:
    """Returns the outcome of a `cnnbench tune` search as text, and the tone of the answer: "good",
    "unsure" or "".
    """
    if document.verdict == FASTER:
        gain = percent(document.gain)
        if document.low is not None and document.high is not None:
            gain += f" ({percent_range(document.low, document.high)})"
        pairs = count_text(document.pairs, "pair", "pairs")
        return f"{gain} faster than the flags as given, {pairs}", "good"
    if document.verdict == OPEN and document.leader == AS_GIVEN:
        return "no candidate was tried", "unsure"
    if document.verdict == OPEN:
        text = f"it is not proven that {document.leader} is faster than the flags as given"
        return text, "unsure"
    if document.verdict in _COMPARED:
        return f"{document.leader} is {_COMPARED[document.verdict]} the flags as given", ""
    return "no candidate was faster than the flags as given", ""


def answer_sentence(document: TuneDocument) -> str:
    """The outcome of a search as a sentence, which says whether the flags are those as given."""
    text, _ = search_verdict(document)
    if document.verdict == FASTER:
        return f"{text}."
    if document.verdict in (NONE, OPEN) and document.reason:
        return f"These are the flags as given: {text}: {document.reason}."
    return f"These are the flags as given: {text}."


def _time_sentence(document: TuneDocument) -> str:
    budget = format_duration(document.budget_seconds)
    text = f"It took {format_duration(document.seconds)} of {budget}"
    if document.scatter is None:
        return f"{text}."
    return f"{text}; processes with equal flags varied by {percent(document.scatter)} in the races."


def _fastest_rows(document: TuneDocument) -> list[TuneRow]:
    """The fastest measured candidates, and the flags as given."""
    measured = [row for row in document.rows if row.processes]
    shown = measured[: _NEXT + 1]
    return shown + [row for row in measured if row.candidate == AS_GIVEN and row not in shown]


def _gains_sentence(document: TuneDocument, shown: Sequence[TuneRow]) -> str | None:
    """A sentence on how gains are estimated; None if the table `shown` contains none."""
    if all(row.gain is None or row.candidate == AS_GIVEN for row in shown):
        return None
    text = "A gain in races is estimated within rounds, not from the medians"
    return f"{text}." if document.gain is None else f"{text}; the answer is from the pairs."


def _left_and_refused(document: TuneDocument) -> Iterator[Content]:
    for how, title in _LEFT.items():
        names = [_dropped_text(row) for row in document.rows if row.left == how]
        if names:
            yield Paragraph(f"{title}: {first_few(names, _MOST_NAMED)}", hanging=2)
    by_reason = group_by(document.refused, lambda refused: refused.reason)
    for reason, refused in list(by_reason.items())[:_MOST_REASONS]:
        names = [candidate.candidate for candidate in refused]
        yield Paragraph(f"cannot run: {reason}: {first_few(names, 2)}", hanging=2)
    if len(by_reason) > _MOST_REASONS:
        reasons = count_text(len(by_reason) - _MOST_REASONS, "other reason", "other reasons")
        yield f"cannot run for {reasons}: --list names all"


def _dropped_text(row: TuneRow) -> str:
    """The name of a candidate that left the races, with its last round and the reason."""
    if row.left == "untried":
        return row.candidate
    if row.left == "behind":
        return f"{row.candidate} ({row.group} {row.after})"
    return f"{row.candidate} ({row.group} {row.after}: {row.reason})"


def _refused_table(document: TuneDocument, network: str) -> Iterator[Content]:
    rows: Iterable[Row] = (
        {
            "candidate": row.candidate,
            "group": row.group,
            "reason": TableCell(row.reason, kinds="prose"),
        }
        for row in document.refused
    )
    yield make_table(rows, title=f"{network}: candidates that cannot run", folded=True)


def _command_candidate(document: TuneDocument) -> str:
    """Returns the name of the candidate in the final command line of a search: the fastest
    candidate if its gain is proven, otherwise the given flags.
    """
    return document.leader if document.verdict == FASTER else AS_GIVEN


def _changes_text(document: TuneDocument) -> str:
    """What the fastest flags train differently than the given flags, as text; "" for nothing."""
    best = _command_candidate(document)
    changes = [word for row in document.rows if row.candidate == best for word in row.changes]
    return f"it trains differently: {', '.join(changes)}" if changes else ""


def searched_network(document: TuneDocument) -> str:
    """Returns the name of the network for which a `cnnbench tune` search looked for flags."""
    words = (word.removeprefix(_MODEL) for word in document.command if word.startswith(_MODEL))
    return next(words, "the default network")


RACE_GAIN, RACE_MEDIAN = "gain in races", "median images/sec in races"
"""Titles of columns with numbers of the races, which differ from those of the pairs."""


def _candidate_row(row: TuneRow, with_reason: bool) -> Row:
    """Returns the table cells of a candidate. If `with_reason` is true, they include the reason why
    the candidate left the races.
    """
    left = f"{row.left}, {row.group} {row.after}"
    if with_reason:
        when = "" if row.after is None else f" after round {row.after} of {row.group}"
        left = f"{row.left}{when}{': ' if row.reason else ''}{row.reason}"
    gain = numeric_cell(row.gain, _signed, why="not measured")
    if row.candidate == AS_GIVEN:
        gain = numeric_cell(None, why="the gains of the others are over this one")
    return {
        "candidate": row.candidate + (f" ({', '.join(row.changes)})" if row.changes else ""),
        RACE_GAIN: gain,
        ValuesByProcess.INTERVAL: interval_cell((row.low, row.high), _signed),
        RACE_MEDIAN: numeric_cell(row.images_per_sec),
        "processes": numeric_cell(row.processes),
        "left": TableCell(left if row.left else "", kinds="prose" if with_reason else ""),
    }


def _gains_chart(document: TuneDocument, name: str) -> Iterator[RowChart]:
    """Yields a chart of the gains of the candidates, if any gain was measured."""
    measured = [row for row in document.rows if row.gain is not None and row.candidate != AS_GIVEN]
    if not measured:
        return
    drawn = measured[:_MOST_DRAWN]
    shared, labels = split_common([row.candidate.split(" ") for row in drawn], " ")
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
