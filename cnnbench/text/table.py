"""Tables of plain text, for terminals, files and pipes alike, and the order of names in them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from cnnbench.text.escape import spreadsheet

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


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A file with a line per row, all digits; no text in it is a formula."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(spreadsheet(cell) if isinstance(cell, str) else cell for cell in row)
    return file.getvalue()


def natural_key(name: str) -> list[tuple[int, float, str]]:
    """A sort key for names: resnet20 before resnet110, and numbers before letters."""
    return [
        (0, float(part), "") if index % 2 else (1, 0.0, part)
        for index, part in enumerate(_NUMBER.split(name))
    ]
