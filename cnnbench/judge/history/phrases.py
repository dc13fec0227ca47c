"""All sentences of a history: templates with named values. Whoever reads this module knows what a
history can say.

A function returns a sentence that has variants, such as a singular. Other modules decide which
sentence applies.
"""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.levels import MIN_SERIES
from cnnbench.base.text import count_text, first_few

MOST_NAMED = 5
"""Maximum number of things of one kind that an answer names."""

_MOST_SERIES = 2
"""If a level change occurs in only some of the time series, at most this many are named."""

HIGHER_IS_BETTER = "{metric}, median over the processes of a point; higher is better"
LOWER_IS_BETTER = "{metric}, median over the processes of a point; lower is better"
OF_SERIES = "{series}: {finding}"

# Level changes, which the output calls steps. WORSE is a regression, and BETTER a gain.

WORSE = "worse: {change} (levels {levels}); {place}"
BETTER = "better: {change} (levels {levels}); {place}"
LEVELS = "{before} -> {after}"
TREND = "a trend from {first} to {last}"
TREND_RANGE = "trend from {first} to {last}"
LAST_GOOD = "last good {point}"
LAST_WITHOUT = "last without {point}"
BETWEEN_GOOD_AND_BAD = "last good {before}, first bad {after}"
BETWEEN_WITHOUT_AND_WITH = "last without {before}, first with {after}"
IN_RANGE = "{place} (95 %: between {first} and {last})"
RANGE = "{first} and {last}"
UNDONE_AT = "undone at {point}"
UNDONE = "undone since"
STANDS = "stands"
THEN_SLOW_STEPS = "then {steps}"
SLOW_STEPS_BEFORE = "before {steps}"
CHANGED_FACTS = "changed there too: {facts}"
CHANGED_FACT = "{fact} {before} -> {after}"
WORSE_IN_SERIES = "worse in {series} at {point}: {change}"
BETTER_IN_SERIES = "better in {series} at {point}: {change}"


def named_series(names: Sequence[str], count: int) -> str:
    """Some of `count` time series: the only name, "all 5 series", or "3 of 5 series (a; b; c)"."""
    if len(names) == 1:
        return names[0]
    if len(names) < count:
        return f"{len(names)} of {count} series ({first_few(names, _MOST_SERIES)})"
    return "both series" if len(names) == 2 else f"all {len(names)} series"


# Time series without level changes, noise, and points.

NO_STEP = "no step"
MORE_POINTS = f"steps are looked for from {MIN_SERIES} on"
FEW_POINTS = f"{{points}}; {MORE_POINTS}"
TWO_MACHINES = (
    "two machines: {change} on {hosts} ({runs} of {total} runs); a step of about this size needs "
    "more points"
)
TWO_STATES = (
    "noise of two states: {change} in {runs} of {total} runs, alternating; a step of about this "
    "size needs more points"
)
CORRELATED = (
    "neighbouring points are correlated ({correlation:.1f}): a step needs more points, and its "
    "place is less certain"
)
OTHER_NETWORK = "another network before: {network}, not compared"
OUTLIER_AT = "{series}: {change} at {point}, {time} UTC"
NO_VALUE = "no value, {runs}"
NO_VALUE_BECAUSE = "no value, {runs}: {error}"
EARLIER_POINTS = "... {points}; --last=0 lists all"
NEWEST_POINTS = "The newest {shown} of {total} are listed; --format=csv writes all."
DRAWN_SERIES = "The charts show {drawn} of {total} series: those with steps, and the newest."

# Answers.

TOO_FEW_POINTS = f"Too few points: {MORE_POINTS}"
ALL_UNDONE = "Every regression was undone"
NO_REGRESSION = "No regression"
NO_STEP_FOUND = "No step was found."
TOO_SHORT = "Too few points for steps: {series}."


def lasting(regressions: int, gains: int) -> str:
    """How many changes have not been undone."""
    texts = [
        count_text(regressions, "regression has", "regressions have") if regressions else "",
        count_text(gains, "gain has", "gains have") if gains else "",
    ]
    return ", ".join(f"{text} not been undone" for text in texts if text)


def accepted(regressions: int) -> str:
    """How many regressions are accepted."""
    return count_text(regressions, "regression is accepted", "regressions are accepted")


# Remarks.

ONLY_OTHER_METRIC = "{series}: only {metric} has a step: {change}; --metric={metric} shows it."
MACHINES = "{count} machines are not compared with each other: {machines}."
ON_MACHINE = "{points} on {machine}"
MERGE = "{point} is a merge. Before it, its branches had {values} ({series})."
VALUE_AT = "{value} at {point}"
OTHER_BRANCH = (
    "{point} does not contain {before}, the point before it: the step is a difference between two "
    "branches."
)
