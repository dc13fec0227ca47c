"""Records of runs as measurements: what there is to know of them besides their flags."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from cnnbench.metrics.measurement import environment_facts
from cnnbench.records.run import RunRecord

UNRESOLVED = (
    "device",
    "data_format",
    "num_intra_threads",
    "num_inter_threads",
    "datasets_num_private_threads",
)
"""Flags that a record holds as given, not as they turned out, if the run failed early."""


@lru_cache(maxsize=1)
def defaults() -> Mapping[str, Any]:
    """Defaults of all flags: what a record of a version without a flag stands for."""
    from cnnbench.flags import FLAGS
    from cnnbench.records.codec import encode

    return {spec.name: encode(spec.default) for spec in FLAGS}


def resolved(record: RunRecord) -> bool:
    """Whether the run got so far that its flags are as they turned out."""
    return record.placement is not None


def facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Facts that are no flags."""
    yield from environment_facts(record.environment)
    if record.model is not None:
        yield "model_parameters", str(record.model.parameters)
        yield "model_trainable_parameters", str(record.model.trainable_parameters)
        yield "model_forward_flops", str(record.model.forward_flops_per_image)
        yield "model_training_flops", str(record.model.training_flops_per_image)
    if record.batch is not None:
        yield "global_batch", str(record.batch.global_)
    if record.placement is not None:
        yield "num_workers", str(record.placement.num_workers)
        yield "all_reduce", ",".join(record.placement.all_reduce) or "none"


def label(flags: Mapping[str, Any]) -> list[str]:
    """A configuration in a few words."""
    parts = [str(flags.get("model"))]
    if flags.get("data_name") not in (None, "imagenet"):
        parts.append(str(flags["data_name"]))
    parts.append(f"batch {flags.get('batch_size')}")
    parts.append(f"{flags.get('num_gpus')} {flags.get('device')}")
    if flags.get("variable_update") not in (None, "parameter_server") or flags.get("num_gpus") != 1:
        parts.append(str(flags.get("variable_update")))
    if flags.get("precision") != "fp32":
        parts.append(str(flags.get("precision")))
    return parts + [name for name in ("eval", "forward_only") if flags.get(name)]


def astray(records: Sequence[RunRecord]) -> int:
    """How many lost their way; speed is worth little then, and runs may go on regardless."""
    return sum(not all(map(math.isfinite, record.losses)) for record in records)


def pair(record: RunRecord) -> tuple[int, int] | None:
    """The seed of the experiment that a run is of, and the number of its pair there."""
    seed, number = ((record.ab or {}).get(name) for name in ("seed", "pair"))
    return (seed, number) if isinstance(seed, int) and isinstance(number, int) else None
