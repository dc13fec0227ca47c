"""The section of a report about the properties of machine and software."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cnnbench.base.document import Content, Paragraph, Row, TableCell, make_table
from cnnbench.base.tables import natural_key
from cnnbench.judge.compare.facts import UNKNOWN, DifferenceEffect, fact_rule
from cnnbench.judge.metrics.measurement import fact_text, readable_fact
from cnnbench.judge.report.results import (
    MOST_LISTED,
    ReportSubject,
    shown_count_text,
    start_time_text,
)


def environment_section(results: ReportSubject) -> Iterable[Content]:
    """Yields a table of the properties of machine and software that are equal in all runs, and a
    table of all other properties with a row per run.
    """
    described = [(name, record) for name, record in results.processes if record.environment]
    environments = [record.environment for _, record in described]
    names = sorted({name for facts in environments for name in facts}, key=natural_key)
    alike = [name for name in names if _is_same(name, environments)]
    # Properties that affect speed are shown before other properties.
    unlike = [name for name in names if name not in alike]
    unlike.sort(key=lambda name: [*DifferenceEffect].index(fact_rule(name).effect))
    values = ((name, readable_fact(name, environments[0][name])) for name in alike)
    shared: Iterable[Row] = (
        {"fact": name, "value": TableCell(value, kinds="code")} for name, value in values
    )
    yield make_table(shared, title="Alike in all runs" if len(described) > 1 else "")
    yield _mixed_facts_remark(results, unlike)
    runs = []
    for configuration, record in described[-MOST_LISTED:] if unlike else ():
        row: dict[str, TableCell | str] = {
            "started (UTC)": TableCell(start_time_text(record.started_at), kinds="steady"),
            "configuration": configuration,
            "run": record.run_id[:8],
        }
        # A property of an imported record may have the name of one of the columns above.
        for name in unlike:
            row.setdefault(name, readable_fact(name, record.environment.get(name, "")))
        runs.append(row)
    which = shown_count_text(len(runs), len(described)) if runs else ""
    yield make_table(runs, title=f"Different from run to run{which}", folded=True)


def _mixed_facts_remark(results: ReportSubject, unlike: Sequence[str]) -> Paragraph | None:
    """Returns a remark with the recorded properties that affect speed and differ between runs of
    the same configuration; None if there are none.
    """
    groups = [
        [run.environment for run in group.successful if run.environment]
        for group in results.configured
    ]
    deciding = (name for name in unlike if fact_rule(name).effect is DifferenceEffect.BLOCKS)
    differing = [name for name in deciding if not all(_is_same(name, group) for group in groups)]
    message = (
        "Runs of the same configuration differ in properties that affect speed, so their medians "
        f"mix different conditions: {', '.join(differing)}."
    )
    return Paragraph(message, "unsure") if differing else None


def _is_same(name: str, environments: Sequence[Mapping[str, Any]]) -> bool:
    return len({fact_text(facts.get(name, UNKNOWN), name) for facts in environments}) <= 1
