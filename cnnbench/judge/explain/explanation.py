"""Explains the difference in step time between A and B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cnnbench.judge.explain import phrases
from cnnbench.judge.explain.causes import find_causes
from cnnbench.judge.explain.facts import fact_changes, quantity_changes
from cnnbench.judge.explain.pauses import find_pauses
from cnnbench.judge.explain.sides import CERTAIN, ComparedProfiles
from cnnbench.records.explanation import Cause, Explanation
from cnnbench.records.profiles import StepProfile


def explain(
    base: Sequence[StepProfile], new: Sequence[StepProfile], labels: tuple[str, str] = ("A", "B")
) -> Explanation:
    """Explains the difference in step time between the profiled processes of side A (`base`) and of
    side B (`new`), at least one each.
    """
    sides = ComparedProfiles(base, new)
    significant: tuple[Cause, ...] = ()
    # With a single process on a side, a difference may be a property of this process alone.
    if min(len(base), len(new)) > 1:
        pauses, sides = find_pauses(sides)
        significant = find_causes(sides, *pauses)
    sides.by_work = not significant
    work = find_causes(sides) if sides.by_work else ()
    timed = sides.timed
    document = Explanation(
        answer="",
        base_label=labels[0],
        new_label=labels[1],
        base=timed.of_sides[0],
        new=timed.of_sides[1],
        spread=2 * timed.standard_error(),
        chance=max(CERTAIN * timed.standard_error(sides.noise), timed.chance_limit),
        profiled_base=sides.step.of_sides[0],
        profiled_new=sides.step.of_sides[1],
        rows=(),
        causes=significant or work,
        by_work=bool(work),
        facts=(
            *fact_changes(base, new),
            *quantity_changes(base, new),
            *(primitive.fact for primitive in sides.primitives),
        ),
        base_processes=len(base),
        new_processes=len(new),
        steps=max(len(profile.step_seconds) for profile in (*base, *new)),
    )
    rows = [
        document.make_row(
            *part,
            base=times.of_sides[0],
            new=times.of_sides[1],
            spread=2 * times.standard_error(),
        )
        for part, times in sides.means.items()
    ]
    rows.sort(key=lambda row: (-abs(row.difference), row.layer, row.kind, row.direction))
    return replace(document, answer=phrases.answer(document), rows=tuple(rows))
