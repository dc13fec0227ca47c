"""Interim analyses over all sessions of an experiment.

Tests cnnbench/campaigns/ab/sessions.py.
"""

from __future__ import annotations

from cnnbench.base.inference import AnalysisSchedule, InterimAnalysis
from cnnbench.campaigns.ab.sessions import Analyses

FIRST, SECOND, LAST = (InterimAnalysis(*one) for one in ((8, 0.2), (12, 0.5), (16, 1.0)))
RESUMED = Analyses(alpha=0.04, planned=16, made=(FIRST,), left=(SECOND, LAST))


def test_a_session_makes_only_the_analyses_that_are_left() -> None:
    assert RESUMED.most_pairs == 16
    assert [pairs for pairs in range(17) if RESUMED.is_due(pairs)] == [12, 16]
    assert RESUMED.after(8) == (SECOND, LAST)
    assert RESUMED.after(12) == (LAST,)


def test_analyses_of_all_sessions_share_alpha() -> None:
    assert RESUMED.up_to(12) == (FIRST, SECOND)
    assert [RESUMED.spent(pairs) for pairs in (8, 11, 12, 16)] == [0.2, 0.2, 0.5, 1.0]
    # Before the first analysis, pairs count as if it had been reached.
    assert RESUMED._replace(made=()).up_to(3) == (SECOND,)


def test_further_pairs_belong_to_a_new_experiment_if_alpha_is_used() -> None:
    assert RESUMED.schedule_after(12) == AnalysisSchedule(0.04, 16, (FIRST, SECOND))
    assert RESUMED.schedule_after(16) == AnalysisSchedule(0.04)
