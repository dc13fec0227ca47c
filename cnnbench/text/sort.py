"""Natural order of names: resnet20 before resnet110."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")


def natural_key(name: str) -> list[tuple[int, float, str]]:
    """A sort key by which numbers within names sort by value, and before letters."""
    return [
        (0, float(part), "") if index % 2 else (1, 0.0, part)
        for index, part in enumerate(_NUMBER.split(name))
    ]
