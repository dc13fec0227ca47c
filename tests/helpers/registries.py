"""What tests register is gone after them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cnnbench.base import plugins


@contextlib.contextmanager
def kept(*tables: dict[Any, Any]) -> Iterator[None]:
    """Gives dictionaries their present contents again at the end of the block."""
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, contents in zip(tables, before, strict=True):
            table.clear()
            table.update(contents)


def forget_packages() -> None:
    """Removes the objects that entry points have registered."""
    for (kind, name), origin in [*plugins._origins.items()]:
        if origin.startswith("entry point "):
            plugins._kinds[kind].remove(name)
            del plugins._origins[kind, name]
