"""What was learnt, where it was evaluated, and whether losses stayed finite."""

from __future__ import annotations

import math

from cnnbench.report.charts import HIGHER, Axis
from cnnbench.report.document import (
    Block,
    Cell,
    Charts,
    Column,
    Section,
    Text,
    number,
    percent,
    table,
    words,
)
from cnnbench.report.material import Material
from cnnbench.report.samples import Configured
from cnnbench.report.sections.family_charts import family_charts

_COLUMNS = (
    Column("configuration"),
    Column("top-1", number=True),
    Column("range", number=True),
    Column("top-5", number=True),
    Column("evaluation images/sec", number=True),
    Column("first loss", number=True),
    Column("last loss", number=True),
    Column("losses"),
)


def section(material: Material) -> Section | None:
    """Accuracies of evaluations, first and last losses of training."""
    known = [one for one in material.configured if one.accuracy.values or _learns(one)]
    if not known:
        return None
    axis = Axis(label="top-1 of the last evaluation", format="percent", zero=True, better=HIGHER)
    charts = family_charts("top-1 accuracy", axis, known, lambda one: one.accuracy)
    blocks: list[Block] = [
        Text(
            text="Accuracy is that of the last evaluation, losses those of the first and last "
            "timed step; medians over processes. Losses on synthetic images only show that "
            "training works at all."
        )
    ]
    if charts:
        blocks.append(Charts(charts=charts))
    blocks.append(table(_COLUMNS, [_row(one) for one in known]))
    return Section(key="accuracy", title="Accuracy and losses", blocks=tuple(blocks))


def _learns(one: Configured) -> bool:
    # A forward pass computes no loss and records zeros.
    return not one.flag("forward_only") and any(record.losses for record in one.good)


def _row(one: Configured) -> tuple[Cell, ...]:
    ends = one.accuracy.range
    top_1, top_5 = one.accuracy.median, one.sample(_top_5).median
    broken = sum(not all(map(math.isfinite, record.losses)) for record in one.good)
    return (
        words(one.name),
        number(top_1, None if top_1 is None else percent(top_1, 2)),
        number(None)
        if ends is None or ends[0] == ends[1]
        else number(ends[1] - ends[0], f"{percent(ends[0], 2)} to {percent(ends[1], 2)}"),
        number(top_5, None if top_5 is None else percent(top_5, 2)),
        number(
            one.sample(lambda r: r.evaluations[-1].images_per_sec if r.evaluations else None).median
        ),
        number(one.sample(lambda r: r.losses[0] if r.losses else None).median),
        number(one.sample(lambda r: r.losses[-1] if r.losses else None).median),
        Cell(f"not finite in {broken} of {len(one.good)}", tone="bad") if broken else words(""),
    )


def _top_5(record: object) -> float | None:
    evaluations = getattr(record, "evaluations", ())
    return evaluations[-1].top_5 if evaluations else None
