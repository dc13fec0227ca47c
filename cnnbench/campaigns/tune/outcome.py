"""The result of a search as a document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cnnbench.base.stats.additive import Additive, fit_blocks, student_quantile
from cnnbench.base.stats.descriptive import median
from cnnbench.campaigns.launch.tasks import JobLayout, run_words
from cnnbench.campaigns.tune.final import Proof, Weights
from cnnbench.campaigns.tune.search import SearchOutcome
from cnnbench.campaigns.tune.space import Candidate, Space
from cnnbench.records.tune import FASTER, RefusedCandidate, TuneDocument, TuneRow

UNTRIED = "untried"
"""Mark of a candidate that was not measured for lack of time."""

CONFIDENCE = 0.95
"""Of the intervals of estimates from the races."""


def document(
    space: Space,
    first: Candidate,
    found: SearchOutcome,
    proof: Proof,
    weights: Weights,
    *,
    started_at: str,
    search_command: Sequence[str],
    seed: int,
    seconds: float,
    budget_seconds: float,
    layout: JobLayout | None = None,
) -> TuneDocument:
    """Makes the document of a search; `first` has the given flags."""
    fitted = fit_blocks(found.blocks) if found.blocks else None
    proven = proof.verdict == FASTER and weights.alike is not False
    chosen = found.leader if proven else first
    return TuneDocument(
        started_at=started_at,
        search_command=tuple(search_command),
        command=("cnnbench", *_words(layout, chosen.flags)),
        verdict=proof.verdict,
        reason=proof.reason,
        leader=found.leader.name,
        gain=proof.gain,
        low=proof.low,
        high=proof.high,
        confidence=proof.confidence,
        pairs=proof.pairs,
        weights=weights.text,
        trains_alike=weights.alike,
        given=first.flags,
        seed=seed,
        seconds=seconds,
        budget_seconds=budget_seconds,
        scatter=None if fitted is None else fitted.scatter,
        failure=proof.failure,
        rows=(*_measured(found, fitted, first), *_untried(found)),
        refused=tuple(
            RefusedCandidate(group=race.name, candidate=one.name, reason=one.reason)
            for race in found.races
            for one in race.dropped
            if not one.repeats
        ),
    )


def _words(layout: JobLayout | None, flags: Sequence[str]) -> tuple[str, ...]:
    words = run_words(layout, flags)
    return words[1:] if layout is None and flags else words  # "run" may be left out


def _measured(found: SearchOutcome, fitted: Additive | None, first: Candidate) -> list[TuneRow]:
    groups = {one.key: race.name for race in reversed(found.races) for one in race.candidates}
    leavers = found.leavers
    rows = []
    for one in found.candidates:
        speeds = [math.exp(values[one.key]) for values in found.rounds if one.key in values]
        _, left = leavers.get(one.key, ("", None))
        rows.append(
            TuneRow(
                candidate=one.name,
                flags=one.flags,
                changes=one.changes,
                group=groups[one.key],
                processes=len(speeds),
                images_per_sec=median(speeds) if speeds else None,
                **_gain(fitted, one.key, first.key),
                left="" if left is None else left.how,
                after=None if left is None else left.after,
                reason="" if left is None else left.reason,
            )
        )
    return sorted(rows, key=lambda row: -math.inf if row.gain is None else row.gain, reverse=True)


def _gain(fitted: Additive | None, key: str, first: str) -> dict[str, float | None]:
    if fitted is None or key not in fitted.names or first not in fitted.names:
        return {}
    difference, error = fitted.difference(key, first), fitted.deviation(key, first)
    found: dict[str, float | None] = {"gain": math.expm1(difference)}
    if error is not None and key != first:
        reach = error * student_quantile((1 - CONFIDENCE) / 2, fitted.freedom)
        found["low"], found["high"] = math.expm1(difference - reach), math.expm1(difference + reach)
    return found


def _untried(found: SearchOutcome) -> list[TuneRow]:
    measured = {one.key for one in found.candidates}
    return [
        TuneRow(
            candidate=one.name,
            flags=one.flags,
            changes=one.changes,
            group=race.name,
            left=UNTRIED,
            reason="no time for it",
        )
        for race in found.races
        for one in race.untried
        if one.key not in measured
    ]


def estimates(
    blocks: Sequence[Sequence[Mapping[str, float]]], first: str
) -> dict[str, list[tuple[int, float]]]:
    """Estimates of each candidate's gain against `first`, by key, as points of a curve.

    A point has the number of a round (from 1) that the candidate ran in, and the gain by then.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for number in range(1, len(blocks) + 1):
        fitted = fit_blocks(blocks[:number])
        if first not in fitted.names:
            continue
        for key in (key for block in blocks[number - 1] for key in block):
            gain = math.expm1(fitted.difference(key, first))
            found.setdefault(key, []).append((number, gain))
    return found
