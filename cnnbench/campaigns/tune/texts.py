"""The results of a search as table, CSV, flag file and chart."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from dataclasses import fields as fields_of

from cnnbench.base.charts import HIGHER, Axis, ChartSeries, LineChart
from cnnbench.base.document import Content, Paragraph, make_table
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.inference import fit_additive_blocks
from cnnbench.base.terminal import csv_text, wrap_text
from cnnbench.base.text import count_text, first_few, format_duration, percent, selection_text
from cnnbench.campaigns.tune.race import (
    BEHIND,
    FAILED,
    RACED_SLOWER,
    UNTRIED,
    SearchOutcome,
)
from cnnbench.campaigns.tune.space import (
    Candidate,
    DroppedCandidate,
    SearchSpace,
    candidates_of_group,
    group_names_by_reason,
)
from cnnbench.judge.report.sections.campaigns import RACE_MEDIAN, candidate_row, tune_verdict
from cnnbench.records.campaigns import (
    AS_GIVEN,
    OPEN,
    TuneDocument,
    TuneRow,
)

NEXT = 5
"""Number of candidates in the table besides the leader."""

_NAMED = 6
_REASONS = 5
_DRAWN = 6
_HOWS = {
    RACED_SLOWER: "slower beyond doubt",
    BEHIND: "left behind for lack of time",
    FAILED: "failed",
    UNTRIED: "not tried for lack of time",
}
_CSV_HEADER = ("candidate", "group", "round", "images_per_sec")

FLAG_FILE_HEAD = "# cnnbench tune"


def table_text(tuning: TuneDocument) -> str:
    """The results of a search as text: best command line, proof, and a table of candidates."""
    weights = f"{tuning.weights[:1].upper()}{tuning.weights[1:]}."
    measured = [row for row in tuning.rows if row.processes]
    shown = measured[: NEXT + 1]
    shown += [row for row in measured if row.candidate == AS_GIVEN and row not in shown]
    more = len(measured) - len(shown)
    spent = f"{format_duration(tuning.seconds)} of {format_duration(tuning.budget_seconds)}"
    contents: tuple[Sequence[Content], ...] = (
        (Paragraph(shlex.join(tuning.command), whole=True),),
        (_answer_text(tuning), weights if tuning.weights else None),
        (
            make_table(
                (candidate_row(row, with_elimination_reason=False) for row in shown),
                spare=("processes", RACE_MEDIAN),
            ),
            _gains_text(tuning, shown),
            f"{more} more were measured" if more else None,
        ),
        (
            *_eliminated_texts(tuning.rows),
            *_texts_of_dropped(
                DroppedCandidate(refusal.candidate, refusal.reason) for refusal in tuning.refused
            ),
            None
            if tuning.scatter is None
            else f"{spent}; processes with equal flags varied by {percent(tuning.scatter)} in "
            "the races",
        ),
    )
    return sections_to_text(contents)


def _answer_text(tuning: TuneDocument) -> str:
    text, _ = tune_verdict(tuning)
    if tuning.is_leader_proven_faster:
        return f"{text}."
    why = f": {tuning.reason}" if tuning.verdict == OPEN and tuning.reason else ""
    return f"These are the flags as given: {text}{why}."


def _gains_text(tuning: TuneDocument, shown: Sequence[TuneRow]) -> str | None:
    """What the gains are estimated from, if the table `shown` or the answer contains any."""
    if all(row.gain is None or row.candidate == AS_GIVEN for row in shown):
        return None
    text = "a gain in races is estimated within rounds, not from the medians"
    return text if tuning.gain is None else f"{text}; the answer is from the pairs"


def _eliminated_texts(rows: Sequence[TuneRow]) -> Iterator[Paragraph]:
    for how, title in _HOWS.items():
        eliminated = [row for row in rows if row.left == how]
        if not eliminated:
            continue
        named = []
        for row in eliminated:
            why = "" if how == BEHIND else f": {row.reason}"
            when = "" if how == UNTRIED else f" ({row.group} {row.after}{why})"
            named.append(f"{row.candidate}{when}")
        yield Paragraph(f"{title}: {first_few(named, _NAMED)}", hanging=2)


def _texts_of_dropped(dropped: Iterable[DroppedCandidate]) -> Iterator[Paragraph]:
    by_reasons = group_names_by_reason(dropped)
    for reason, names in list(by_reasons.items())[:_REASONS]:
        yield Paragraph(f"cannot run: {reason}: {first_few(names, 2)}", hanging=2)
    if len(by_reasons) > _REASONS:
        more = count_text(len(by_reasons) - _REASONS, "other reason", "other reasons")
        yield Paragraph(f"cannot run for {more}: --list names all")


def candidates_text(space: SearchSpace, first: Candidate) -> str:
    """Text for --list: the candidates of each group, and dropped candidates by reason."""
    lines = []
    for name, choices in space.groups.items():
        candidates, dropped = candidates_of_group(space, choices, first)
        lines.append(f"{name}: {count_text(len(candidates), 'candidate', 'candidates')}")
        for candidate in candidates:
            marked = f" ({', '.join(candidate.changes)})" if candidate.changes else ""
            lines.append(f"  {candidate.name}{marked}")
        for reason, names in group_names_by_reason(dropped).items():
            lines += wrap_text(f"dropped: {reason}: {'; '.join(names)}", "  ", "    ")
    return "\n".join(lines)


def candidates_csv(tuning: TuneDocument) -> str:
    """Results of a search as CSV with one line for each candidate. Numbers are not rounded."""
    header = [field.name for field in fields_of(TuneRow)]
    rows = (
        {
            **asdict(row),
            "flags": shlex.join(row.flags),
            "variables": shlex.join(assignments(row.variables)),
            "changes": " ".join(row.changes),
        }
        for row in tuning.rows
    )
    return csv_text(header, (row.values() for row in rows))


def processes_csv(outcome: SearchOutcome) -> str:
    """Speeds in the races as CSV with one line for each process. Numbers are not rounded."""
    rows = [
        (candidate.name, race.group, at, math.exp(values[candidate.key]))
        for race in outcome.races
        for at, values in enumerate(race.rounds, start=1)
        for candidate in race.candidates
        if candidate.key in values
    ]
    return csv_text(_CSV_HEADER, rows)


def flag_file_text(tuning: TuneDocument) -> str:
    """The flags of a search's best command line, in the format of ``--flagfile``.

    A flag file cannot set environment variables, so they are in comments.
    """
    # In the command line of a job, the flags of its processes follow "--".
    behind = tuning.command.index("--") if "--" in tuning.command else 0
    flags = [word for word in tuning.command[behind + 1 :] if word.startswith("--")]
    variables = [
        f"# Set this environment variable, too: {one}" for one in command_variables(tuning)
    ]
    return "\n".join([f"{FLAG_FILE_HEAD}: {_answer_text(tuning)}", *variables, *flags]) + "\n"


def command_variables(tuning: TuneDocument) -> tuple[str, ...]:
    """The environment variables of a search's best command line, such as "LD_PRELOAD=lib.so"."""
    return tuple(map(shlex.quote, tuning.command[1 : tuning.command.index("cnnbench")]))


def assignments(variables: Mapping[str, str]) -> list[str]:
    """Environment variables as words of a command line, such as "LD_PRELOAD=lib.so"."""
    return [f"{name}={value}" for name, value in variables.items()]


def _gain_estimates(
    blocks: Sequence[Sequence[Mapping[str, float]]], first: str
) -> dict[str, list[tuple[int, float]]]:
    """Estimated speed gains of all candidates against the candidate `first`, by candidate key.

    Each gain is a list of points for a chart. A point consists of the number of a round (from 1) in
    which the candidate ran, and the estimate after that round.
    """
    estimates: dict[str, list[tuple[int, float]]] = {}
    for many in range(1, len(blocks) + 1):
        fitted = fit_additive_blocks(blocks[:many])
        if first not in fitted.names:
            continue
        for key in (key for block in blocks[many - 1] for key in block):
            gain = math.expm1(fitted.difference(key, first))
            estimates.setdefault(key, []).append((many, gain))
    return estimates


def gains_chart(outcome: SearchOutcome, first: Candidate, title: str) -> LineChart:
    """Draws the estimated speed gains of the fastest candidates after every round."""
    curves = _gain_estimates(outcome.log_speeds_by_round_and_block, first.key)
    names = {candidate.key: candidate.name for candidate in outcome.candidates}
    last = sorted(curves, key=lambda key: curves[key][-1][1], reverse=True)
    drawn = [outcome.leader.key, *(key for key in last if key != outcome.leader.key)][:_DRAWN]
    series = [
        ChartSeries(
            name=names[key],
            points=tuple((float(at), gain) for at, gain in curves[key]),
            hints=tuple(f"{names[key]}: {percent(gain, signed=True)}" for _, gain in curves[key]),
        )
        for key in drawn
        if key in curves
    ]
    which = selection_text(len(series), "fastest", len(curves), "candidate", "candidates")
    rounds = range(1, len(outcome.log_speeds_by_round_and_block) + 1)
    return LineChart(
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
