"""A comparison as text: for a terminal, a pull request, a program or a CI system."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from cnnbench.judge.compare.result import Comparison

FORMATS: dict[str, str] = {
    "table": "cnnbench.judge.report.renderers.terminal",
    "markdown": "cnnbench.judge.report.renderers.markdown",
    "json": "cnnbench.judge.report.renderers.json",
    "junit": "cnnbench.judge.report.renderers.junit",
    "github": "cnnbench.judge.report.renderers.github",
}
"""Formats by name; a module with ``render(comparison) -> str`` each."""


def render(comparison: Comparison, format: str) -> str:
    """The comparison in one of `FORMATS`, without colours; raises a KeyError for another format."""
    return cast("str", import_module(FORMATS[format]).render(comparison))
