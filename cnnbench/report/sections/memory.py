"""How much memory each configuration needs."""

from __future__ import annotations

from cnnbench.report.charts import LOWER, Axis
from cnnbench.report.document import (
    NONE,
    Block,
    Cell,
    Charts,
    Column,
    Section,
    Text,
    number,
    table,
    words,
)
from cnnbench.report.material import Material
from cnnbench.report.samples import Configured
from cnnbench.report.sections.family_charts import family_charts

_MIB = 2**20


def section(material: Material) -> Section | None:
    """Peak memory by configuration."""
    known = [one for one in material.configured if one.memory.values]
    if not known:
        return None
    axis = Axis(label="peak memory", format="bytes", zero=True, better=LOWER)
    charts = family_charts("peak memory", axis, known, lambda one: one.memory)
    columns = (
        Column("configuration"),
        Column("peak memory, MiB", number=True),
        Column("range, MiB", number=True),
        Column("of"),
        Column("processes", number=True),
    )
    blocks: tuple[Block, ...] = (
        Text(
            text="The most memory in use at any time: of one device on GPUs, what TensorFlow "
            "reserves beforehand left out; of the whole process on a CPU. Medians over processes."
        ),
        Charts(charts=charts),
        table(columns, [_row(one) for one in known]),
    )
    return Section(key="memory", title="Memory", blocks=blocks)


def _row(one: Configured) -> tuple[Cell, ...]:
    sample = one.memory
    low, high = sample.range or (0.0, 0.0)
    middle = sample.median or 0.0
    ends = f"{low / _MIB:,.1f} to {high / _MIB:,.1f}" if high > low else NONE
    return (
        words(one.name),
        number(middle / _MIB, f"{middle / _MIB:,.1f}"),
        number((high - low) / _MIB, ends),
        words("one device" if one.device == "gpu" else "the process"),
        number(len(sample.values), str(len(sample.values))),
    )
