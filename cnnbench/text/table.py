"""Tables of plain text, for terminals, files and pipes alike."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


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
