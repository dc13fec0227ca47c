"""Values of flags other than their defaults."""

from __future__ import annotations

from typing import Any

from cnnbench.flags.declare import FlagSpec


def other(spec: FlagSpec) -> Any:
    """A value of a flag that differs from its default and fits its type."""
    if spec.kind.name == "boolean":
        return not spec.default
    if type(spec.default) in (int, float) or spec.kind.name in ("integer", "number"):
        return spec.default + 1 if spec.default else spec.above or 1
    if spec.kind.name in ("integers", "numbers"):
        return (1,)
    return next((one for one in spec.choices if one != spec.default), "a:1")
