"""The reasons that `cnnbench tune` gives: templates with named values.

A function returns a sentence that has variants. The sentences of the answer are in
`cnnbench.judge.report.sections.tune`, because reports contain them, too.
"""

from __future__ import annotations

from cnnbench.records.campaigns import AS_GIVEN

# Candidates that are dropped.

NOTHING_VARIES = "nothing is left to vary: all flags that could vary are given"
TOO_LARGE = "takes about {needed} of memory, and {available} is available"
NOT_ALLOWED = "changes what is trained; allow it with --allow={word}"
DROPPED = "dropped: {reason}: {names}"


def duplicate_reason(candidate: str) -> str:
    """Why a candidate is dropped: another candidate has the same effect."""
    if candidate == AS_GIVEN:
        return "means the same as the flags as given"
    return f"means the same as {candidate}"


# Races.

NOT_TRIED = "no time for it"
NO_STEP = "it has timed no step"
SLOWER = "{share} slower than the best, p = {p:.1g}"
TIME_IS_UP = "{group}, round {round}: the time is up"
ELIMINATED = "{group}, round {round}: eliminated: {counts}; best so far: {best}"
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def behind_reason(place: int) -> str:
    """Why a candidate was left behind at this place, from 1, among the remaining candidates."""
    teen = place % 100 // 10 == 1
    ending = "th" if teen else _ENDINGS.get(place % 10, "th")
    return f"no time for more measurements; {place}{ending} place so far"


# The proof: pairs that prove that the best flags are faster than the given flags.

NO_TIME = "no time for any candidate"
INTERRUPTED = "the search was interrupted"
NO_TIME_FOR_PAIRS = "no time for the {pairs} pairs that a verdict needs"
ENOUGH_MINUTES = "{reason}; --minutes={minutes} would be enough"
