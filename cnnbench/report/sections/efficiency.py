"""What share of what the devices could compute is computed."""

from __future__ import annotations

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
    Column("MFU", number=True),
    Column("achieved, GFLOP/s", number=True),
    Column("peak, GFLOP/s", number=True),
    Column("GFLOP per image", number=True),
    Column("parameters", number=True),
    Column("joules per image", number=True),
    Column("where the peak comes from", prose=True),
)


def section(material: Material) -> Section | None:
    """Model FLOP/s utilisation against the limit."""
    known = [
        one
        for one in material.configured
        if one.sample(lambda record: record.summary().achieved_flops_per_sec).values
    ]
    if not known:
        return None
    charts = family_charts(
        "share of the peak",
        Axis(label="achieved over peak FLOP/s", format="percent", zero=True, better=HIGHER),
        known,
        lambda one: one.mfu,
        limit=1.0,
        limit_label="limit: the peak of all devices",
    )
    blocks: list[Block] = [
        Text(
            text="Model FLOP/s utilisation (MFU): two FLOPs per multiply-add of convolutions and "
            "affine layers that training an image needs (inference: the forward pass), times "
            "images/sec at the mean step, over what all devices of the job could do. Energy is "
            "that of processors and GPUs over the timed loop, where counters can be read."
        )
    ]
    if charts:
        blocks.append(Charts(charts=charts))
    else:
        blocks.append(
            Text(text="No run knows the peak of its devices; --peak_flops names it.", tone="unsure")
        )
    if any(value > 1 for one in known for value in one.mfu.values):
        blocks.append(
            Text(
                text="More than 100 %: the peak of some runs was measured while the machine had "
                "other work to do, or --peak_flops is too low.",
                tone="unsure",
            )
        )
    blocks.append(table(_COLUMNS, [_row(one) for one in known]))
    return Section(key="mfu", title="Use of the hardware", blocks=tuple(blocks))


def _row(one: Configured) -> tuple[Cell, ...]:
    def billions(value: float | None) -> Cell:
        return number(None if value is None else value / 1e9)

    model = next((record.model for record in one.good if record.model is not None), None)
    inference = bool(one.flag("forward_only"))
    flops = None
    if model is not None:
        flops = model.forward_flops_per_image if inference else model.training_flops_per_image
    sources = {record.measured.peak_flops_source or "" for record in one.good}
    mfu = one.mfu.median
    return (
        words(one.name),
        number(mfu, None if mfu is None else percent(mfu)),
        billions(one.sample(lambda record: record.summary().achieved_flops_per_sec).median),
        billions(one.sample(lambda record: record.summary().peak_flops_per_sec).median),
        billions(flops),
        number(
            None if model is None else model.parameters,
            None if model is None else f"{model.parameters:,}",
        ),
        number(one.sample(lambda record: record.summary().joules_per_image).median),
        words("; ".join(sorted(source for source in sources if source))),
    )
