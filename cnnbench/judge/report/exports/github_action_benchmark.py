"""Custom JSON of the action benchmark-action/github-action-benchmark (v1, as of 1.22).

Source: https://github.com/benchmark-action/github-action-benchmark, README and ``src/extract.ts``:
a list of ``name``, ``unit``, ``value`` and optional ``range`` and ``extra``, which charts show
unchanged. A file has one commit and one direction (``tool: customBiggerIsBetter`` or
``customSmallerIsBetter``), that of the first metric; metrics of the other direction are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from cnnbench.base.text.numbers import count
from cnnbench.judge.report.exports import Export
from cnnbench.judge.report.exports.figures import Figure, newest


def render(figures: Sequence[Figure]) -> Export:
    """The newest subject: an entry per configuration, machine and metric."""
    wanted, left_out = newest(figures)
    bigger = not wanted or wanted[0].metric.higher_is_better
    fitting = [figure for figure in wanted if figure.metric.higher_is_better is bigger]
    others = dict.fromkeys(one.metric.name for one in wanted if one not in fitting)
    remarks = [left_out] if left_out else []
    if others:
        remarks.append(
            f"a file is of one direction, here {'bigger' if bigger else 'smaller'} is better; "
            f"{', '.join(others)} left out (--metrics={','.join(others)} writes them)"
        )
    text = json.dumps([_entry(one) for one in fitting], indent=1, allow_nan=False)
    return Export(f"{text}\n", "; ".join(remarks))


def _entry(figure: Figure) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": f"{figure.title}: {figure.metric.name}",
        "unit": figure.metric.unit,
        "value": figure.value,
    }
    interval = figure.sample.interval
    if interval is not None:
        low, high = (figure.metric.value_text(end, unit=False) for end in interval)
        entry["range"] = f"95 % interval {low} to {high} {figure.metric.unit_text}"
    return {**entry, "extra": "\n".join(_lines(figure))}


def _lines(figure: Figure) -> list[str]:
    lines = [f"{name}: {text}" for name, text in {**figure.subject(), **figure.labels}.items()]
    lines.append(f"median of {count(len(figure.sample.values), 'process', 'processes')}")
    judgement = figure.judgement
    if judgement is not None and judgement.change is not None:
        change = figure.metric.change_text(judgement.change)
        lines.append(f"change from base: {change}, {judgement.verdict.word(figure.metric)}")
    return lines
