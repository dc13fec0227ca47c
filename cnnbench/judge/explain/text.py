"""An explanation as a table for a terminal, as Markdown and as a chart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cnnbench.base.charts import Axis, DistributionRow, Rows, key_of
from cnnbench.base.text.escape import code, markdown, plain
from cnnbench.base.text.numbers import count, number, percent
from cnnbench.base.text.table import fitted, wrapped
from cnnbench.records.explanation import Cause, Explanation

SHOWN = 10
"""Rows of a table."""

_HEAD = ("layer", "kind", "direction", "A ms", "B ms", "difference ms", "+/-", "share")
_INDENT = "      "
_MOST_FACTS = 12
_SMALLEST = 1e-6  # shortest time that is shown, in seconds


class ExplainedLine(NamedTuple):
    """A line of the table, in seconds; see `ExplainedRow`."""

    layer: str
    kind: str
    direction: str
    base: float
    new: float
    spread: float | None
    share: float | None


def lines_of(found: Explanation, most: int = SHOWN) -> list[ExplainedLine]:
    """The largest rows (all if `most` is 0), the sum of others, the rest, and the step."""

    def line(name: str, base: float, new: float, spread: float | None = None) -> ExplainedLine:
        share = _share(new - base, found.difference)
        return ExplainedLine(name, "", "", base, new, spread, share)

    shown = found.rows[:most] if most else found.rows
    lines = [ExplainedLine(**vars(row)) for row in shown]
    if rest := found.rows[len(shown) :]:
        name = count(len(rest), "other row", "other rows")
        lines.append(line(name, sum(row.base for row in rest), sum(row.new for row in rest)))
    base, new = found.base - found.profiled_base, found.new - found.profiled_new
    lines.append(line("not in the profiles", base, new))
    return [*lines, line("step", found.base, found.new, found.spread)]


def table(found: Explanation, most: int = SHOWN) -> str:
    """The answer, the causes with their evidence, the rows, and further differences."""
    return "\n".join([*wrapped(plain(found.answer)), *body(found, most)]) + "\n"


def body(found: Explanation, most: int = SHOWN) -> list[str]:
    """The lines of a table without the answer."""
    lines = []
    for cause in found.causes:
        lines += wrapped(plain(f"- {cause_text(cause)}"), "", _INDENT)
        lines += [line for one in cause.evidence for line in wrapped(plain(one), _INDENT)]
    cells = [list(_HEAD), *(list(map(plain, _cells(line))) for line in lines_of(found, most))]
    lines += ["", *fitted(cells, (0, 1, 2), (7, 6)), "", *wrapped(about(found))]
    if found.facts:
        lines.append("Also different:")
        for text in _facts(found):
            lines += wrapped(plain(text), _INDENT)
    return lines


def to_markdown(found: Explanation, most: int = SHOWN) -> str:
    """`table` for a pull request; names from records are code."""
    lines = ["### cnnbench: why", "", markdown(found.answer), "", *markdown_body(found, most)]
    return "\n".join(lines) + "\n"


def markdown_body(found: Explanation, most: int = SHOWN) -> list[str]:
    """The lines of a Markdown document without the answer."""
    lines = []
    for cause in found.causes:
        told = [cause_text(cause), *cause.evidence]
        lines.append(f"- {code('; '.join(told))}")
    lines += [""] if found.causes else []
    lines += ["<details><summary>Where: milliseconds of a step</summary>", ""]
    lines += [f"| {' | '.join(_HEAD)} |", "|---|---|---|--:|--:|--:|--:|--:|"]
    for line in lines_of(found, most):
        names, numbers = _cells(line)[:3], _cells(line)[3:]
        lines.append(f"| {' | '.join([*(code(n) if n else '' for n in names), *numbers])} |")
    lines += ["", about(found), "", *(f"- also different: {code(text)}" for text in _facts(found))]
    return [*lines, "", "</details>"]


def chart(found: Explanation, most: int = SHOWN) -> Rows:
    """The differences of the largest rows with their spread."""
    rows = []
    for line in lines_of(found, most):
        difference, spread = line.new - line.base, line.spread
        tone = "bad" if difference > 0 else "good"
        rows.append(
            DistributionRow(
                label=name_of(line),
                values=((1e3 * difference, f"{_ms(line.base)} to {_ms(line.new)} ms"),),
                low=None if spread is None else 1e3 * (difference - spread),
                high=None if spread is None else 1e3 * (difference + spread),
                text=f"{_signed(difference)} ms",
                tone="" if spread is None or abs(difference) <= spread else tone,
            )
        )
    return Rows(
        title="What a step of B takes more than one of A",
        x=Axis(label="difference (ms)"),
        rows=tuple(rows),
        limit=0.0,
        limit_label="no difference",
        note=key_of(rows, dot="the difference", band="twice its standard error"),
    )


def cause_text(cause: Cause) -> str:
    """A cause in one line with its times."""
    times = f"{_ms(cause.base)} to {_ms(cause.new)} ms, +/- {_ms(cause.spread)}"
    return f"{_signed(cause.difference)} ms in {cause.place} ({times}): {cause.text}"


def name_of(line: ExplainedLine) -> str:
    """Layer, kind and direction."""
    return ", ".join(filter(None, (line.layer, line.kind, line.direction)))


def about(found: Explanation) -> str:
    """A sentence on how it was measured."""
    a, b = found.base_processes, found.new_processes
    processes = f"{a} and {b}" if a != b else f"{a} + {b}"
    rest = percent(_share(found.remainder, found.difference) or 0.0, 0)
    return (
        f"{processes} processes of {count(found.steps, 'profiled step', 'profiled steps')}, means "
        f"over the faster half; a profiled step takes {_ms(found.profiled_base)} ms of A and "
        f"{_ms(found.profiled_new)} ms of B. {_signed(found.remainder)} ms ({rest}) of the "
        "difference are not in the profiles."
    )


def _cells(line: ExplainedLine) -> tuple[str, ...]:
    return (
        *(line.layer, line.kind, line.direction, _ms(line.base), _ms(line.new)),
        _signed(line.new - line.base),
        "" if line.spread is None else _ms(line.spread),
        percent(line.share, 0),
    )


def _facts(found: Explanation) -> Iterator[str]:
    facts = [f"{one.fact} is {one.base} in A and {one.new} in B" for one in found.facts]
    yield from facts[:_MOST_FACTS]
    if len(facts) > _MOST_FACTS:
        yield f"and {len(facts) - _MOST_FACTS} more, which JSON has"


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _ms(seconds: float) -> str:
    return number(1e3 * seconds) if abs(seconds) >= _SMALLEST else "0"


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + _ms(seconds)
