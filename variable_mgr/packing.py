"""How gradients are packed, sent and unpacked around their reduction, without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cnnbench.variable_mgr.all_reduce.spec import AllReduceSpec, single

MOST_PACKS = 500
"""Largest number of packs. A reduction runs for each, and thousands take minutes to start."""

_Packing = TypeVar("_Packing", bound="Packing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Settings of the stages that transform gradients before and after their reduction.

    Fields have the names of the flags, and are keys in records of reductions. If you add a field,
    declare it with ``field(default=..., metadata={"optional": True})``, because earlier records
    lack it.

    Attributes:
      gradient_repacking: number of flat packs into which all gradients are joined, at most 500;
        0 for no packing.
      agg_small_grads_max_bytes: largest gradient, in bytes, that is joined with others; 0 for none.
      agg_small_grads_max_group: largest number of small gradients that are joined into one.
      gradient_bucket_bytes: largest size of a bucket of joined gradients, in bytes; 0 for none.
      compact_dtype: "float16" or "bfloat16" to send 16-bit gradients; None sends float32.
      allreduce_merge_scope: number of consecutive tensors that share a name scope.
      variable_consistency: "strong", or "relaxed" to apply gradients one step late.
    """

    gradient_repacking: int = 0
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = 10
    compact_dtype: str | None = None
    allreduce_merge_scope: int = 1
    variable_consistency: str = "strong"
    gradient_bucket_bytes: int = dataclasses.field(default=0, metadata={"optional": True})

    @classmethod
    def from_flags(cls: type[_Packing], flags: Mapping[str, Any], **changes: Any) -> _Packing:
        """Creates a packing from values of flags, by name.

        Flags that are not settings of a packing are ignored. Missing flags get their defaults.
        """
        values = {**flags, **changes}
        names = (field.name for field in dataclasses.fields(cls))
        return cls(**{name: values[name] for name in names if name in values})

    @property
    def applies_gradients_late(self) -> bool:
        """Whether each step applies the gradients of the previous step."""
        return self.variable_consistency == "relaxed"

    def __str__(self) -> str:
        parts = []
        if self.agg_small_grads_max_bytes:
            parts.append(f"small{self.agg_small_grads_max_bytes}x{self.agg_small_grads_max_group}")
        if self.gradient_bucket_bytes:
            parts.append(f"buckets{self.gradient_bucket_bytes}")
        if self.gradient_repacking:
            parts.append(f"packs{self.gradient_repacking}")
        if self.compact_dtype:
            parts.append(self.compact_dtype)
        if self.allreduce_merge_scope > 1:
            parts.append(f"scope{self.allreduce_merge_scope}")
        if self.applies_gradients_late:
            parts.append("relaxed")
        return "+".join(parts) or "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationSpec(Packing):
    """How gradients are aggregated: the all-reduce, and the packing before and after it.

    Attributes:
      network_topology: "dgx1" or "gcp_v100", the machine whose links hierarchical copies use.
      sparse_to_dense: whether sparse gradients are made dense before they are sent.
      group_size: devices in a group of two-level algorithms; 0 for all devices of a process.
      shared_cards: whether several devices are parts of one GPU.
    """

    all_reduce: AllReduceSpec = single("copy")
    network_topology: str = "dgx1"
    sparse_to_dense: bool = False
    group_size: int = 0
    share_memory: bool = True
    communication_hint: str = "auto"
    shared_cards: bool = False


def buffer_sizes(elements: int, buffers: int, line: int) -> list[int]:
    """Divides `elements` equally among buffers; returns the number of elements in each buffer.

    The numbers are multiples of `line`. The last buffer gets the remaining elements.
    """
    share = elements // buffers
    if share >= line:
        share -= share % line
    return [share] * (buffers - 1) + [elements - share * (buffers - 1)]


def group_into_buckets(tensors: Sequence[tuple[str, int]], max_bytes: int) -> list[list[int]]:
    """Groups tensors into buckets for joining; returns the indices of the tensors in each bucket.

    Buckets are filled beginning with the last tensor. `tensors` are pairs of dtype and bytes. A
    bucket contains tensors of one dtype with up to `max_bytes` bytes in total, or a single larger
    tensor.
    """
    buckets: list[list[int]] = []
    filled = 0
    for index, (dtype, size) in reversed(list(enumerate(tensors))):
        filled += size
        if not buckets or filled > max_bytes or dtype != tensors[buckets[0][0]][0]:
            buckets.insert(0, [])
            filled = size
        buckets[0].insert(0, index)
    return buckets


def group_small_tensors(small: Iterable[bool], max_group_size: int) -> list[list[int]]:
    """Groups up to `max_group_size` consecutive small tensors for joining.

    Returns the indices of the tensors in each group.
    """
    groups: list[list[int]] = []
    growing = False
    for index, is_small in enumerate(small):
        if is_small and growing and len(groups[-1]) < max_group_size:
            groups[-1].append(index)
        else:
            groups.append([index])
        growing = is_small
    return groups
