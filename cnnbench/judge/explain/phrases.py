"""The sentences of `cnnbench explain`, except for texts about single causes (`causes`)."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.text import count_text, format_interval, milliseconds
from cnnbench.records.explanation import Cause, Explanation, FactChange

_ALSO = 0.1  # The answer names a second cause if it explains this share of the difference.
_MOST_NAMED = 2  # The answer names at most this many causes.
_SMALLEST = 1e-6  # Shorter times, in seconds, are shown as 0.


def answer(explanation: Explanation) -> str:
    """The answer of an explanation: a sentence about the step time and its largest causes and, if
    only the work differs significantly, a second sentence about the work.
    """
    if explanation.causes and not explanation.by_work:
        return _with_causes(explanation)
    text = _without_causes(explanation)
    if not explanation.by_work:
        return text
    work = [
        f"{cause.text} in {cause.place} ({_more_or_less(cause.difference)}, +/- "
        f"{in_ms(cause.spread)} ms)"
        for cause in explanation.causes[:_MOST_NAMED]
    ]
    return f"{text} The work certainly differs: {'; '.join(work)}."


def _without_causes(explanation: Explanation) -> str:
    change = _more_or_less(explanation.difference)
    if min(explanation.base_processes, explanation.new_processes) < 2:
        return (
            f"Not distinguishable from one process to the next: a step takes {change}, and one "
            "process of A or B is no evidence of a cause. Profile two or more of each, as "
            "--rounds=3 does."
        )
    if explanation.differs_significantly:
        return f"A step takes {change}, spread over rows, none of which is significant."
    if explanation.chance >= explanation.base:
        return f"Inconclusive: a step takes {change}, and more than a whole step can be chance."
    return (
        f"No significant difference between the profiled processes: a step takes {change} "
        f"({_times(explanation)}), and up to {in_ms(explanation.chance)} ms can be chance."
    )


def _with_causes(explanation: Explanation) -> str:
    """The answer of an explanation with significant causes: the difference in step time, its
    largest causes, and how much of the difference no cause explains.
    """
    difference, unexplained = explanation.difference, explanation.unexplained
    change, (first, *others) = _more_or_less(difference), explanation.causes
    least = _ALSO * max(abs(first.difference), abs(difference))
    named = [first, *(cause for cause in others if abs(cause.difference) >= least)][:_MOST_NAMED]
    if not explanation.differs_significantly:
        spread, causes = in_ms(explanation.spread), "; ".join(map(_cause_and_spread, named))
        return (
            f"No significant difference in step time between the profiled processes ({change}, "
            f"+/- {spread} ms), but a step has {causes}."
        )
    like = [_cause(cause) for cause in named if cause.difference * difference > 0]
    opposite = [_cause_and_spread(cause) for cause in named if cause.difference * difference <= 0]
    if abs(unexplained) >= least and unexplained * difference > 0:
        like.append(f"{_size(unexplained)} that no cause explains")
    elif abs(unexplained) >= least:
        opposite.append(f"{_more_or_less(unexplained)} that no cause explains")
    if not opposite:
        return f"A step takes {change}: {'; '.join(like)}."
    return f"A step takes {change}: {'; '.join(like)}; although it has {'; '.join(opposite)}."


def cause_with_evidence(cause: Cause) -> str:
    """A text with a cause and the evidence for it."""
    return "; ".join((cause.text, *cause.evidence_not_in_text))


def measurement(explanation: Explanation) -> str:
    """How many processes and steps were measured, and how long a profiled step takes."""
    processes = count_text(explanation.base_processes, "process", "processes")
    steps = count_text(explanation.steps, "profiled step", "profiled steps")
    return (
        f"Measured in {processes} of A and {explanation.new_processes} of B, each with {steps}. "
        "Times are means after rare disturbances are removed, as in cnnbench compare. A profiled "
        f"step takes {in_ms(explanation.profiled_base)} ms in A and "
        f"{in_ms(explanation.profiled_new)} ms in B."
    )


def fact_texts(facts: Sequence[FactChange]) -> list[str]:
    """A text for each flag and recorded property that differs between A and B."""
    return [f"{fact.fact} is {fact.base} in A and {fact.new} in B" for fact in facts]


def in_ms(seconds: float) -> str:
    """Formats seconds in milliseconds, without the unit. Times below a microsecond become 0."""
    return milliseconds(0.0 if abs(seconds) < _SMALLEST else seconds)


def signed_ms(seconds: float) -> str:
    """Formats a difference in seconds in milliseconds, with its sign and without the unit."""
    return ("+" if seconds > 0 else "") + in_ms(seconds)


def _cause(cause: Cause) -> str:
    return f"{_size(cause.difference)} in {cause.place} ({_times(cause)}): {cause.text}"


def _cause_and_spread(cause: Cause) -> str:
    size = f"{_more_or_less(cause.difference)} (+/- {in_ms(cause.spread)} ms)"
    return f"{size} in {cause.place} ({_times(cause)}): {cause.text}"


def _times(compared: Cause | Explanation) -> str:
    return f"{format_interval(compared.base, compared.new, in_ms)} ms"


def _size(difference: float) -> str:
    return f"{in_ms(abs(difference))} ms{' less' if difference < 0 else ''}"


def _more_or_less(difference: float) -> str:
    return f"{in_ms(abs(difference))} ms {'less' if difference < 0 else 'more'}"
