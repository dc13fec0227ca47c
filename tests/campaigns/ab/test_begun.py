"""Which interim analyses an experiment has made, from the events of its sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cnnbench.campaigns.ab.pairs import find_experiment
from cnnbench.campaigns.processes.journal import JOURNAL, Journal

PLAN = ((8, 0.2), (12, 0.45), (16, 0.8))
LATER = ((16, 0.81), (20, 0.84))


def end(pairs: int, *verdicts: str, **more: Any) -> dict[str, Any]:
    """The event that ends a session, with a share that no planned analysis has."""
    clear = bool(verdicts) and verdicts[0] in ("slower", "same")
    verdicts = verdicts or ("inconclusive",)
    return {"pairs": pairs, "spent": 0.002, "clear": clear, "verdicts": verdicts, **more}


INTERRUPTED = {"interrupted": True}
CHANGED = {"failure": "the measured code was changed"}


@pytest.mark.parametrize(
    ("sessions", "made", "clear"),
    [
        ([(PLAN, 0, None)], (), False),
        ([(PLAN, 8, None)], (), False),  # killed: the analysis after its last pair is made again
        ([(PLAN, 9, None)], (8,), False),
        ([(PLAN, 13, None)], (8, 12), False),
        ([(PLAN, 8, end(8, "slower"))], (8,), True),
        ([(PLAN, 16, end(16))], (8, 12, 16), False),
        # A stop is no analysis: the next session repeats the analysis after the last pair.
        ([(PLAN, 14, end(13, **INTERRUPTED))], (8, 12), False),
        ([(PLAN, 9, end(8, **INTERRUPTED))], (), False),
        ([(PLAN, 14, end(13, **CHANGED))], (8, 12), False),
        ([(PLAN, 13, end(13, "failed"))], (8, 12), False),
        ([(PLAN, 13, None), (LATER, 20, end(20, "same"))], (8, 12, 16, 20), True),
        ([(PLAN, 14, end(13, **INTERRUPTED)), (LATER, 18, None)], (8, 12, 16), False),
        ([(PLAN, 14, end(13, **INTERRUPTED)), (LATER, 0, None)], (8, 12), False),
    ],
)
def test_analyses_follow_from_the_plan_and_the_pairs(
    tmp_path: Path, sessions: list[Any], made: tuple[int, ...], clear: bool
) -> None:
    journal = Journal(tmp_path / JOURNAL)
    levels = {}
    for plan, pairs, ended in sessions:
        looks = [{"pairs": n, "spent": spent} for n, spent in plan]
        journal.add("session", campaign="ab", looks=looks, policy={"alpha": 0.04})
        levels |= dict(plan)
        for pair in range(1, pairs + 1):
            names = [f"{pair:04d}-a", f"{pair:04d}-b"]
            journal.add("note", note="started", names=names)
        if ended is not None:
            journal.add("end", **ended)
            levels[ended["pairs"]] = ended["spent"]
    found = find_experiment(tmp_path)
    assert found is not None
    assert [(one.pairs, one.spent) for one in found.past_analyses] == [(n, levels[n]) for n in made]
    assert found.has_clear_verdict == clear
    assert (found.most_pairs_of_first_session, found.most_pairs_of_last_session) == (
        16,
        sessions[-1][0][-1][0],
    )
