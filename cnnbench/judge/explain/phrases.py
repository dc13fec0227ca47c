"""All sentences of `cnnbench explain`, except for texts about single causes (`causes`)."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.text import count_text, format_interval, milliseconds
from cnnbench.records.profiles import Cause, Explanation, FactChange

_DIFFERS = "A step takes {change}: {causes}."
_DIFFERS_ALTHOUGH = "A step takes {change}: {causes}; although it has {opposite}."
_DIFFERS_AGAINST_CAUSES = "A step takes {change}, although it has {opposite}."
_CAUSES_ALONE = (
    "No significant difference in step time ({change}, +/- {spread} ms), but a step has {causes}."
)
_ONE_PROCESS = (
    "Not distinguishable from one process to the next: a step takes {change}, and one process of "
    "A or B is no evidence of a cause. Profile two or more of each, as --rounds=3 does."
)
_NO_CAUSE = "A step takes {change}, spread over rows, none of which is significant."
_TOO_NOISY = "Inconclusive: a step takes {change}, and more than a whole step can be chance."
_SAME = (
    "No significant difference: a step takes {change} ({times}), and up to {chance} ms can be "
    "chance."
)
_OTHER_WORK = "{answer} The work certainly differs: {work}."

_CAUSE = "{size} in {place} ({times}): {text}"
_CAUSE_AND_SPREAD = "{size} (+/- {spread} ms) in {place} ({times}): {text}"
_WORK = "{text} in {place} ({size}, +/- {spread} ms)"
_UNEXPLAINED = "{size} that no cause explains"

_MEASURED = (
    "Measured in {base_processes} of A and {new_processes} of B, each with {steps}. Times are "
    "means after rare disturbances are removed, as in cnnbench compare. A profiled step takes "
    "{profiled_base} ms in A and {profiled_new} ms in B."
)
_FACT = "{fact} is {base} in A and {new} in B"
MORE_FACTS = "and {more} more (see the JSON output)"

ANSWER = rb"(A step takes |Not distinguishable |No significant difference|Inconclusive: )"
"""Matches the beginning of every answer."""

_ALSO = 0.1  # The answer names a second cause if it explains this share of the difference.
_MOST_NAMED = 2  # The answer names at most this many causes.
_SMALLEST = 1e-6  # Shorter times, in seconds, are shown as 0.


def answer(explanation: Explanation) -> str:
    """The answer of an explanation: a sentence about the step time and its largest causes and, if
    only the work differs significantly, a second sentence about the work.
    """
    if explanation.causes and not explanation.by_work:
        return _answer_with_causes(explanation)
    change = _more_or_less(explanation.difference)
    if min(explanation.base_processes, explanation.new_processes) < 2:
        text = _ONE_PROCESS.format(change=change)
    elif explanation.differs_significantly:
        text = _NO_CAUSE.format(change=change)
    elif explanation.chance >= explanation.base:
        text = _TOO_NOISY.format(change=change)
    else:
        chance = in_ms(explanation.chance)
        text = _SAME.format(change=change, times=_times(explanation), chance=chance)
    if not explanation.by_work:
        return text
    work = (
        _WORK.format(
            text=cause.text,
            place=cause.place,
            size=_more_or_less(cause.difference),
            spread=in_ms(cause.spread),
        )
        for cause in explanation.causes[:_MOST_NAMED]
    )
    return _OTHER_WORK.format(answer=text, work="; ".join(work))


def _answer_with_causes(explanation: Explanation) -> str:
    """The answer of an explanation with significant causes: the difference in step time, its
    largest causes, and how much of the difference no cause explains.
    """
    difference, unexplained = explanation.difference, explanation.unexplained
    change = _more_or_less(difference)
    least = _ALSO * max(abs(explanation.causes[0].difference), abs(difference))
    first, *others = explanation.causes
    named = [first, *(cause for cause in others if abs(cause.difference) >= least)][:_MOST_NAMED]
    if not explanation.differs_significantly:
        return _CAUSES_ALONE.format(
            change=change,
            spread=in_ms(explanation.spread),
            causes="; ".join(map(_cause_and_spread, named)),
        )
    causes = [_cause(cause) for cause in named if cause.difference * difference > 0]
    opposite = [_cause_and_spread(cause) for cause in named if cause.difference * difference <= 0]
    if abs(unexplained) >= least and unexplained * difference > 0:
        causes.append(_UNEXPLAINED.format(size=_size(unexplained)))
    elif abs(unexplained) >= least:
        opposite.append(_UNEXPLAINED.format(size=_more_or_less(unexplained)))
    template = _DIFFERS_ALTHOUGH if causes else _DIFFERS_AGAINST_CAUSES
    if not opposite:
        template = _DIFFERS
    return template.format(change=change, causes="; ".join(causes), opposite="; ".join(opposite))


def cause_with_evidence(cause: Cause) -> str:
    """What a cause is, and the evidence for it."""
    return "; ".join((cause.text, *cause.evidence_not_in_text))


def measurement(explanation: Explanation) -> str:
    """How many processes and steps were measured, and how long a profiled step takes."""
    return _MEASURED.format(
        base_processes=count_text(explanation.base_processes, "process", "processes"),
        new_processes=explanation.new_processes,
        steps=count_text(explanation.steps, "profiled step", "profiled steps"),
        profiled_base=in_ms(explanation.profiled_base),
        profiled_new=in_ms(explanation.profiled_new),
    )


def fact_texts(facts: Sequence[FactChange]) -> list[str]:
    """A text for each flag and recorded property that differs between A and B."""
    return [_FACT.format(fact=fact.fact, base=fact.base, new=fact.new) for fact in facts]


def in_ms(seconds: float) -> str:
    """Formats seconds in milliseconds, without the unit. Times below a microsecond become 0."""
    return milliseconds(0 * seconds if abs(seconds) < _SMALLEST else seconds)


def signed_ms(seconds: float) -> str:
    """Formats a difference in seconds in milliseconds, with its sign and without the unit."""
    return ("+" if seconds > 0 else "") + in_ms(seconds)


def _cause(cause: Cause) -> str:
    return _CAUSE.format(
        size=_size(cause.difference), place=cause.place, times=_times(cause), text=cause.text
    )


def _cause_and_spread(cause: Cause) -> str:
    return _CAUSE_AND_SPREAD.format(
        size=_more_or_less(cause.difference),
        spread=in_ms(cause.spread),
        place=cause.place,
        times=_times(cause),
        text=cause.text,
    )


def _times(compared: Cause | Explanation) -> str:
    return f"{format_interval(compared.base, compared.new, in_ms)} ms"


def _size(difference: float) -> str:
    return f"{in_ms(abs(difference))} ms{' less' if difference < 0 else ''}"


def _more_or_less(difference: float) -> str:
    return f"{in_ms(abs(difference))} ms {'less' if difference < 0 else 'more'}"
