"""Verdicts on runs whose work differs, such as a wider network or another batch size.

Such a change can make training many times slower with equal flags. Whether it was intended is for
the user to say (--allow_changed_work); the answer names what changed, without a change of speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cnnbench.base.stats.descriptive import median
from cnnbench.base.text.numbers import first_few, integer, number, percent
from cnnbench.judge.compare.comparability import Difference, Group
from cnnbench.judge.metrics.comparable_facts import MODEL_SIZE, WORK
from cnnbench.judge.metrics.registry import SPEEDS, Metric, throughput
from cnnbench.records.run import RunRecord

_FLOPS = ("model_training_flops", "model_forward_flops")

FACTS_NAMED = 3
"""Number of facts that a reason names."""


def of(base: Group, new: Group, blocking: Sequence[Difference]) -> list[Difference]:
    """The facts by which the work differs, among facts that differ and may not.

    Empty if a flag differs too, which is another experiment, or if runs of a side differ.
    """
    work = [one for one in blocking if one.fact in WORK]
    flags = {*base.configuration.flags, *new.configuration.flags}
    if any(one.fact in flags for one in blocking if one not in work):
        return []
    return work if all(len(one.base) == len(one.new) == 1 for one in work) else []


def answer(base: Group, new: Group, metric: Metric, blocking: Sequence[Difference]) -> str:
    """The change of work, in complete sentences; `blocking` are facts that differ and may not."""
    work = {one.fact: (one.base[0], one.new[0]) for one in blocking if one.fact in WORK}
    judged = "Speed" if metric in SPEEDS else metric.name.capitalize()
    forward_only = bool(base.configuration.flags.get("forward_only"))
    sentences = [_difference(work, forward_only), f"{judged} not judged"]
    rates = [_flops_per_sec(side) for side in (base, new)]
    known = [number(rate / 1e9) for rate in rates if rate]
    if len(known) == len(rates):
        sentences.append(f"Both sides: {_arrow(known)} GFLOP/s")
    others = [str(one) for one in blocking if one.fact not in work]
    if others:
        sentences.append(f"Also different: {first_few(others, FACTS_NAMED)}")
    return "".join(f"{one}. " for one in sentences).rstrip()


def _difference(work: Mapping[str, tuple[str, str]], forward_only: bool) -> str:
    """What changed: "Different network: 10 → 40 parameters, +300.0 % FLOPs per image"."""
    network = list(_network(work, forward_only))
    batch = _batch(work)
    names = [name for name, parts in (("network", network), ("batch", batch)) if parts]
    return f"Different {' and '.join(names)}: {', '.join((*network, *batch))}"


def _network(work: Mapping[str, tuple[str, str]], forward_only: bool) -> Iterable[str]:
    if "model_parameters" in work:
        yield f"{_arrow(work['model_parameters'])} parameters"
    elif "model_trainable_parameters" in work:
        yield f"{_arrow(work['model_trainable_parameters'])} trainable parameters"
    flops = [work[name] for name in (_FLOPS[::-1] if forward_only else _FLOPS) if name in work]
    if flops:
        yield f"{_change(flops[0])} FLOPs per image"
    elif set(work) & set(MODEL_SIZE):
        yield "the same FLOPs per image"


def _batch(work: Mapping[str, tuple[str, str]]) -> list[str]:
    """Images per step; where these are equal, the flags that differ."""
    if "global_batch" in work:
        return [f"{_arrow(work['global_batch'])} images per step"]
    return [f"{name} {_arrow(both)}" for name, both in work.items() if name not in MODEL_SIZE]


def _change(both: tuple[str, str]) -> str:
    """A change in per cent, or both values where the percentage rounds to 0."""
    before, after = map(int, both)
    text = percent(after / before - 1, signed=True) if before else ""
    return text if any(digit in "123456789" for digit in text) else _arrow(both)


def _arrow(both: Sequence[str]) -> str:
    before, after = (integer(int(text)) if text.isdecimal() else text for text in both)
    return f"{before} → {after}"


def _flops_per_sec(group: Group) -> float | None:
    found = [
        speed * flops
        for record in group.good
        if isinstance(record, RunRecord)
        and (speed := throughput(record)) is not None
        and (flops := record.flops_per_image()) is not None
    ]
    return median(found) if found else None
