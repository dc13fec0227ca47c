"""The reasons that `cnnbench tune` gives: templates with named values.

A function returns a sentence that has variants. The sentences of the answer are in
`cnnbench.judge.report.sections.tune`, because reports contain them, too.
"""

from __future__ import annotations

from cnnbench.base.text import percent
from cnnbench.records.campaigns import AS_GIVEN, TuneDocument, TuneRow

# Settings that cannot vary, and candidates that are dropped.

NOTHING_VARIES = "nothing is left to vary: all flags that could vary are given"
UNKNOWN_FLAG = "{entry}: {flag} is not a flag of a run; it cannot vary"
FIXED_FLAG = "{entry}: {flag} changes what is measured; it cannot vary"
UNUSED_KEY = "{entry}: {key} has no effect in cnnbench tune"
UNUSED_ON_CPU = "on_cpu has no effect in cnnbench tune, only in sweeps"
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
TIME_IS_UP = "{group}, round {round}: the time is up"
ELIMINATED = "{group}, round {round}: eliminated: {counts}; best so far: {best}"
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def elimination_reason(row: TuneRow) -> str:
    """Why a candidate left the races. Its row contains its place, or its test against the best."""
    if row.place is not None:
        teen = row.place % 100 // 10 == 1
        ending = "th" if teen else _ENDINGS.get(row.place % 10, "th")
        return f"no time for more measurements; {row.place}{ending} place so far"
    return f"{percent(row.slower_by)} slower than the best, p = {row.p:.1g}"


# Phrases about the last stage: the pairs that prove that the best flags are faster than the given
# flags, and the check that both train the same weights.

NO_TIME = "no time for any candidate"
INTERRUPTED = "the search was interrupted"
NO_TIME_FOR_PAIRS = "no time for the {pairs} pairs that a verdict needs"
ENOUGH_MINUTES = "{reason}; --minutes={minutes} would be enough"
NOTHING_TRAINED = "nothing is trained"
OTHER_TRAINING = "it trains differently: {changes}"
TOWERS_APART = "weights are not compared: {mode} trains its towers apart"
ASYNCHRONOUS = "weights are not compared: workers train asynchronously"
WEIGHTS_INTERRUPTED = "weights are not compared: the search was interrupted"
ONLY_KERNELS = "weights are not compared: only how operations compute differs"
NOT_TRAINED = "weights could not be compared: {name}: {error}"


def not_compared_text(error: object, kernels: str) -> str:
    """Why weights are not compared. `kernels` are the flags for kernels of the leader, as text."""
    if kernels:
        return f"weights are not compared: the flags as given cannot run with {kernels}: {error}"
    return f"weights are not compared: the flags as given cannot run: {error}"


def weights(document: TuneDocument, kernels: str) -> str:
    """Whether the trainings with the given flags and with those of the leader led to the same
    weights. `kernels` are the flags for kernels of both trainings, as text.
    """
    after = f"after {document.weights_steps} steps{f' with {kernels}' if kernels else ''}"
    distance = document.weight_distance
    if not document.trains_alike:
        return (
            f"weights differ {after}: {document.weight_variable} by {distance:.2g} of its largest "
            f"value, more than {document.weights_tolerance:g}"
        )
    if distance:
        return f"weights are the same {after}, within {distance:.1g} of the largest value"
    return f"weights are the same {after}, all bits"
