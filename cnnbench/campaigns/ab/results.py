"""Results directory of an experiment, and the verdict on the pairs in it.

``a/`` and ``b/`` hold one record per process, the i-th of both are a pair; ``discarded/`` those of
burn-in and of incomplete pairs, ``logs/`` the output of the processes, ``explain/`` the later
profiles, ``journal.jsonl`` the events. ``cnnbench compare DIR/a DIR/b --paired`` reads it. Only
records that count are named ``*.json``, because ``--baseline_aa=DIR`` reads the whole directory.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cnnbench.campaigns.processes.outcome import read
from cnnbench.campaigns.processes.results_dir import JOURNAL, LOGS, Journal, ResultsFolder
from cnnbench.judge.compare import Comparison, Policy, Verdict, compare_records, load_records
from cnnbench.judge.compare.further import Continuation
from cnnbench.judge.compare.sequential import InterimAnalysis
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


@dataclass(frozen=True, kw_only=True)
class Begun:
    """State of an experiment after earlier sessions; if `clear`, more pairs cannot change it.

    `planned` and `pairs` are the maximum numbers of pairs in the first and in the last session;
    `end` is the event that ended the last one, None if it was killed.
    """

    folder: Path
    facts: Mapping[str, Any]
    planned: int
    pairs: int
    made: tuple[InterimAnalysis, ...]
    clear: bool
    end: Mapping[str, Any] | None

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
        """How further pairs are judged."""
        return Continuation(self.facts["policy"]["alpha"], self.planned, self.made)


def begun(folder: Path) -> Begun | None:
    """The experiment in a results folder, or None."""
    events = list(Journal(folder / JOURNAL).read("ab", "look", "end"))
    sessions = [one for one in events if one["event"] == "ab" and one.get("looks")]
    if not sessions:
        return None
    # Interrupted sessions were judged, too, but not those in which a process failed.
    judged = {
        one["pairs"]: one
        for one in events
        if one["event"] != "ab" and Verdict.FAILED.value not in one.get("verdicts", ())
    }
    first, last = (one["looks"][-1]["pairs"] for one in (sessions[0], sessions[-1]))
    last_event = [one for one in events if one["event"] != "look"][-1]
    end = last_event if last_event["event"] == "end" else None
    if end is None:  # killed: its last analysis is made again
        judged.pop(last, None)
    made = [InterimAnalysis(n, float(judged[n]["alpha"])) for n in sorted(judged) if n]
    verdicts = judged[made[-1].pairs]["verdicts"] if made else ()
    return Begun(
        folder=folder,
        facts=sessions[-1],
        planned=first,
        pairs=last,
        made=tuple(made),
        clear=bool(verdicts) and all(Verdict(one) in CLEAR for one in verdicts),
        end=end,
    )


def resumable(folder: Path) -> Begun | None:
    """The experiment in a results folder, if `cnnbench ab --resume` can continue it; else None."""
    found = begun(folder)
    return found if found is not None and found.goes_on else None


def results_below(folder: Path) -> Path | None:
    """The only results folder of an experiment in or directly below a folder, or None."""
    try:
        candidates = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        found = [path for path in candidates if _events(path)]
    except OSError:
        return None
    return found[0] if len(found) == 1 else None


def verdict(folder: Path, plan: Continuation | None = None) -> Comparison | None:
    """The comparison that ended an experiment, at the level of its last analysis.

    `plan` is how further pairs are judged, by default those of `cnnbench ab --resume`. None if it
    has not ended, or was judged with an A/A spread, whose records are elsewhere.
    """
    events = _events(folder)
    begin, end = events.get("ab"), events.get("end")
    if begin is None or end is None or begin.get("baseline_aa") or "policy" not in begin:
        return None
    base, new = (load_records([str(folder / side)]) for side in SIDES)
    earlier = resumable(folder)
    if plan is None and earlier is not None:
        plan = earlier.plan
    found = compare_pairs(base.records, new.records, begin, end["alpha"], plan=plan)
    with contextlib.suppress(LookupError, ValueError):
        document = events[EXPLANATION]["document"]
        found = replace(found, explanation=Explanation.from_dict(document))
    return found


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
    labels = [f"{side.upper()}: {begin['sides'][side]['description']}" for side in SIDES]
    return compare_records(
        base,
        new,
        decode(Policy, begin["policy"]).replace(alpha=alpha),
        metrics=tuple(begin["metrics"]),
        allow_different=tuple(begin["allowed"]),
        aa=aa,
        paired=True,
        plan=plan,
        allow_changed_work=begin["allow_changed_work"],
        base_label=labels[0],
        new_label=labels[1],
    )


def _events(folder: Path) -> dict[str, dict[str, Any]]:
    """The last event of each kind; empty for a folder without an experiment."""
    found = {event.get("event", ""): event for event in Journal(folder / JOURNAL).read()}
    return found if "ab" in found else {}
