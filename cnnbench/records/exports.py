"""Registry of export formats: formats of other programs in which commands write metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from cnnbench.base import interfaces, plugins
from cnnbench.base.registry import Registry
from cnnbench.records.files import KINDS, register_file_kind

Exported: TypeAlias = tuple[str, str]
"""A document in some format, and a sentence about values that the format cannot contain, or ""."""

E = TypeVar("E", bound=Callable[[Sequence[Any]], Exported])


class _Exports(Registry[str, Callable[[Sequence[Any]], Exported]]):
    def remove(self, name: str) -> None:
        super().remove(name)
        KINDS.pop(name, None)


EXPORTS = _Exports(
    "export format",
    "cnnbench.records.exports.register_export(name, beginning)",
    flag="format",
    group="cnnbench.exports",
)
"""Functions that write metrics (`cnnbench.judge.report.exports.ExportedMetric`), by name of the
format. `cnnbench.judge.report.exports` registers the formats of cnnbench itself.
"""


def register_export(name: str, beginning: bytes) -> Callable[[E], E]:
    """Decorator that registers a function as the writer of an export format.

    Args:
      name: value of ``--format``.
      beginning: regular expression that matches the beginning of files in this format, which the
        flag ``-o`` may replace.

    Raises:
      UsageError: another format has the name.
    """

    def register(export: E) -> E:
        plugins.check_name("an export format", name)
        if name in KINDS:
            raise EXPORTS.taken_error(name)
        checked = interfaces.with_checked_results(export, Exported, ("metrics",))
        register_file_kind(name, beginning)
        EXPORTS.add(name, checked)
        return export

    return register
