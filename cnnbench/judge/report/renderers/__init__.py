"""A comparison as text: for a terminal, a pull request, a program or a CI system."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cnnbench.judge.compare.result import Comparison
from cnnbench.judge.report.renderers import github, junit, markdown, terminal

FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "table": terminal.render,
    "markdown": markdown.render,
    "json": Comparison.to_json,
    "junit": junit.render,
    "github": github.render,
}
"""Functions by name of the format."""


def render(comparison: Comparison, format: str) -> str:
    """The comparison in one of `FORMATS`, without colours; raises a KeyError for another format."""
    return FORMATS[format](comparison)
