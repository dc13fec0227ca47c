"""The grammar of --devices: numbers of devices to predict for."""

from __future__ import annotations

import re

from cnnbench.errors import FlagError

_FLAG = "devices"
_MOST = 1_000_000


def parse_device_counts(text: str) -> tuple[int, ...]:
    """Numbers of devices, rising, none twice.

    Args:
      text: comma-separated; each a number, or ``FIRST..LAST`` for FIRST and its doubles up
        to LAST.

    Raises:
      FlagError: names the piece that is wrong.
    """
    counts: set[int] = set()
    for piece in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:\.\.([0-9]{1,7}))?\s*", piece)
        if match is None:
            raise FlagError(
                _FLAG, text, f"{piece!r} is no number of devices; write 8,12,16 or 8..16384"
            )
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if not 1 <= first <= last <= _MOST:
            raise FlagError(
                _FLAG, text, f"{piece!r} must be from 1 to {_MOST}, and a range must rise"
            )
        while first <= last:
            counts.add(first)
            first *= 2
    return tuple(sorted(counts))
