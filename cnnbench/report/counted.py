"""Lists of names in which like ones are counted: eight GPUs by one name."""

from __future__ import annotations

from collections.abc import Iterable


def counted(names: Iterable[object]) -> str:
    """As in "8 x NVIDIA H100"; a single one stands as it is."""
    counts: dict[str, int] = {}
    for name in map(str, names):
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{times} x {name}" if times > 1 else name for name, times in counts.items())
