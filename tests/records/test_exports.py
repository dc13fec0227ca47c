"""Export formats by name, which no format of a command has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from registries import kept

from cnnbench.base.document import formats
from cnnbench.base.plugins import PluginInterfaceError
from cnnbench.errors import UsageError
from cnnbench.judge.report import renderers
from cnnbench.records.exports import EXPORTS, register_export


@pytest.fixture(autouse=True)
def own_formats() -> Iterator[None]:
    with kept(EXPORTS):
        yield


def count(metrics: Sequence[Any]) -> tuple[str, str]:
    return f"count {len(metrics)}\n", ""


def test_a_format_has_a_writer() -> None:
    assert register_export("count")(count) is count
    assert EXPORTS.find("count")([1, 2]) == ("count 2\n", "")
    EXPORTS.remove("count")
    assert "count" not in EXPORTS


def test_no_format_of_a_command_is_a_name() -> None:
    own = (*renderers.FORMATS, *formats.FORMATS, "csv")
    for name in own:
        with pytest.raises(UsageError, match=f"export format {name} is registered already"):
            register_export(name)(count)


def test_a_name_is_taken_once() -> None:
    register_export("count")(count)
    with pytest.raises(UsageError, match="export format count is registered already"):
        register_export("count")(count)


def test_other_results_are_named() -> None:
    register_export("count")(lambda metrics: "count")  # type: ignore[arg-type]
    with pytest.raises(PluginInterfaceError, match="must return a tuple of 2, not 'count'"):
        EXPORTS["count"]([])
    with pytest.raises(UsageError, match="an export format needs a name"):
        register_export("")(count)
