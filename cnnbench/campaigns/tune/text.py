"""Results of a search as a table, CSV, a flag file and a chart."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from dataclasses import fields as fields_of

from cnnbench.base.charts import HIGHER, Axis, ChartSeries, Lines
from cnnbench.base.document import Content, Text, table, terminal
from cnnbench.base.stats.additive import fit_blocks
from cnnbench.base.text.numbers import count, duration, first_few, percent, selected
from cnnbench.base.text.table import csv_text, wrapped
from cnnbench.campaigns.tune.race import BEHIND, FAILED, SLOWER, UNTRIED, SearchOutcome
from cnnbench.campaigns.tune.space import Candidate, Dropped, Space, by_reason, candidates_of
from cnnbench.judge.report.sections.campaigns import candidate_row, verdict
from cnnbench.records.tune import AS_GIVEN, OPEN, TuneDocument, TuneRow

NEXT = 5
"""Candidates besides the leader in the table."""

_NAMED = 6
_REASONS = 5
_DRAWN = 6
_HOWS = {
    SLOWER: "slower beyond doubt",
    BEHIND: "left behind for lack of time",
    FAILED: "failed",
    UNTRIED: "not tried for lack of time",
}
_CSV_HEADER = ("candidate", "group", "round", "images_per_sec")

FLAG_FILE_HEAD = "# cnnbench tune"


def table_text(found: TuneDocument) -> str:
    """The best command line, its proof, the next candidates, and why others left."""
    weights = f"{found.weights[:1].upper()}{found.weights[1:]}."
    measured = [row for row in found.rows if row.processes]
    shown = measured[: NEXT + 1]
    shown += [row for row in measured if row.candidate == AS_GIVEN and row not in shown]
    more = len(measured) - len(shown)
    spent = f"{duration(found.seconds)} of {duration(found.budget_seconds)}"
    contents: tuple[Sequence[Content], ...] = (
        (Text(shlex.join(found.command), whole=True),),
        (_answer(found), weights if found.weights else None),
        (
            table(
                (candidate_row(row, long=False) for row in shown),
                spare=("processes", "median images/sec"),
            ),
            f"{more} more were measured" if more else None,
        ),
        (
            *_leavers(found.rows),
            *_refused(Dropped(one.candidate, one.reason) for one in found.refused),
            None
            if found.scatter is None
            else f"{spent}; processes of the same flags scattered by {percent(found.scatter)} in "
            "the races",
        ),
    )
    return terminal.text_of(contents)


def _answer(found: TuneDocument) -> str:
    text, _ = verdict(found)
    if found.proven:
        return f"{text}."
    why = f": {found.reason}" if found.verdict == OPEN and found.reason else ""
    return f"These are the flags as given: {text}{why}."


def _leavers(rows: Sequence[TuneRow]) -> Iterator[Text]:
    for how, title in _HOWS.items():
        found = [row for row in rows if row.left == how]
        if not found:
            continue
        named = []
        for row in found:
            why = "" if how == BEHIND else f": {row.reason}"
            left = "" if how == UNTRIED else f" ({row.group} {row.after}{why})"
            named.append(f"{row.candidate}{left}")
        yield Text(f"{title}: {first_few(named, _NAMED)}", hanging=2)


def _refused(dropped: Iterable[Dropped]) -> Iterator[Text]:
    found = by_reason(dropped)
    for reason, names in list(found.items())[:_REASONS]:
        yield Text(f"cannot run: {reason}: {first_few(names, 2)}", hanging=2)
    if len(found) > _REASONS:
        more = count(len(found) - _REASONS, "other reason", "other reasons")
        yield Text(f"cannot run for {more}: --list names all")


def listed(space: Space, first: Candidate) -> str:
    """The candidates of each group, and the dropped ones by reason, without measurements."""
    lines = []
    for name, choices in space.groups.items():
        candidates, dropped = candidates_of(space, choices, first)
        lines.append(f"{name}: {count(len(candidates), 'candidate', 'candidates')}")
        for candidate in candidates:
            marked = f" ({', '.join(candidate.changes)})" if candidate.changes else ""
            lines.append(f"  {candidate.name}{marked}")
        for reason, names in by_reason(dropped).items():
            lines += wrapped(f"dropped: {reason}: {'; '.join(names)}", "  ", "    ")
    return "\n".join(lines)


def to_csv(found: TuneDocument) -> str:
    """A line per candidate, numbers unrounded."""
    header = [field.name for field in fields_of(TuneRow)]
    rows = (
        {**asdict(row), "flags": shlex.join(row.flags), "changes": " ".join(row.changes)}
        for row in found.rows
    )
    return csv_text(header, (row.values() for row in rows))


def processes_csv(found: SearchOutcome) -> str:
    """A line per process of the races, numbers unrounded."""
    rows = [
        (one.name, race.group, at, math.exp(values[one.key]))
        for race in found.races
        for at, values in enumerate(race.rounds, start=1)
        for one in race.candidates
        if one.key in values
    ]
    return csv_text(_CSV_HEADER, rows)


def flag_file(found: TuneDocument) -> str:
    """The flags of the command line, as ``--flagfile`` reads them."""
    behind = found.command.index("--") if "--" in found.command else 0  # of a job
    flags = [word for word in found.command[behind + 1 :] if word.startswith("--")]
    return "\n".join([f"{FLAG_FILE_HEAD}: {_answer(found)}", *flags]) + "\n"


def _estimates(
    blocks: Sequence[Sequence[Mapping[str, float]]], first: str
) -> dict[str, list[tuple[int, float]]]:
    """Estimates of each candidate's gain against `first`, by key, as points of a curve.

    A point has the number of a round (from 1) that the candidate ran in, and the gain by then.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for many in range(1, len(blocks) + 1):
        fitted = fit_blocks(blocks[:many])
        if first not in fitted.names:
            continue
        for key in (key for block in blocks[many - 1] for key in block):
            gain = math.expm1(fitted.difference(key, first))
            found.setdefault(key, []).append((many, gain))
    return found


def chart(found: SearchOutcome, first: Candidate, title: str) -> Lines:
    """Estimates of the fastest candidates after every round."""
    curves = _estimates(found.blocks, first.key)
    names = {one.key: one.name for one in found.candidates}
    last = sorted(curves, key=lambda key: curves[key][-1][1], reverse=True)
    drawn = [found.leader.key, *(key for key in last if key != found.leader.key)][:_DRAWN]
    series = [
        ChartSeries(
            name=names[key],
            points=tuple((float(at), gain) for at, gain in curves[key]),
            hints=tuple(f"{names[key]}: {percent(gain, signed=True)}" for _, gain in curves[key]),
        )
        for key in drawn
        if key in curves
    ]
    which = selected(len(series), "fastest", len(curves), "candidate", "candidates")
    rounds = range(1, len(found.blocks) + 1)
    return Lines(
        title=f"{title}: {which}",
        x=Axis(
            label="round of the races",
            ticks=tuple(map(float, rounds)),
            tick_texts=tuple(map(str, rounds)),
        ),
        y=Axis(label="speed above the flags as given", format="percent", better=HIGHER),
        series=tuple(series),
        note="A curve is an estimate from all rounds so far; it ends where its candidate left.",
    )
