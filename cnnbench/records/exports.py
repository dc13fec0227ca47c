"""Registry of export formats: formats of other programs in which commands write metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from cnnbench.base import interfaces, plugins
from cnnbench.base.registry import Registry

Exported: TypeAlias = tuple[str, str]
"""A document in some format, and a sentence about values that the format cannot contain, or ""."""

E = TypeVar("E", bound=Callable[[Sequence[Any]], Exported])


EXPORTS: Registry[str, Callable[[Sequence[Any]], Exported]] = Registry(
    "export format",
    "cnnbench.records.exports.register_export(name)",
    flag="format",
    group="cnnbench.exports",
)
"""Functions that write metrics (`cnnbench.judge.report.exports.ExportedMetric`), by name of the
format. `cnnbench.judge.report.exports` registers the formats of cnnbench itself.
"""

_OWN = ("table", "csv", "markdown", "html", "json", "junit", "github")
"""Formats in which commands write their results themselves."""


def register_export(name: str) -> Callable[[E], E]:
    """Decorator that registers a function as the writer of an export format.

    `name` is the value of ``--format``. UsageError if another format has the name.
    """

    def register(export: E) -> E:
        plugins.check_name("an export format", name)
        if name in _OWN:
            raise EXPORTS.taken_error(name)
        checked = interfaces.with_checked_results(export, Exported, ("metrics",))
        EXPORTS.add(name, checked)
        return export

    return register
