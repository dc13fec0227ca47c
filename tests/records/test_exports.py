"""Export formats by name, which no other kind of file has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from registries import kept

from cnnbench.base.plugins import PluginInterfaceError
from cnnbench.errors import UsageError
from cnnbench.records.exports import EXPORTS, register_export
from cnnbench.records.files import KINDS


@pytest.fixture(autouse=True)
def own_formats() -> Iterator[None]:
    with kept(EXPORTS, KINDS):
        yield


def count(metrics: Sequence[Any]) -> tuple[str, str]:
    return f"count {len(metrics)}\n", ""


def test_a_format_has_a_writer_and_a_beginning() -> None:
    assert register_export("count", rb"count \d")(count) is count
    assert EXPORTS.find("count")([1, 2]) == ("count 2\n", "")
    assert KINDS["count"](b"count 2\n")
    assert not KINDS["count"](b"two")
    EXPORTS.remove("count")
    assert "count" not in EXPORTS.keys() | KINDS.keys()


@pytest.mark.parametrize("name", ["count", "csv", "markdown"])
def test_a_name_is_taken_once(name: str) -> None:
    register_export("count", rb"count \d")(count)
    kinds = dict(KINDS)
    with pytest.raises(UsageError, match=f"export format {name} is registered already"):
        register_export(name, rb"count")(count)
    assert kinds == KINDS


def test_other_results_are_named() -> None:
    register_export("count", rb"count \d")(lambda metrics: "count")  # type: ignore[arg-type]
    with pytest.raises(PluginInterfaceError, match="must return a tuple of 2, not 'count'"):
        EXPORTS["count"]([])
    with pytest.raises(UsageError, match="an export format needs a name"):
        register_export("", rb"count")(count)
