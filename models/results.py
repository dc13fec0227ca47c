"""Annotations of what methods of a model return, checked where a plug-in defines the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from cnnbench.base.annotations import is_tensor, shown, sizes


def _rows(value: Any) -> int | None:
    """Examples in a tensor or a mapping of some; None if unknown."""
    first = next(iter(value.values()), None) if isinstance(value, Mapping) else value
    known = sizes(first) if is_tensor(first) else None
    return known[0] if known else None


def _per_example(value: Any, given: Sequence[Any], *, single: bool = False) -> str:
    known = sizes(value) if hasattr(value, "shape") else ()
    examples = _rows(given[-1])  # of the labels
    fits = known is None or (known and (None in (known[0], examples) or known[0] == examples))
    if not single:
        wanted = "a tensor [n, ...], a row per example"
    else:
        wanted = "a float32 tensor [n], a value per example"
        fits = fits and len(known or [0]) == 1 and getattr(value, "dtype", None) == "float32"
    return "" if fits else f"{wanted}, not {shown(value)}"


def _with_elements(value: Mapping[str, Any], given: Sequence[Any]) -> str:
    missing = [one.name for one in given[0].elements if one.name not in value]
    return f"values of all elements, not without {missing[0]}" if missing else ""


def _listed_in(attribute: str, value: Mapping[str, Any], given: Sequence[Any]) -> str:
    unprintable = [name for name in value if not name.isprintable()]
    if unprintable:
        return f"values by names of printable characters, not by {unprintable[0]!r}"
    names = getattr(given[0], attribute)
    if not names or set(value) == set(names):
        return ""
    where = f"{type(given[0]).__name__}.{attribute}"  # of a subclass, perhaps in another file
    listed, returned = ", ".join(names), ", ".join(value) or "none"
    return f"values by the names in {where}, {listed}, not by {returned}"


Elements = Annotated[Mapping[str, Any], _with_elements]
Column = Annotated[Any, partial(_per_example, single=True)]
Metrics = Annotated[Mapping[str, Column], partial(_listed_in, "metric_names")]
Rows = Mapping[str, Annotated[Any, _per_example]]
HostMetrics = Annotated[Mapping[str, float], partial(_listed_in, "host_metric_names")]
