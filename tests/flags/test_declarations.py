"""Default, limits and use of every flag of runs, of all-reduces and of each command.

Tests cnnbench/flags/groups/*.py, cnnbench/flags/declare.py, cnnbench/flags/kinds.py
and cnnbench/cli/commands/*.py.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from golden import golden

from cnnbench.cli.overview import COMMANDS
from cnnbench.flags import FLAGS
from cnnbench.flags.declare import FlagSpec, RunPart

_ELSEWHERE = {"name", "kind", "help", "parser", "fault", "known", "default"}
"""Fields that have no text, or that other tests show."""

_USUAL = {
    field.name: field.default for field in fields(FlagSpec) if field.name not in _ELSEWHERE
} | {"optional": False}


def written(value: Any) -> str:
    if isinstance(value, RunPart):
        return "|".join(part.name or "" for part in RunPart if part and part in value)
    return str(value.name) if isinstance(value, Enum) else repr(value)


def declaration(spec: FlagSpec) -> str:
    """Name, kind and default of a flag, and what differs from the defaults of `FlagSpec`."""
    facts = [f"{spec.name}: {spec.kind.name}", f"default {spec.default!r}"]
    for name, usual in _USUAL.items():
        value = getattr(spec, name)
        if name == "choices":
            # Plug-ins may add choices that are checked late.
            value = () if spec.checked_late else tuple(value)
        if value != usual:
            facts.append(f"{name} {written(value)}")
    return ", ".join(facts)


def check(name: str, lines: list[str]) -> None:
    path = Path(__file__).parent / "golden" / "declarations" / f"{name}.txt"
    golden(path, "\n".join((*lines, "")))


def test_flags_of_runs() -> None:
    check("run", [declaration(spec) for spec in FLAGS])


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("run", "docs")])
def test_flags_of_commands(command: str) -> None:
    _, sections, *_ = import_module(f"cnnbench.cli.commands.{command}").HELP
    lines = []
    for title, specs in sections:
        lines += [f"== {title}", *(declaration(spec) for spec in specs)]
    check(command, lines)
