"""The tensors that `cnnbench allreduce` reduces, and the sizes in --sizes.

The grammar of --sizes:

    sizes = item ("," item)*
    item  = (size | range) ["*" count]
    range = size ":" size ":" ("x" factor | "+" size)
    size  = integer ["K" | "M" | "G" | "T"]             powers of 1024, in bytes

`1K:256M:x4` is 1K, 4K, 16K ... up to 256M, `64K:256K:+64K` is four sizes, and `4K*1000`
is a thousand tensors of 4 KiB each.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from cnnbench.base.values import parse_bytes
from cnnbench.errors import FlagError
from cnnbench.variable_mgr.all_reduce.sizes import DTYPE_BYTES

_MOST_SIZES = 1000


class Workload(NamedTuple):
    """The tensors that each device reduces. `name` is their size ("65536"), size and number
    ("4096*1000"), or the model whose gradients they are.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def elements(self) -> int:
        """Number of elements in all tensors of one device."""
        return sum(math.prod(shape) for shape in self.shapes)


def parse_sizes(text: str, dtype: str) -> tuple[Workload, ...]:
    """Parses the value of --sizes to workloads, in order, without duplicates. The docstring of this
    module contains the grammar.
    """
    workloads: dict[Workload, None] = {}
    item_bytes = DTYPE_BYTES[dtype]
    try:
        for item in map(str.strip, text.split(",")):
            head, star, tail = item.partition("*")
            if star and (not re.fullmatch("[0-9]{1,6}", tail.strip()) or int(tail) < 1):
                reason = "* must be followed by a number of tensors, 1 to 999999"
                raise ValueError(f"{item!r}: {reason}")
            count = int(tail) if star else 1
            for size in _expand_range(head):
                if size % item_bytes:
                    reason = f"are not a multiple of the {item_bytes} bytes of a {dtype}"
                    raise ValueError(f"{item!r}: {size} bytes {reason}")
                name = str(size) if count == 1 else f"{size}*{count}"
                workloads[Workload(name, ((size // item_bytes,),) * count)] = None
            if len(workloads) > _MOST_SIZES:
                raise ValueError(f"has more than {_MOST_SIZES} sizes")
    except ValueError as error:
        raise FlagError("sizes", text, str(error)) from error
    return tuple(workloads)


def _expand_range(item: str) -> Iterable[int]:
    pieces = item.split(":")
    first = _parse_size(pieces[0])
    if len(pieces) == 1:
        return [first]
    if len(pieces) != 3:
        raise ValueError(f"{item!r}: a range needs three parts, as in 1K:256M:x4")
    last, step = _parse_size(pieces[1]), pieces[2].strip()
    if last < first:
        raise ValueError(f"{item!r}: a range must not end below its beginning")
    if step[:1] == "+":
        by = _parse_size(step[1:])
        if (last - first) // by >= _MOST_SIZES:
            raise ValueError(f"{item!r} has more than {_MOST_SIZES} sizes")
        return range(first, last + 1, by)
    match = re.fullmatch(r"[xX]([0-9]{1,9})", step)
    factor = int(match[1]) if match else 0
    if factor < 2:
        raise ValueError(f"{item!r}: must end in a factor of 2 or more (x4) or a step (+64K)")
    sizes = (first * factor**power for power in itertools.count())
    return itertools.takewhile(lambda size: size <= last, sizes)


def _parse_size(piece: str) -> int:
    size = parse_bytes(piece.strip())
    if not size:
        raise ValueError(
            f"{piece.strip()!r}: must be bytes, 1 or more, as in 4096, 64K or 1M; --sizes takes "
            "sizes such as 4K, 4K*1000, 1K:256M:x4 or 64K:1M:+64K"
        )
    return size
