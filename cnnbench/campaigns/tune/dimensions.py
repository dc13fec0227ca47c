"""Table of the dimensions of a search, and of the situations that they apply to.

Dimensions of one group are combined with each other. Groups are searched one after the other, each
with the best flags of those before (docs/tune.md has the reasons).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cnnbench.flags.declare import specs_of
from cnnbench.flags.groups.data import DataParams
from cnnbench.flags.groups.runtime import RuntimeParams
from cnnbench.flags.groups.strategies import StrategyParams
from cnnbench.flags.groups.variable_update import BUCKET_BYTES, VariableUpdateParams
from cnnbench.variable_mgr import registry
from cnnbench.variable_mgr.modes import Mode, Reduction

Settings: TypeAlias = Mapping[str, str]
"""Texts of flags by name."""

CHANGES: Mapping[str, str] = {
    "precision": "precision",
    "use_fp16": "precision",
    "fp16_vars": "precision",
    "compact_gradient_transfer": "precision",
    "batch_size": "batch_size",
    "variable_consistency": "consistency",
    "staged_vars": "consistency",
    "gradient_reduction": "gradient_reduction",
}
"""Flags that change what is trained, with the word of --allow that lets them vary."""

ALLOWABLE = tuple(dict.fromkeys(CHANGES.values()))

_OTHER_WORK = frozenset(
    {
        *("device", "num_gpus", "peak_flops"),
        *("variable_mgr_plugin", "bn_stats", "iters_per_step", "ps_strategy", "variable_caching"),
    }
)
COMPUTING = frozenset(spec.name for spec in specs_of(RuntimeParams)) - _OTHER_WORK
"""Flags that choose how operations compute: their kernels, the order of additions, and, where XLA
compiles them, their random numbers.
"""

_READING = ("datasets_", "multi_device_iterator_max_buffer_size")
_OTHER_IMAGES = ("datasets_repeat_cached_sample", "datasets_sloppy_parallel_interleave")

TUNABLE = frozenset(
    {
        *CHANGES,
        *COMPUTING,
        *(
            spec.name
            for group in (VariableUpdateParams, StrategyParams)
            for spec in specs_of(group)
            if spec.name not in _OTHER_WORK
        ),
        *(
            spec.name
            for spec in specs_of(DataParams)
            if spec.name.startswith(_READING) and spec.name not in _OTHER_IMAGES
        ),
    }
)
"""Flags that may vary: those that do not change the work, and those of `CHANGES`."""


@dataclass(frozen=True, kw_only=True)
class SearchSituation:
    """Facts that decide which dimensions apply; devices of all workers, images per device."""

    towers: int
    on_gpu: bool
    trains: bool = True
    from_files: bool = False
    cpus: int = 1
    batch_size: int = 1
    workers: int = 1


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """Flags that vary together.

    Attributes:
      values: of the flags, besides their given values.
      when: whether the situation has it.
      mode: the modes of --variable_update it is for.
      allow: word of --allow that it needs, or "".
    """

    name: str
    values: Callable[[SearchSituation], Sequence[Settings]]
    when: Callable[[SearchSituation], bool] = lambda situation: True
    mode: Callable[[Mode], bool] = lambda mode: True
    allow: str = ""


def _reduces(situation: SearchSituation) -> bool:
    return situation.trains and situation.towers > 1


def _all_reduces(mode: Mode) -> bool:
    return mode.reduction is Reduction.ALL_REDUCE


def _each(name: str, *values: object) -> list[Settings]:
    return [{name: str(value)} for value in values]


def _modes(situation: SearchSituation) -> list[Settings]:
    """Modes of which all towers train the same, with the flags that they need."""
    found = (registry.find(name) for name in registry.names())
    fitting = [mode for mode in found if mode.in_sync and not mode.apart and not mode.one_tower]
    return [{"variable_update": mode.name, **mode.needs} for mode in fitting]


def _algorithms(situation: SearchSituation) -> list[Settings]:
    names = ("nccl", "xring", "hierarchical_copy") if situation.on_gpu else ("pscpu", "xring")
    return _each("all_reduce_spec", *names, "rechd", "tree")


def _cross_device(situation: SearchSituation) -> list[Settings]:
    names = ("reduction_to_one_device", "hierarchical_copy")
    return _each("cross_device_ops", *(("ring", *names) if situation.on_gpu else names))


def _batches(situation: SearchSituation) -> list[Settings]:
    sizes = (2 * situation.batch_size, 4 * situation.batch_size, situation.batch_size // 2)
    return _each("batch_size", *(size for size in sizes if size))


def _pools(situation: SearchSituation) -> list[int]:
    """Sizes of thread pools: one, a core's share for each tower, half and all of the CPUs."""
    cpus = situation.cpus
    return sorted({1, max(1, cpus // situation.towers), max(1, cpus // 2), cpus})


DIMENSIONS: Mapping[str, tuple[Dimension, ...]] = {
    "computing": (
        Dimension(
            name="precision",
            values=lambda s: _each("precision", *(("bf16", "fp16") if s.on_gpu else ("bf16",))),
            allow="precision",
        ),
        Dimension(
            name="layout",
            values=lambda s: _each("data_format", "NHWC", "NCHW"),
            when=lambda s: s.on_gpu,
        ),
        Dimension(
            name="compiler", values=lambda s: [*_each("xla_compile", "true"), *_each("xla", "true")]
        ),
        Dimension(name="batch", values=_batches, allow="batch_size"),
    ),
    "aggregation": (
        Dimension(name="mode", values=_modes, when=_reduces),
        Dimension(
            name="all-reduce",
            values=_algorithms,
            when=_reduces,
            mode=lambda mode: _all_reduces(mode) and not mode.algorithm and not mode.needs,
        ),
        Dimension(
            # In one process it would repeat what the modes above do.
            name="all-reduce between workers",
            values=_algorithms,
            when=lambda s: _reduces(s) and s.workers > 1,
            mode=lambda mode: _all_reduces(mode) and "all_reduce_spec" in mode.needs,
        ),
        Dimension(
            name="cross-device",
            values=_cross_device,
            when=_reduces,
            mode=lambda mode: mode.mirrors,
        ),
        Dimension(
            name="packing",
            values=lambda s: [
                *_each("gradient_repacking", 8),
                *_each("gradient_bucket_bytes", BUCKET_BYTES),
            ],
            when=_reduces,
            mode=_all_reduces,
        ),
        Dimension(
            name="place",
            values=lambda s: _each("local_parameter_device", "cpu"),
            when=_reduces,
            mode=lambda mode: mode.reduction is Reduction.AT_VARIABLE,
        ),
        Dimension(
            name="gradients of the step before",
            values=lambda s: _each("variable_consistency", "relaxed"),
            when=_reduces,
            mode=_all_reduces,
            allow="consistency",
        ),
        Dimension(
            name="values of the step before",
            values=lambda s: _each("staged_vars", "true"),
            when=_reduces,
            mode=lambda mode: mode.staged,
            allow="consistency",
        ),
        Dimension(
            name="sum",
            values=lambda s: _each("gradient_reduction", "sum"),
            when=_reduces,
            allow="gradient_reduction",
        ),
    ),
    "threads": (
        Dimension(
            name="within operations",
            values=lambda s: _each("num_intra_threads", *_pools(s)),
            when=lambda s: not s.on_gpu,
        ),
        Dimension(
            name="across operations",
            values=lambda s: _each("num_inter_threads", *_pools(s)),
            when=lambda s: not s.on_gpu,
        ),
        Dimension(
            name="GPU's threads",
            values=lambda s: _each("gpu_thread_mode", "global", "gpu_shared"),
            when=lambda s: s.on_gpu,
        ),
    ),
    "input": (
        Dimension(
            name="threads",
            values=lambda s: _each(
                "datasets_num_private_threads", *sorted({max(1, s.cpus // 2), s.cpus, 2 * s.cpus})
            ),
            when=lambda s: s.from_files,
        ),
        Dimension(
            name="batches ready",
            values=lambda s: _each("datasets_prefetch_buffer_size", 2, 4),
            when=lambda s: s.from_files,
        ),
    ),
}
"""The dimensions by group, in the order of the search."""


def choices(
    group: Sequence[Dimension],
    situation: SearchSituation,
    allowed: frozenset[str],
    mode: str,
) -> Iterator[Settings]:
    """All combinations of a group of `DIMENSIONS`; the first one sets nothing.

    `mode` is the value of --variable_update where the combination sets none.
    """
    found: list[Settings] = [{}]
    for dimension in group:
        if not dimension.when(situation) or dimension.allow not in ("", *allowed):
            continue
        values = dimension.values(situation)
        found = [
            {**settings, **value}
            for settings in found
            for value in ({}, *values)
            if not value or dimension.mode(registry.find(settings.get("variable_update", mode)))
        ]
    yield from found
