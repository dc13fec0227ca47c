"""Makes an explanation of profiled processes of two sides."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.text.numbers import count, number, percent
from cnnbench.judge.explain.causes import causes
from cnnbench.judge.explain.facts import changes_of, measured_changes
from cnnbench.judge.explain.sides import CERTAIN, Sides, Times
from cnnbench.records.explanation import Cause, ExplainedRow, Explanation
from cnnbench.records.step_profile import Part, StepProfile

_ALSO = 0.1  # least share of the difference of a second cause in the answer
_MOST_NAMED = 2


def explain(
    base: Sequence[StepProfile],
    new: Sequence[StepProfile],
    labels: tuple[str, str] = ("A", "B"),
) -> Explanation:
    """Explains the difference between two sides of at least one profiled process each."""
    sides = Sides(base, new)
    found = causes(sides)
    work = () if found else causes(sides.of_work())
    rows = sorted(
        (_row(sides, part, times) for part, times in sides.times.items()),
        key=lambda row: (-abs(row.difference), row.layer, row.kind, row.direction),
    )
    return Explanation(
        answer=_answer(sides, found) + _of_work(work),
        base_label=labels[0],
        new_label=labels[1],
        base=sides.timed.base,
        new=sides.timed.new,
        spread=2 * sides.timed.error(0.0),
        profiled_base=sides.step.base,
        profiled_new=sides.step.new,
        rows=tuple(rows),
        causes=found or work,
        facts=(
            *changes_of(base, new),
            *measured_changes(base, new),
            *(one.fact for one in sides.primitives),
        ),
        base_processes=len(base),
        new_processes=len(new),
        steps=max(len(one.step_seconds) for one in (*base, *new)),
    )


def _row(sides: Sides, part: Part, times: Times) -> ExplainedRow:
    whole = sides.timed.new - sides.timed.base
    return ExplainedRow(
        **part._asdict(),
        base=times.base,
        new=times.new,
        spread=2 * times.error(0.0),
        share=(times.new - times.base) / whole if whole else None,
    )


def _answer(sides: Sides, found: Sequence[Cause]) -> str:
    difference = sides.timed.new - sides.timed.base
    step, spread = f"a step takes {_more(difference)}", 2 * sides.timed.error(0.0)
    if found:
        first = abs(found[0].difference)
        named = [
            one
            for one in found[:_MOST_NAMED]
            if one is found[0] or abs(one.difference) >= _ALSO * max(first, abs(difference))
        ]
        if abs(difference) <= spread or difference * sides.timed.difference <= 0:
            told = "; ".join(_named(one, with_spread=True) for one in named)
            step = f"{_more(difference)}, +/- {_ms(spread)}"
            return f"Whether a step takes longer cannot be told ({step}), but it has {told}."
        opposite = [one for one in named if one.difference * difference < 0]
        like = [one for one in named if one not in opposite]
        against = "; ".join(_named(one, with_spread=True) for one in opposite)
        if not like:
            spread_out = "in rows of which none stands out of the noise"
            return f"A{step[1:]}, {spread_out}, although it has {against}."
        told = "; ".join(_named(one, with_spread=False) for one in like)
        return f"A{step[1:]}: {told}{'; although it has ' + against if opposite else ''}."
    noise = max(CERTAIN * sides.timed.error(sides.noise), sides.timed.chance)
    if sides.is_beyond(sides.timed):
        shown = sum(abs(times.difference) > 2 * times.error(0.0) for times in sides.times.values())
        rows = count(shown, "row", "rows")
        return f"A{step[1:]}, spread over {rows} of which none stands out of the noise."
    if noise >= sides.timed.base:
        return f"Nothing can be told: {step}, and more than a whole step can be chance."
    return (
        f"Nothing stands out of the noise: {step}, and up to {_ms(noise)} "
        f"({percent(noise / sides.timed.base)}) can be chance."
    )


def _of_work(found: Sequence[Cause]) -> str:
    """What differs for certain where no time stands out."""
    told = [
        f"{one.text} in {one.place} ({_more(one.difference)}, +/- {_ms(one.spread)})"
        for one in found[:_MOST_NAMED]
    ]
    return f" Certain is that the work differs: {'; '.join(told)}." if told else ""


def _named(cause: Cause, *, with_spread: bool) -> str:
    """A cause in the answer: "9.8 ms in conv1, forward (14.1 to 23.9 ms)"."""
    size = _ms(abs(cause.difference)) + (" less" if cause.difference < 0 else "")
    if with_spread:
        size = f"{_more(cause.difference)} (+/- {_ms(cause.spread)})"
    between = f"{number(1e3 * cause.base)} to {_ms(cause.new)}"
    return f"{size} in {cause.place} ({between}): {cause.text}"


def _more(difference: float) -> str:
    return f"{_ms(abs(difference))} {'less' if difference < 0 else 'more'}"


def _ms(seconds: float) -> str:
    return f"{number(1e3 * seconds)} ms"
