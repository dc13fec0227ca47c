"""Tables of plain text, for terminals, files and pipes alike, and the order of names in them."""

from __future__ import annotations

import re
from collections.abc import Sequence

GAP = "  "
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Lines with columns of equal width, two spaces apart, without trailing spaces.

    Args:
      rows: cells, the header among them; all of one length.
      left: numbers of the columns that are aligned to the left, negative ones counted from the
        end; all others, as numbers are, to the right.
    """
    if not rows:
        return []
    columns = len(rows[0])
    to_left = {index % columns for index in left}
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        GAP.join(
            cell.ljust(width) if index in to_left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def natural_key(name: str) -> list[tuple[int, float, str]]:
    """A sort key for names: resnet20 before resnet110, and numbers before letters."""
    return [
        (0, float(part), "") if index % 2 else (1, 0.0, part)
        for index, part in enumerate(_NUMBER.split(name))
    ]
