"""Machine and software: what all runs share, and where they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cnnbench.metrics.comparable_facts import Role, fact
from cnnbench.report.document import Block, Cell, Column, Section, Table, Text, table, words
from cnnbench.report.material import Material, time_text
from cnnbench.text.sort import natural_key

_UNKNOWN = "unknown"


def section(material: Material) -> Section | None:
    """A table of the facts that are alike, and one of the others with a row per run."""
    described = _described(material)
    if not described:
        return None
    environments = [facts for _, facts in described]
    names = sorted({name for facts in environments for name in facts}, key=natural_key)
    alike = [name for name in names if _same(name, environments)]
    unlike = [name for name in names if name not in set(alike)]
    # What decides speed first, what changes by the second last.
    order = {Role.BLOCKS: 0, Role.MENTIONED: 1, Role.IGNORED: 2}
    unlike.sort(key=lambda name: order[fact(name).role])
    blocks: list[Block] = []
    if alike:
        shared = environments[0]
        title = "Alike in all runs" if len(described) > 1 else ""
        rows = tuple((words(name), words(text(shared[name]))) for name in alike)
        blocks.append(
            Table(columns=(Column("fact"), Column("value", code=True)), rows=rows, title=title)
        )
    if unlike:
        deciding = [
            name for name in unlike if fact(name).role is Role.BLOCKS and _mixed(material, name)
        ]
        if deciding:
            blocks.append(
                Text(
                    text="Runs of one configuration differ in facts that decide speed, so that "
                    f"their figures are those of a mixture: {', '.join(deciding)}.",
                    tone="unsure",
                )
            )
        blocks.append(_unlike(described, unlike))
    return Section(key="environment", title="Environment", blocks=tuple(blocks))


def text(value: Any) -> str:
    """The value of a fact."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _described(material: Material) -> list[tuple[tuple[Cell, ...], Mapping[str, Any]]]:
    """What names a run, and its facts."""
    names = {record.run_id: one.name for one in material.configured for record in one.records}
    found = [
        (
            (words(time_text(run.started_at)), words(names[run.run_id]), words(run.run_id[:8])),
            run.environment,
        )
        for run in material.runs
    ]
    found += [
        (
            (words(time_text(one.started_at)), words("all-reduce"), words(one.run_id[:8])),
            one.environment,
        )
        for one in material.allreduces
    ]
    return [(cells, facts) for cells, facts in found if facts]


def _mixed(material: Material, name: str) -> bool:
    """Whether runs of one configuration differ in a fact."""
    return any(
        not _same(name, [record.environment for record in one.good if record.environment])
        for one in material.configured
        if one.good
    )


def _same(name: str, environments: Sequence[Mapping[str, Any]]) -> bool:
    first = text(environments[0].get(name, _UNKNOWN)) if environments else ""
    return all(text(facts.get(name, _UNKNOWN)) == first for facts in environments)


def _unlike(
    described: Sequence[tuple[tuple[Cell, ...], Mapping[str, Any]]], names: Sequence[str]
) -> Table:
    columns = (
        Column("started (UTC)", steady=True),
        Column("configuration"),
        Column("run"),
        *(Column(name) for name in names),
    )
    rows = [
        (*cells, *(words(text(facts[name]) if name in facts else "") for name in names))
        for cells, facts in described
    ]
    return table(columns, rows, title="Different from run to run", folded=True)
