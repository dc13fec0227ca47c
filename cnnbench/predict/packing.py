"""The tensors that travel: gradients as the stages before the all-reduce pack them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cnnbench.predict.tensor import Tensor

_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_DEFAULT_GROUP = 10
# As variable_mgr/aggregation/flat_buffers.py cuts packs.
_LINE_BYTES = 64


@dataclass(frozen=True)
class Packing:
    """How gradients are packed, by the names of the flags.

    Attributes:
      gradient_repacking: flat packs that all are joined into, 0 for none.
      agg_small_grads_max_bytes: neighbours of up to so many bytes are joined, 0 for none.
      agg_small_grads_max_group: most gradients joined into one.
      compact_dtype: 16-bit type in which they are sent, None for their own.
    """

    gradient_repacking: int = 0
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = _DEFAULT_GROUP
    compact_dtype: str | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Packing:
        """From the flags or from a measured point; other keys are ignored."""
        return cls(
            int(fields.get("gradient_repacking") or 0),
            int(fields.get("agg_small_grads_max_bytes") or 0),
            int(fields.get("agg_small_grads_max_group") or _DEFAULT_GROUP),
            fields.get("compact_dtype") or None,
        )

    def __str__(self) -> str:
        parts = []
        if self.agg_small_grads_max_bytes:
            parts.append(
                f"up to {self.agg_small_grads_max_group} of at most "
                f"{self.agg_small_grads_max_bytes} bytes joined"
            )
        if self.gradient_repacking:
            parts.append(f"{self.gradient_repacking} packs")
        if self.compact_dtype:
            parts.append(f"sent as {self.compact_dtype}")
        return ", ".join(parts) or "unpacked"

    @property
    def packs(self) -> bool:
        """Whether anything is joined at all."""
        return bool(self.gradient_repacking or self.agg_small_grads_max_bytes)

    def apply(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that travel."""
        return self.narrowed(self.joined(tensors))

    def narrowed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The same tensors in the 16-bit type, if they are to be sent so."""
        if self.compact_dtype is None:
            return list(tensors)
        itemsize = item_bytes(self.compact_dtype)
        return [Tensor(t.elements, min(t.itemsize, itemsize)) for t in tensors]

    def joined(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors after joining, before they are narrowed."""
        sent = list(tensors)
        if self.agg_small_grads_max_bytes:
            sent = [_joined(group) for group in self._groups(sent)]
        if self.gradient_repacking and sent:
            sent = _repacked(_joined(sent), self.gradient_repacking)
        return sent

    def _groups(self, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
        """Neighbours that are small enough, as many as are joined; others alone."""
        run: list[Tensor] = []
        for tensor in tensors:
            small = tensor.itemsize == 4 and tensor.bytes <= self.agg_small_grads_max_bytes
            if run and (not small or len(run) == self.agg_small_grads_max_group):
                yield run
                run = []
            if small:
                run.append(tensor)
            else:
                yield [tensor]
        if run:
            yield run


def item_bytes(dtype: str) -> int:
    """Bytes of one element.

    Raises:
      KeyError: no floating-point type of that name.
    """
    return _ITEM_BYTES[dtype]


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return Tensor(sum(tensor.elements for tensor in tensors), tensors[0].itemsize)


def _repacked(whole: Tensor, packs: int) -> list[Tensor]:
    """Packs of equal size in whole lines of 64 bytes if that long, the last with what is left."""
    line = _LINE_BYTES // whole.itemsize
    share = whole.elements // packs
    if share >= line:
        share -= share % line
    sizes = [share] * (packs - 1) + [whole.elements - share * (packs - 1)]
    return [Tensor(size, whole.itemsize) for size in sizes]
