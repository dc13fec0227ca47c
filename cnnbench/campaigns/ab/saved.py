"""Verdict on the pairs of an experiment, also from the folder of a completed one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cnnbench.campaigns.ab.results import EXPLANATION, SIDES
from cnnbench.campaigns.processes.results_dir import JOURNAL, Journal
from cnnbench.judge.compare import Comparison, Policy, compare_records, load_records
from cnnbench.records.codec import decode
from cnnbench.records.explanation import Explanation
from cnnbench.records.run import RunRecord


def results_below(folder: Path) -> Path | None:
    """The only results folder of an experiment in or directly below a folder, or None.

    Args:
      folder: such as ``gate`` of scripts/gate_pull_request, which holds ``runs``.
    """
    try:
        candidates = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        found = [path for path in candidates if _events(path)]
    except OSError:
        return None
    return found[0] if len(found) == 1 else None


def verdict(folder: Path) -> Comparison | None:
    """The comparison that ended an experiment, with the level of its last analysis.

    Returns:
      None where the experiment has not ended, or was judged with an A/A spread, whose records
      are elsewhere.
    """
    events = _events(folder)
    begin, end = events.get("ab"), events.get("end")
    if begin is None or end is None or begin.get("baseline_aa") or "policy" not in begin:
        return None
    base, new = (load_records([str(folder / side)]) for side in SIDES)
    found = compare_pairs(base.records, new.records, begin, end["alpha"])
    return replace(found, explanation=_explanation(events))


def _explanation(events: Mapping[str, Mapping[str, Any]]) -> Explanation | None:
    """Where the difference is, if that was found out."""
    try:
        return Explanation.from_dict(events[EXPLANATION]["document"])
    except (LookupError, ValueError):
        return None


def compare_pairs(
    base: Iterable[RunRecord],
    new: Iterable[RunRecord],
    begin: Mapping[str, Any],
    alpha: float,
    aa: Iterable[RunRecord] | None = None,
) -> Comparison:
    """Judges pairs, as they are measured or from the results folder.

    Args:
      base, new: records of A and of B; the i-th of both are a pair.
      begin: the facts of the experiment, see `Experiment`.
      alpha: two-sided level of this analysis.
      aa: A/A runs, to estimate the noise from.
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
        allow_changed_work=begin["allow_changed_work"],
        base_label=labels[0],
        new_label=labels[1],
    )


def _events(folder: Path) -> dict[str, dict[str, Any]]:
    """The last event of each kind; empty for a folder without an experiment."""
    found = {event.get("event", ""): event for event in Journal(folder / JOURNAL).read()}
    return found if "ab" in found else {}
