"""Results directory of an experiment, and the verdict on the pairs in it.

``a/`` and ``b/`` hold one record per process, the i-th of both are a pair; ``discarded/`` those of
burn-in and of incomplete pairs, ``logs/`` the output of the processes, ``explain/`` the later
profiles, ``journal.jsonl`` the events. ``cnnbench compare DIR/a DIR/b --paired`` reads it. Only
records that count are named ``*.json``, because ``--baseline_aa=DIR`` reads the whole directory.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cnnbench.campaigns.processes.outcome import read
from cnnbench.campaigns.processes.results_dir import JOURNAL, LOGS, Journal, ResultsFolder
from cnnbench.errors import PathError
from cnnbench.judge.compare import (
    DEFAULT_METRICS,
    Comparison,
    Policy,
    Verdict,
    compare_records,
    load_records,
)
from cnnbench.judge.compare.sequential import Continuation, InterimAnalysis
from cnnbench.records.codec import decode
from cnnbench.records.explanation import Explanation
from cnnbench.records.run import RunRecord

SIDES = ("a", "b")
CLEAR = (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME)
_DISCARDED = "discarded"

EXPLANATION = "explanation"
"""Event in the journal: causes of the difference."""

PROFILES = "explain"
"""Folder with the profiles measured after the pairs."""


def pair_name(number: int) -> str:
    """Prefix of the names of a pair's files; numbers start at 1."""
    return f"{number:04d}"


class PairsFolder(ResultsFolder):
    """A results directory, which must be empty or, with `resume`, of the same experiment."""

    command = "ab"
    noun = "experiment"
    timespec = "milliseconds"
    inside = (*SIDES, _DISCARDED, LOGS)
    kept = tuple(f"{name}/*" for name in inside)

    def pairs(self) -> list[tuple[RunRecord, ...]]:
        """Records of both sides of the pairs, up to the first incomplete pair."""
        found: list[tuple[RunRecord, ...]] = []
        for number in itertools.count(1):
            paths = (self.folder / side / f"{pair_name(number)}-{side}.json" for side in SIDES)
            records = [read(path) for path in paths]
            pair = tuple(one for one in records if isinstance(one, RunRecord))
            if len(pair) < len(SIDES) or any(one.status != "ok" for one in pair):
                break
            found.append(pair)
        return found

    def pending(self, name: str) -> Path:
        """Path of a process's record until its pair is complete; that of a burn-in stays there."""
        return self.folder / _DISCARDED / f"{name}.{_DISCARDED}"


@dataclass(frozen=True)
class Begun:
    """An experiment after earlier sessions, from the events of its journal."""

    folder: Path
    events: Sequence[Mapping[str, Any]] = field(repr=False)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The first event of the last session, with the `Experiment.facts`."""
        return self._of("ab")[-1]

    @property
    def planned(self) -> int:
        """Maximum number of pairs in the first session."""
        return int(self._of("ab")[0]["looks"][-1]["pairs"])

    @property
    def pairs(self) -> int:
        """Maximum number of pairs in the last session."""
        return int(self.facts["looks"][-1]["pairs"])

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The event that ended the last session; None if it was killed."""
        last = self._of("ab", "end")[-1]
        return last if last["event"] == "end" else None

    @cached_property
    def _judged(self) -> dict[int, Mapping[str, Any]]:
        """The last event of each analysis, by number of pairs."""
        # Interrupted sessions were judged, too, but not those in which a process failed.
        found = {
            one["pairs"]: one
            for one in self._of("look", "end")
            if one["pairs"] and Verdict.FAILED.value not in one.get("verdicts", ())
        }
        if self.end is None:  # killed: its last analysis is made again
            found.pop(self.pairs, None)
        return dict(sorted(found.items()))

    @property
    def made(self) -> tuple[InterimAnalysis, ...]:
        """The analyses of all sessions."""
        return tuple(InterimAnalysis(n, float(one["alpha"])) for n, one in self._judged.items())

    @property
    def clear(self) -> bool:
        """Whether more pairs cannot change the verdict."""
        verdicts = [*self._judged.values()][-1]["verdicts"] if self._judged else ()
        return is_clear(verdicts)

    @property
    def is_spent(self) -> bool:
        """Whether nothing of alpha is left for more pairs."""
        return any(one.alpha >= self.facts["policy"]["alpha"] for one in self.made)

    @property
    def goes_on(self) -> bool:
        """Whether `cnnbench ab --resume` can continue it: not if clear or all of alpha is spent.

        Nor if it is a part of another campaign, or of an earlier version.
        """
        of_its_own = "plans" in self.facts.get("question", {})
        return of_its_own and not (self.clear or self.is_spent)

    @property
    def plan(self) -> Continuation:
        """How further pairs are judged: in a new experiment if nothing of alpha is left."""
        if self.is_spent:
            return Continuation(self.facts["policy"]["alpha"])
        return Continuation(self.facts["policy"]["alpha"], self.planned, self.made)

    def verdict(self, together: bool = False) -> Comparison | None:
        """The comparison that ended it, at the level of its last analysis.

        Further pairs are judged by `plan`, or, if `together`, once together with these. None if it
        has not ended, or was judged with an A/A spread, whose records are elsewhere.
        """
        if self.end is None or self.facts.get("baseline_aa") or "policy" not in self.facts:
            return None
        base, new = (load_records([str(self.folder / side)]) for side in SIDES)
        plan = None if together else self.plan
        found = compare_pairs(base.records, new.records, self.facts, self.end["alpha"], plan=plan)
        with contextlib.suppress(LookupError, ValueError):
            document = self._of(EXPLANATION)[-1]["document"]
            found = replace(found, explanation=Explanation.from_dict(document))
        return found

    def _of(self, *names: str) -> list[Mapping[str, Any]]:
        return [one for one in self.events if one.get("event") in names]


def is_clear(verdicts: Sequence[str]) -> bool:
    """Whether more pairs cannot change the verdicts on the metrics that were asked for."""
    measured = [Verdict(one) for one in verdicts if one != Verdict.NOT_MEASURED.value]
    return bool(measured) and all(one in CLEAR for one in measured)


def begun(folder: Path) -> Begun | None:
    """The experiment in a results folder, or None; PathError for an unusable journal of 1.0.0."""
    journal = Journal(folder / JOURNAL)
    found = Begun(folder, tuple(journal.read()))
    if not any(one.get("event") == "ab" and one.get("looks") for one in found.events):
        return None
    try:
        _ = found.planned, found.pairs, found.end, found.made, found.clear, found.goes_on
    except (LookupError, TypeError, ValueError):
        raise PathError(str(journal.path), "is no journal of an experiment") from None
    return found


def resumable(folder: Path) -> Begun | None:
    """The experiment in a results folder, if `cnnbench ab --resume` can continue it; else None."""
    found = begun(folder)
    return found if found is not None and found.goes_on else None


def begun_below(folder: Path) -> Begun | None:
    """The only experiment in or directly below a folder, or None."""
    try:
        candidates = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        found = [one for one in map(begun, candidates) if one is not None]
    except OSError:
        return None
    return found[0] if len(found) == 1 else None


def compare_pairs(
    base: Iterable[RunRecord],
    new: Iterable[RunRecord],
    begin: Mapping[str, Any],
    alpha: float,
    aa: Iterable[RunRecord] | None = None,
    plan: Continuation | None = None,
) -> Comparison:
    """Judges pairs, the i-th records of A and of B, when measured or from the results folder.

    `begin` has the `Experiment.facts`, `alpha` is two-sided, `aa` are runs to estimate the noise,
    and by `plan` further pairs are judged.
    """
    # Earlier versions had the usual metrics where none was asked for.
    asked = begin.get("metrics_asked", tuple(begin["metrics"]) != DEFAULT_METRICS)
    labels = [f"{side.upper()}: {begin['sides'][side]['description']}" for side in SIDES]
    return compare_records(
        base,
        new,
        decode(Policy, begin["policy"]).replace(alpha=alpha),
        metrics=begin["metrics"] if asked else None,
        allow_different=tuple(begin["allowed"]),
        aa=aa,
        paired=True,
        plan=plan,
        allow_changed_work=begin["allow_changed_work"],
        base_label=labels[0],
        new_label=labels[1],
    )
