"""Measured cases: tensors of --sizes, and algorithms with packing.

    sizes = item ("," item)*
    item  = (size | range) ["*" count]
    range = size ":" size ":" ("x" factor | "+" size)
    size  = integer ["K" | "M" | "G" | "T"]             powers of 1024, in bytes

`1K:256M:x4` is 1K, 4K, 16K ... up to 256M, `64K:256K:+64K` is four sizes, and `4K*1000`
is a thousand tensors of 4 KiB each.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cnnbench.base.text.numbers import parse_bytes
from cnnbench.errors import FlagError
from cnnbench.variable_mgr.aggregation.spec import AggregationSpec, Packing
from cnnbench.variable_mgr.all_reduce import AllReduceSpec, single
from cnnbench.variable_mgr.sizes import DTYPE_BYTES

_MOST_SIZES = 1000


@dataclass(frozen=True)
class Workload:
    """Tensors on each device, named by their size ("65536", "4096*1000") or their model."""

    name: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def elements(self) -> int:
        """Elements of all tensors of one device."""
        return sum(math.prod(shape) for shape in self.shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionCase:
    """An algorithm with packing, or a peer."""

    spec: AllReduceSpec | None = None
    peer: str | None = None
    packing: Packing = field(default_factory=Packing)

    def __str__(self) -> str:
        return self.peer or str(self.spec)

    def aggregation(self) -> AggregationSpec:
        """The stages around the algorithm, for `cnnbench.variable_mgr`."""
        return AggregationSpec(
            all_reduce=self.spec or single("copy"), **dataclasses.asdict(self.packing)
        )


def parse_sizes(text: str, dtype: str) -> tuple[Workload, ...]:
    """The workloads of --sizes (see the module's grammar), in order, without duplicates."""
    workloads: dict[Workload, None] = {}
    try:
        for item in map(str.strip, text.split(",")):
            head, star, tail = item.partition("*")
            count = _count(item, tail) if star else 1
            for size in _range(head):
                workloads[_workload(item, size, count, dtype)] = None
            if len(workloads) > _MOST_SIZES:
                raise ValueError(f"asks for more than {_MOST_SIZES} sizes")
    except ValueError as error:
        raise FlagError("sizes", text, str(error)) from error
    return tuple(workloads)


def _range(item: str) -> Sequence[int]:
    pieces = item.split(":")
    first = _size(pieces[0])
    if len(pieces) == 1:
        return [first]
    if len(pieces) != 3:
        raise ValueError(f"{item!r}: a range needs three parts, as in 1K:256M:x4")
    last, step = _size(pieces[1]), pieces[2].strip()
    if last < first:
        raise ValueError(f"{item!r}: a range must not end below its beginning")
    if step[:1] == "+":
        by = _size(step[1:])
        if (last - first) // by >= _MOST_SIZES:
            raise ValueError(f"{item!r}: is more than {_MOST_SIZES} sizes")
        return range(first, last + 1, by)
    factor = re.fullmatch(r"[xX]([0-9]{1,9})", step)
    if factor is None or int(factor.group(1)) < 2:
        raise ValueError(f"{item!r}: must end in a factor of 2 or more (x4) or a step (+64K)")
    sizes = [first]
    while sizes[-1] * int(factor.group(1)) <= last:
        sizes.append(sizes[-1] * int(factor.group(1)))
    return sizes


def _size(piece: str) -> int:
    size = parse_bytes(piece.strip())
    if not size:
        raise ValueError(
            f"{piece.strip()!r}: must be bytes, 1 or more, as in 4096, 64K or 1M; --sizes takes "
            "sizes such as 4K, 4K*1000, 1K:256M:x4 or 64K:1M:+64K"
        )
    return size


def _count(item: str, piece: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", piece.strip()) or int(piece) < 1:
        raise ValueError(f"{item!r}: * must be followed by a number of tensors, 1 to 999999")
    return int(piece)


def _workload(item: str, size: int, count: int, dtype: str) -> Workload:
    each = DTYPE_BYTES[dtype]
    if size % each:
        raise ValueError(
            f"{item!r}: {size} bytes are no whole number of {dtype} elements of {each} bytes"
        )
    name = str(size) if count == 1 else f"{size}*{count}"
    return Workload(name, ((size // each,),) * count)
