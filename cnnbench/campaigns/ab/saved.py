"""The verdict on the pairs of an experiment, also of one that has ended, from its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cnnbench.campaigns.ab.results import SIDES
from cnnbench.campaigns.processes.results_dir import JOURNAL, Journal
from cnnbench.judge.compare import Comparison, Policy, compare_records, load_records
from cnnbench.records.codec import decode
from cnnbench.records.run import RunRecord


def results_below(folder: Path) -> Path | None:
    """The only results folder of an experiment that a folder is or directly holds, or None.

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

    Args:
      folder: its results folder.

    Returns:
      None where the experiment has not ended, or was judged with an A/A spread, whose records
      are elsewhere.
    """
    events = _events(folder)
    begin, end = events.get("ab"), events.get("end")
    if begin is None or end is None or begin.get("baseline_aa") or "policy" not in begin:
        return None
    base, new = (load_records([str(folder / side)]) for side in SIDES)
    return compare_pairs(base.records, new.records, begin, end["alpha"])


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
    """The last event of each kind, by kind; empty for a folder that is none of an experiment."""
    found = {event.get("event", ""): event for event in Journal(folder / JOURNAL).read()}
    return found if "ab" in found else {}
