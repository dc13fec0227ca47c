"""A comparison as text: for a terminal, a pull request, a program or a CI system."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from cnnbench.compare.result import Comparison

FORMATS: dict[str, str] = {
    "table": "cnnbench.report.renderers.terminal",
    "markdown": "cnnbench.report.renderers.markdown",
    "json": "cnnbench.report.renderers.json",
    "junit": "cnnbench.report.renderers.junit",
    "github": "cnnbench.report.renderers.github",
}
"""Formats by name; a module with ``render(comparison) -> str`` each."""


def render(comparison: Comparison, format: str) -> str:
    """The comparison as text, ending in a line break; without colours.

    Args:
      comparison: as `cnnbench.compare.compare_records` gives it.
      format: one of `FORMATS`.

    Raises:
      KeyError: an unknown format.
    """
    return cast("str", import_module(FORMATS[format]).render(comparison))
