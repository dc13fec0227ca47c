"""The newest subject alone, for formats whose documents are of one commit."""

from __future__ import annotations

from collections.abc import Sequence

from cnnbench.base.text.numbers import count
from cnnbench.judge.report.exports.figures import BASE, Figure


def newest(figures: Sequence[Figure]) -> tuple[list[Figure], str]:
    """The figures of the newest subject, and a sentence about the others, or "".

    Of one that was measured repeatedly, on several days as an example, only the last value. The
    base of a comparison was the newest subject of an earlier one, and is not mentioned.
    """
    last = {
        _key(figure): figure
        for figure in sorted(figures, key=lambda figure: figure.started)
        if figure.current
    }
    wanted = [figure for figure in figures if last.get(_key(figure)) is figure]
    others = sum(figure.role != BASE for figure in figures) - len(wanted)
    if not others:
        return wanted, ""
    values = count(others, "other value", "other values")
    if not wanted:
        return wanted, f"the newest commit has no value; {values} left out"
    revision = wanted[0].origin.short or "an unknown revision"
    return wanted, f"the format holds one commit, here {revision}; {values} left out"


def _key(figure: Figure) -> tuple[str, str]:
    return figure.title, figure.metric.name
