"""Parts of a plan whose fields are flags of the same names."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

P = TypeVar("P", bound="PlanPart")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanPart:
    """Base class of frozen parts."""

    @classmethod
    def of(cls: type[P], flags: object, **derived: Any) -> P:
        """The part with `derived` fields; the others are the flags of their names in `flags`."""
        names = (field.name for field in dataclasses.fields(cls) if field.name not in derived)
        return cls(**{name: getattr(flags, name) for name in names}, **derived)
