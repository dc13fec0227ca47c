"""Explains the difference in step time between A and B, as text, a table, Markdown or a chart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cnnbench.base.charts import Axis, DistributionRow, RowChart, legend_text
from cnnbench.base.document import (
    Content,
    Paragraph,
    Row,
    Table,
    make_table,
    numeric_cell,
)
from cnnbench.base.document.console import sections_to_text
from cnnbench.base.document.markdown import table_to_markdown_lines
from cnnbench.base.text import (
    count_text,
    escape_markdown,
    format_interval,
    item_count,
    markdown_code,
    milliseconds,
    percent,
)
from cnnbench.judge.explain.causes import find_causes, significant_causes
from cnnbench.judge.explain.facts import fact_changes, measured_quantity_changes
from cnnbench.judge.explain.sides import CERTAIN, ComparedProfiles
from cnnbench.records.profiles import Cause, ExplainedRow, Explanation, StepProfile

_ALSO = 0.1  # The answer names a second cause if it explains this share of the difference.
_MOST_NAMED = 2  # The answer names at most this many causes.


def explain(
    base: Sequence[StepProfile], new: Sequence[StepProfile], labels: tuple[str, str] = ("A", "B")
) -> Explanation:
    """Explains the difference in step time between the profiled processes of side A (`base`) and of
    side B (`new`), at least one each.
    """
    sides = ComparedProfiles(base, new)
    significant: tuple[Cause, ...] = ()
    # If A or B has a single process, a difference may be specific to this process.
    if min(len(base), len(new)) > 1:
        sides, significant = significant_causes(sides)
    work = () if significant else find_causes(sides.comparing_work_only())
    timed = sides.timed
    document = Explanation(
        answer="",
        base_label=labels[0],
        new_label=labels[1],
        base=timed.means_by_side[0],
        new=timed.means_by_side[1],
        spread=2 * timed.standard_error(),
        chance=max(
            CERTAIN * timed.standard_error(sides.relative_process_deviation), timed.chance_limit
        ),
        profiled_base=sides.step.means_by_side[0],
        profiled_new=sides.step.means_by_side[1],
        rows=(),
        causes=significant or work,
        by_work=bool(work),
        facts=(
            *fact_changes(base, new),
            *measured_quantity_changes(base, new),
            *(primitive.fact for primitive in sides.primitives),
        ),
        base_processes=len(base),
        new_processes=len(new),
        steps=max(len(profile.step_seconds) for profile in (*base, *new)),
    )
    rows = [
        document.make_row(
            *part,
            base=times.means_by_side[0],
            new=times.means_by_side[1],
            spread=2 * times.standard_error(),
        )
        for part, times in sides.means.items()
    ]
    rows.sort(key=lambda row: (-abs(row.difference), row.layer, row.kind, row.direction))
    return replace(document, answer=_answer_sentences(document), rows=tuple(rows))


def does_step_time_differ(explanation: Explanation) -> bool:
    """Whether the step times of A and B differ significantly."""
    limit = explanation.chance
    if explanation.causes and not explanation.by_work:
        limit = explanation.spread
    return abs(explanation.difference) > limit


def _answer_sentences(explanation: Explanation) -> str:
    """Returns the answer of an explanation: a sentence about the step time and, if only the work
    differs significantly, a second sentence about the work.
    """
    step = f"a step takes {_more_or_less_text(explanation.difference)}"
    if explanation.causes and not explanation.by_work:
        return _answer_of_causes(explanation)
    if min(explanation.base_processes, explanation.new_processes) < 2:
        answer = (
            f"Not distinguishable from one process to the next: {step}, and one process of A or B "
            "is no evidence of a cause. Profile two or more of each, as --rounds=3 does."
        )
    elif does_step_time_differ(explanation):
        answer = f"A{step[1:]}, spread over rows, none of which is significant."
    elif explanation.chance >= explanation.base:
        answer = f"Inconclusive: {step}, and more than a whole step can be chance."
    else:
        answer = (
            f"No significant difference: {step} ({_from_to_text(explanation)}), and up to "
            f"{_ms_text(explanation.chance)} can be chance."
        )
    if explanation.by_work:
        work = [
            f"{cause.text} in {cause.place} ({_more_or_less_text(cause.difference)}, +/- "
            f"{_ms_text(cause.spread)})"
            for cause in explanation.causes[:_MOST_NAMED]
        ]
        answer += f" The work certainly differs: {'; '.join(work)}."
    return answer


def _answer_of_causes(explanation: Explanation) -> str:
    """Returns the answer of an explanation with significant causes: the difference in step time,
    its largest causes, and how much of the difference no cause explains.
    """
    difference, step = (
        explanation.difference,
        f"a step takes {_more_or_less_text(explanation.difference)}",
    )
    least = _ALSO * max(abs(explanation.causes[0].difference), abs(difference))
    others = [cause for cause in explanation.causes[1:] if abs(cause.difference) >= least]
    named = [explanation.causes[0], *others[: _MOST_NAMED - 1]]
    if not does_step_time_differ(explanation):
        text = "; ".join(_cause_answer_text(cause, with_spread=True) for cause in named)
        step = f"{_more_or_less_text(difference)}, +/- {_ms_text(explanation.spread)}"
        return f"No significant difference in step time ({step}), but a step has {text}."
    like = [
        _cause_answer_text(cause, with_spread=False)
        for cause in named
        if cause.difference * difference > 0
    ]
    opposite = [
        _cause_answer_text(cause, with_spread=True)
        for cause in named
        if cause.difference * difference <= 0
    ]
    if abs(explanation.unexplained) >= least:
        is_like = explanation.unexplained * difference > 0
        size = (
            _difference_size_text(explanation.unexplained)
            if is_like
            else _more_or_less_text(explanation.unexplained)
        )
        (like if is_like else opposite).append(f"{size} that no cause explains")
    against = f"; although it has {'; '.join(opposite)}" if opposite else ""
    return f"A{step[1:]}: {'; '.join(like)}{against}."


def _cause_answer_text(cause: Cause, *, with_spread: bool) -> str:
    """Returns the text about a cause in the answer: "9.8 ms in conv1, forward (14.1 to 23.9 ms):
    ...".
    """
    size = _difference_size_text(cause.difference)
    if with_spread:
        size = f"{_more_or_less_text(cause.difference)} (+/- {_ms_text(cause.spread)})"
    return f"{size} in {cause.place} ({_from_to_text(cause)}): {cause.text}"


def _from_to_text(compared: Cause | ExplainedRow | Explanation) -> str:
    return f"{format_interval(compared.base, compared.new, in_ms)} ms"


def _difference_size_text(difference: float) -> str:
    return _ms_text(abs(difference)) + (" less" if difference < 0 else "")


def _more_or_less_text(difference: float) -> str:
    return f"{_ms_text(abs(difference))} {'less' if difference < 0 else 'more'}"


def _ms_text(seconds: float) -> str:
    return f"{in_ms(seconds)} ms"


SHOWN = 10
"""Default number of rows in a table."""

_INDENT = 6
_MOST_FACTS = 12
_SMALLEST = 1e-6  # Shorter times, in seconds, are shown as 0.


def explanation_rows(explanation: Explanation, max_rows: int = SHOWN) -> list[ExplainedRow]:
    """Returns the rows of the table of an explanation: the largest `max_rows` rows (0 means all),
    the sum of all other rows, the time that was not profiled, and the whole step.

    The rows that contribute to the difference of the step are first. The spread is NaN in the rows
    for the sum and for the time that was not profiled.
    """

    shown = explanation.rows[:max_rows] if max_rows else explanation.rows
    lines = sorted(shown, key=lambda row: row.difference * explanation.difference <= 0)
    if rest := explanation.rows[len(shown) :]:
        name = count_text(item_count(explanation.rows) - len(shown), "other row", "other rows")
        base, new = (sum(getattr(row, side) for row in rest) for side in ("base", "new"))
        shares = [row.share for row in rest if row.share is not None]
        share = sum(shares) if shares else None
        lines.append(replace(explanation.make_row(name, base=base, new=new), share=share))
    lines.append(explanation.not_profiled)
    lines.append(
        explanation.make_row(
            "step", base=explanation.base, new=explanation.new, spread=explanation.spread
        )
    )
    return lines


def rows_table(explanation: Explanation, max_rows: int = SHOWN, **layout: Any) -> Table | None:
    """Returns a table of the rows of an explanation. `layout` contains arguments of
    `cnnbench.base.document.make_table`.
    """
    return make_table(map(_row_cells, explanation_rows(explanation, max_rows)), **layout)


def terminal_text(explanation: Explanation, max_rows: int = SHOWN) -> str:
    """Returns an explanation as text for a terminal: the answer, causes with evidence, rows, and
    other differences.
    """
    causes, *others = terminal_sections(explanation, max_rows)
    return sections_to_text([[explanation.answer, *causes], *others])


def terminal_sections(explanation: Explanation, max_rows: int = SHOWN) -> list[list[Content]]:
    """Returns the contents of an explanation for a terminal, without the answer: causes, rows,
    remarks.
    """
    causes: list[Content] = []
    for cause in explanation.causes:
        causes.append(Paragraph(f"- {cause_text(cause)}", hanging=_INDENT))
        causes += (Paragraph(evidence, indent=_INDENT) for evidence in cause.evidence_not_in_text)
    causes += (Paragraph(f"- {text}", hanging=_INDENT) for text in _unexplained_text(explanation))
    facts = [Paragraph(fact, indent=_INDENT) for fact in _fact_texts(explanation)]
    rows = rows_table(explanation, max_rows, spare=("share", "+/-, ms"))
    return [
        causes,
        [rows],
        [measurement_sentence(explanation), "Also different:" if facts else None, *facts],
    ]


def to_markdown(explanation: Explanation, max_rows: int = SHOWN) -> str:
    """Returns an explanation as Markdown for a pull request. Names from records are formatted as
    code.
    """
    lines = [
        "### cnnbench: why",
        "",
        escape_markdown(explanation.answer),
        "",
        *markdown_body(explanation, max_rows),
    ]
    return "\n".join(lines) + "\n"


def markdown_body(explanation: Explanation, max_rows: int = SHOWN) -> list[str]:
    """Returns the lines of an explanation in Markdown, without the heading and the answer."""
    causes = markdown_causes(explanation)
    return [*causes, *([""] if causes else []), *markdown_details(explanation, max_rows)]


def markdown_causes(explanation: Explanation) -> list[str]:
    """Returns the lines about the causes in Markdown, if the step times and the causes differ
    significantly. `markdown_details` contains the other causes.
    """
    if explanation.by_work or not does_step_time_differ(explanation):
        return []
    certain = [cause for cause in explanation.causes if abs(cause.difference) > cause.spread]
    return [
        *map(_cause_in_markdown, certain),
        *(f"- {text}" for text in _unexplained_text(explanation)),
    ]


def markdown_details(explanation: Explanation, max_rows: int = SHOWN) -> list[str]:
    """Returns a folded section in Markdown: the answer and the causes that are not significant, the
    rows, and other differences.
    """
    told = markdown_causes(explanation)
    causes = [line for line in map(_cause_in_markdown, explanation.causes) if line not in told]
    if causes and not told:
        causes = [escape_markdown(explanation.answer), "", *causes]
    rows = rows_table(explanation, max_rows)
    return [
        *("<details><summary>Where: mean milliseconds of a step</summary>", ""),
        *(causes and [*causes, ""]),
        *(table_to_markdown_lines(rows, markdown_code) if rows else ()),
        *("", measurement_sentence(explanation), ""),
        *(f"- also different: {markdown_code(text)}" for text in _fact_texts(explanation)),
        *("", "</details>"),
    ]


def _cause_in_markdown(cause: Cause) -> str:
    return f"- {markdown_code('; '.join((cause_text(cause), *cause.evidence_not_in_text)))}"


def differences_chart(explanation: Explanation, max_rows: int = SHOWN) -> RowChart:
    """Returns a chart of the differences between A and B in the largest rows, with twice their
    standard errors.
    """
    rows = []
    of = f"the {max_rows} largest of" if 0 < max_rows < len(explanation.rows) else "all"
    for line in explanation_rows(explanation, max_rows):
        difference, spread = line.difference, line.spread
        known, tone = not math.isnan(spread), "bad" if difference > 0 else "good"
        rows.append(
            DistributionRow(
                label=", ".join(filter(None, (line.layer, line.kind, line.direction))),
                values=((1e3 * difference, _from_to_text(line)),),
                low=1e3 * (difference - spread) if known else None,
                high=1e3 * (difference + spread) if known else None,
                text=f"{signed_ms(difference)} ms",
                tone=tone if known and abs(difference) > spread else "",
            )
        )
    return RowChart(
        title=f"Step time of B minus A: {of} {item_count(explanation.rows)} differences",
        x=Axis(label="difference (ms)"),
        rows=tuple(rows),
        limit=(0.0, "no difference"),
        note=legend_text(rows, dot="the difference", band="twice its standard error"),
    )


def _unexplained_text(explanation: Explanation) -> Iterator[str]:
    """Yields a text with the milliseconds of the difference that remain unexplained, if there are
    significant causes.
    """
    if explanation.causes and not explanation.by_work:
        yield f"{signed_ms(explanation.unexplained)} ms that no cause explains"


def cause_text(cause: Cause) -> str:
    """Returns text for a cause in one line, with its times in A and B: "+9.8 ms in conv1 (14.1 to
    23.9 ms, +/- 0.5): ...".
    """
    times = f"{_from_to_text(cause)}, +/- {in_ms(cause.spread)}"
    return f"{signed_ms(cause.difference)} ms in {cause.place} ({times}): {cause.text}"


def measurement_sentence(explanation: Explanation) -> str:
    """Returns a sentence with the numbers of processes and steps that were measured."""
    a, b = explanation.base_processes, explanation.new_processes
    processes = f"{a} and {b}" if a != b else f"{a} + {b}"
    steps = count_text(explanation.steps, "profiled step", "profiled steps")
    return (
        f"{processes} processes of {steps}, means "
        "after rare disturbances are removed, as in cnnbench compare; a profiled step takes "
        f"{_ms_text(explanation.profiled_base)} of A and {_ms_text(explanation.profiled_new)} of B."
    )


def _row_cells(line: ExplainedRow) -> Row:
    return {
        "layer": line.layer,
        "kind": line.kind,
        "direction": line.direction,
        "A, ms": numeric_cell(line.base, in_ms),
        "B, ms": numeric_cell(line.new, in_ms),
        "difference, ms": numeric_cell(line.difference, signed_ms),
        "+/-, ms": numeric_cell(None if math.isnan(line.spread) else line.spread, in_ms),
        "share": numeric_cell(line.share, partial(percent, digits=0)),
    }


def _fact_texts(explanation: Explanation) -> Iterator[str]:
    facts = [f"{fact.fact} is {fact.base} in A and {fact.new} in B" for fact in explanation.facts]
    yield from facts[:_MOST_FACTS]
    if len(facts) > _MOST_FACTS:
        yield f"and {item_count(explanation.facts) - _MOST_FACTS} more (see the JSON output)"


def in_ms(seconds: float) -> str:
    """Converts seconds to text in milliseconds. Times below a microsecond become 0."""
    return milliseconds(0 * seconds if abs(seconds) < _SMALLEST else seconds)


def signed_ms(seconds: float) -> str:
    """Converts a difference in seconds to text in milliseconds, with its sign."""
    return ("+" if seconds > 0 else "") + in_ms(seconds)
