"""The best flags of a network and their proof, from `cnnbench tune`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import partial

from cnnbench.base.charts import HIGHER, Axis, DistributionRow, Rows, key_of
from cnnbench.base.text.numbers import count, duration, integer, percent
from cnnbench.judge.report.document import (
    Answer,
    Block,
    Charts,
    Section,
    TableColumn,
    Text,
    interval,
    numeric,
    section,
    table,
)
from cnnbench.judge.report.results import ReportSubject, apart
from cnnbench.records.tune import (
    AS_GIVEN,
    FASTER,
    OPEN,
    SAME,
    SLOWER,
    RefusedCandidate,
    TuneDocument,
    TuneRow,
)

_MOST_DRAWN = 12
_MODEL = "--model="
_signed = partial(percent, signed=True)


def best_flags(results: ReportSubject) -> Section | None:
    """The proven command line and all candidates of every search."""
    if not results.tunings:
        return None
    text = (
        "Candidates ran in rounds of short processes, in random order; those that were slower "
        "beyond doubt left, and the last one was measured in pairs against the flags as they were "
        "given (cnnbench tune). Gains of the table are estimates from all rounds; that of the "
        "verdict is from the pairs alone."
    )
    blocks: list[Block | None] = [Text(text=text)]
    for one in results.tunings:
        name = network(one)
        verdict, tone = _verdict(one)
        spent = f"{duration(one.seconds)} of {duration(one.budget_seconds)}"
        words = (verdict, one.reason, one.weights, f"it took {spent}")
        said = " ".join(f"{word[:1].upper()}{word[1:].rstrip('.')}." for word in words if word)
        blocks += [
            table(_COMMANDS, [one], title=name),
            Text(text=said, tone=tone),
            Charts(charts=_charts(one, name)),
            table(_COLUMNS, one.rows, title=f"{name}: candidates"),
            table(_REFUSED, one.refused, title=f"{name}: candidates that cannot run", folded=True),
        ]
    return section("flags", "Best flags", *blocks)


def proofs(results: ReportSubject) -> Iterable[Answer]:
    """The verdict and command line of every search."""
    for one in results.tunings:
        text, tone = _verdict(one)
        details = (f"{_of_command(one)}: {shlex.join(one.command)}", one.weights, one.failure)
        yield Answer(
            name=f"Best flags of {network(one)}",
            text=text,
            tone=tone,
            details=tuple(filter(None, details)),
        )


def _verdict(one: TuneDocument) -> tuple[str, str]:
    pairs = count(one.pairs, "pair", "pairs")
    if one.verdict == FASTER:
        gain = percent(one.gain)
        if one.low is not None and one.high is not None:
            gain += f" ({percent(one.low).removesuffix(' %')} to {percent(one.high)})"
        if one.trains_alike is False:
            return f"{one.leader} is {gain} faster, but trains other weights", "bad"
        return f"{gain} faster than the flags as given, {pairs}", "good"
    if one.verdict == OPEN and one.leader == AS_GIVEN:
        return "no candidate was tried", "unsure"
    if one.verdict == OPEN:
        return f"it is not proven that {one.leader} is faster than the flags as given", "unsure"
    if one.verdict in (SAME, SLOWER):
        how = "as fast as" if one.verdict == SAME else "slower than"
        return f"{one.leader} is {how} the flags as given", ""
    return "no candidate was faster than the flags as given", ""


def _of_command(one: TuneDocument) -> str:
    """The candidate of the document's command line: the leader only if proven."""
    return one.leader if one.proven else AS_GIVEN


def network(one: TuneDocument) -> str:
    """The network whose flags were searched."""
    words = (word.removeprefix(_MODEL) for word in one.command if word.startswith(_MODEL))
    return next(words, "the default network")


def _charts(one: TuneDocument, name: str) -> tuple[Rows, ...]:
    measured = [row for row in one.rows if row.gain is not None and row.candidate != AS_GIVEN]
    if not measured:
        return ()
    drawn = measured[:_MOST_DRAWN]
    shared, labels = apart([row.candidate.split(" ") for row in drawn], " ")
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
    note = key_of(rows, dot="the estimate from all rounds", band="its 95 % interval")
    if len(measured) > len(drawn):
        note += f" {len(drawn)} of {len(measured)} candidates are shown."
    return (
        Rows(
            title=f"{name}: gain over the flags as given{shared and f', all with {shared}'}",
            x=Axis(label="speed above the flags as given", format="percent", better=HIGHER),
            rows=rows,
            limit=0.0,
            limit_label="as given",
            note=note,
        ),
    )


def _left(row: TuneRow) -> str:
    if not row.left:
        return ""
    when = "" if row.after is None else f" after round {row.after} of {row.group}"
    return f"{row.left}{when}{': ' if row.reason else ''}{row.reason}"


_COMMANDS: tuple[TableColumn[TuneDocument], ...] = (
    TableColumn("flags", _of_command),
    TableColumn("command", lambda one: shlex.join(one.command), "command"),
)
_COLUMNS: tuple[TableColumn[TuneRow], ...] = (
    TableColumn(
        "candidate",
        lambda row: row.candidate + (f" ({', '.join(row.changes)})" if row.changes else ""),
    ),
    numeric("gain", lambda row: row.gain, _signed),
    interval(
        "95 % interval",
        lambda row: None if row.low is None or row.high is None else (row.low, row.high),
        _signed,
    ),
    numeric("median images/sec", lambda row: row.images_per_sec),
    numeric("processes", lambda row: row.processes, integer),
    TableColumn("left", _left, "prose"),
)
_REFUSED: tuple[TableColumn[RefusedCandidate], ...] = (
    TableColumn("candidate", lambda row: row.candidate),
    TableColumn("group", lambda row: row.group),
    TableColumn("reason", lambda row: row.reason, "prose"),
)
