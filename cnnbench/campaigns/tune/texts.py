"""The results of a search as table, CSV, flag file and chart."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from dataclasses import fields as fields_of

from cnnbench.base.additive import fit_additive_blocks
from cnnbench.base.charts import HIGHER, Axis, ChartSeries, LineChart
from cnnbench.base.document import Paragraph, Section
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.stats import group_by
from cnnbench.base.tables import csv_text
from cnnbench.base.text import count_text, percent, selection_text
from cnnbench.campaigns.tune import environment, phrases
from cnnbench.campaigns.tune.race import SearchOutcome
from cnnbench.campaigns.tune.space import Candidate, SearchSpace, candidates_of_group
from cnnbench.judge.report.sections.tune import answer_sentence, search_sections
from cnnbench.records.campaigns import TuneDocument, TuneRow

_DRAWN = 6
_CSV_HEADER = ("candidate", "group", "round", "images_per_sec")

FLAG_FILE_HEAD = "# cnnbench tune"


def table_text(tuning: TuneDocument) -> str:
    """The results of a search as text: best command line, proof, and a table of candidates."""
    return sections_to_text(search_sections(tuning))


def candidates_text(space: SearchSpace, first: Candidate) -> str:
    """Text for --list: the candidates of each group, and dropped candidates by reason."""
    sections = []
    for name, choices in space.groups.items():
        candidates, dropped = candidates_of_group(space, choices, first)
        texts = []
        for candidate in candidates:
            changes = f" ({', '.join(candidate.changes)})" if candidate.changes else ""
            texts.append(Paragraph(f"{candidate.name}{changes}", indent=2, whole=True))
        for reason, group in group_by(dropped, lambda candidate: candidate.reason).items():
            names = "; ".join(candidate.name for candidate in group)
            text = phrases.DROPPED.format(reason=reason, names=names)
            texts.append(Paragraph(text, indent=2, hanging=4))
        count = count_text(candidates, "candidate", "candidates")
        sections.append(Section(title=f"{name}: {count}", blocks=tuple(texts)))
    return sections_to_text(sections)


def candidates_csv(tuning: TuneDocument) -> str:
    """Results of a search as CSV with one line for each candidate. Numbers are not rounded."""
    header = [field.name for field in fields_of(TuneRow)]
    rows = (
        {
            **asdict(row),
            "flags": shlex.join(row.flags),
            "variables": shlex.join(environment.assignments(row.variables)),
            "changes": " ".join(row.changes),
        }
        for row in tuning.rows
    )
    return csv_text(header, (row.values() for row in rows))


def processes_csv(outcome: SearchOutcome) -> str:
    """Speeds in the races as CSV with one line for each process. Numbers are not rounded."""
    rows = [
        (candidate.name, race.group, at, math.exp(block[candidate.key]))
        for race in outcome.races
        for at, blocks in enumerate(race.rounds, start=1)
        for candidate in race.candidates
        for block in blocks
        if candidate.key in block
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
        f"# Set this environment variable, too: {variable}"
        for variable in command_variables(tuning)
    ]
    return "\n".join([f"{FLAG_FILE_HEAD}: {answer_sentence(tuning)}", *variables, *flags]) + "\n"


def command_variables(tuning: TuneDocument) -> tuple[str, ...]:
    """The environment variables of a search's best command line, such as "LD_PRELOAD=lib.so"."""
    return tuple(map(shlex.quote, tuning.command[1 : tuning.command.index("cnnbench")]))


def _gains(
    rounds: Sequence[Sequence[Mapping[str, float]]], first: str
) -> dict[str, list[tuple[int, float]]]:
    """Estimated speed gains of all candidates against the candidate `first`, by candidate key.

    Each gain is a list of points for a chart. A point consists of the number of a round (from 1) in
    which the candidate ran, and the estimate after that round.
    """
    estimates: dict[str, list[tuple[int, float]]] = {}
    for many in range(1, len(rounds) + 1):
        fitted = fit_additive_blocks(rounds[:many])
        if first not in fitted.names:
            continue
        for key in (key for block in rounds[many - 1] for key in block):
            gain = math.expm1(fitted.difference(key, first))
            estimates.setdefault(key, []).append((many, gain))
    return estimates


def gains_chart(outcome: SearchOutcome, first: Candidate, title: str) -> LineChart:
    """Draws the estimated speed gains of the fastest candidates after every round."""
    curves = _gains(outcome.rounds, first.key)
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
    numbers = range(1, len(outcome.rounds) + 1)
    return LineChart(
        title=f"{title}: {which}",
        x=Axis(
            label="round of the races",
            ticks=tuple(map(float, numbers)),
            tick_texts=tuple(map(str, numbers)),
        ),
        y=Axis(label="speed above the flags as given", format="percent", better=HIGHER),
        series=tuple(series),
        note="A curve is an estimate from all rounds so far; it ends where its candidate left.",
    )
