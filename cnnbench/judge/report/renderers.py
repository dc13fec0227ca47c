"""Writes a comparison as text: for a terminal, a pull request, another program or a CI system."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TextIO

from cnnbench.base.document.console import sections_to_text
from cnnbench.base.document.markdown import sections_to_comment
from cnnbench.base.terminal import is_terminal
from cnnbench.judge.compare.result import Comparison
from cnnbench.judge.report.comparison import blocks, exit_code_meaning
from cnnbench.judge.report.github import workflow_commands
from cnnbench.judge.report.junit import junit_xml


def wants_colour(stream: TextIO) -> bool:
    """Whether the stream is a terminal whose text may be coloured: NO_COLOR is not set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def terminal_text(comparison: Comparison, colour: bool = False) -> str:
    """Returns a comparison as text for a terminal. Commands print the next command as a notice."""
    shown = [section.without_commands() for section in blocks(comparison)]
    return sections_to_text(shown, colour)


def markdown_comment(comparison: Comparison) -> str:
    """Returns a comparison as Markdown for a pull request, with folded details."""
    return sections_to_comment(blocks(comparison), f"cnnbench: {exit_code_meaning(comparison)}")


FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "table": terminal_text,
    "markdown": markdown_comment,
    "json": Comparison.to_json,
    "junit": junit_xml,
    "github": workflow_commands,
}
"""Maps the name of a format to the function that writes a comparison in this format."""


def render(comparison: Comparison, format: str) -> str:
    """Returns a comparison in one of the `FORMATS`, without colours. KeyError for others."""
    return FORMATS[format](comparison)
