"""Table of the dimensions of a search, and of the situations that they apply to.

Dimensions of one group are combined with each other. Groups are searched one after the other, each
with the best flags of those before (docs/tune.md has the reasons).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from cnnbench.campaigns.processes.commands import Resolved
from cnnbench.flags.declare import named, specs_of
from cnnbench.flags.groups.runtime import RuntimeParams
from cnnbench.flags.groups.variable_update import BUCKET_BYTES
from cnnbench.flags.params import FLAGS
from cnnbench.flags.roles import RunPart
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

COMPUTING = frozenset(named(specs_of(RuntimeParams), RunPart.TUNABLE))
"""Flags that choose how operations compute: their kernels, the order of additions, and, where XLA
compiles them, their random numbers.
"""

TUNABLE = frozenset({*CHANGES, *named(FLAGS, RunPart.TUNABLE)})
"""Flags that may vary: those that do not change the work, and those of `CHANGES`."""


Dimension: TypeAlias = tuple[Sequence[Settings], Callable[[Mode], bool]]
"""Flags that vary together, besides their given values; the modes of --variable_update for it."""


def _each(name: str, *values: object) -> list[Settings]:
    return [{name: str(value)} for value in values]


def _of_all(mode: Mode) -> bool:
    return True


def _all_reduces(mode: Mode) -> bool:
    return mode.reduction is Reduction.ALL_REDUCE


def dimensions(
    given: Resolved, workers: int, *, on_gpu: bool, cpus: int
) -> dict[str, list[Dimension]]:
    """The dimensions that suit the given flags, by group, in the order of the search."""
    config, batch = given.config, given.batch_size
    towers = workers * int(config["num_gpus"])
    reduces = towers > 1 and not config["forward_only"]
    precisions = ("bf16", "fp16") if on_gpu else ("bf16",)
    sizes = (size for size in (2 * batch, 4 * batch, batch // 2) if size)
    computing = [
        _each("precision", *precisions),
        _each("data_format", "NHWC", "NCHW") if on_gpu else [],
        [*_each("xla_compile", "true"), *_each("xla", "true")],
        _each("batch_size", *sizes),
    ]
    if on_gpu:
        threads = [_each("gpu_thread_mode", "global", "gpu_shared")]
    else:
        # One, a core's share for each tower, half and all of the CPUs.
        pools = sorted({1, max(1, cpus // towers), max(1, cpus // 2), cpus})
        threads = [_each("num_intra_threads", *pools), _each("num_inter_threads", *pools)]
    readers = sorted({max(1, cpus // 2), cpus, 2 * cpus})
    reading = [
        _each("datasets_num_private_threads", *readers),
        _each("datasets_prefetch_buffer_size", 2, 4),
    ]
    return {
        "computing": [(values, _of_all) for values in computing],
        "aggregation": _aggregation(workers, on_gpu) if reduces else [],
        "threads": [(values, _of_all) for values in threads],
        "input": [(values, _of_all) for values in reading if config["data_dir"] is not None],
    }


def _aggregation(workers: int, on_gpu: bool) -> list[Dimension]:
    modes = [registry.find(name) for name in registry.names()]
    alike = [mode for mode in modes if mode.in_sync and not mode.apart and not mode.one_tower]
    of_gpus = ("nccl", "xring", "hierarchical_copy")
    names = (*(of_gpus if on_gpu else ("pscpu", "xring")), "rechd", "tree")
    algorithms = _each("all_reduce_spec", *names)
    ring = ("ring",) if on_gpu else ()
    packings = [
        *_each("gradient_repacking", 8),
        *_each("gradient_bucket_bytes", BUCKET_BYTES),
    ]
    return [
        # Modes in which all towers train the same, with the flags that they need.
        ([{"variable_update": mode.name, **mode.needs} for mode in alike], _of_all),
        (
            algorithms,
            lambda mode: _all_reduces(mode) and not mode.algorithm and not mode.needs,
        ),
        (
            # In one process it would repeat what the modes above do.
            algorithms if workers > 1 else [],
            lambda mode: _all_reduces(mode) and "all_reduce_spec" in mode.needs,
        ),
        (
            _each("cross_device_ops", *ring, "reduction_to_one_device", "hierarchical_copy"),
            lambda mode: mode.mirrors,
        ),
        (packings, _all_reduces),
        (
            _each("local_parameter_device", "cpu"),
            lambda mode: mode.reduction is Reduction.AT_VARIABLE,
        ),
        # Gradients, and values, of the step before.
        (_each("variable_consistency", "relaxed"), _all_reduces),
        (_each("staged_vars", "true"), lambda mode: mode.staged),
        (_each("gradient_reduction", "sum"), _of_all),
    ]


def choices(group: Sequence[Dimension], allowed: Collection[str], mode: str) -> list[Settings]:
    """All combinations of a group; the first one sets nothing.

    `allowed` are words of --allow, `mode` is the value of --variable_update where the combination
    sets none.
    """
    refused = {name for name, word in CHANGES.items() if word not in allowed}
    found: list[Settings] = [{}]
    for values, suits in group:
        # A mode that needs such a flag stays: `Space.make` drops it with the reason.
        kept = [value for value in values if not value.keys() <= refused]
        found = [
            {**settings, **value}
            for settings in found
            for value in ({}, *kept)
            if not value or suits(registry.find(settings.get("variable_update", mode)))
        ]
    return found
