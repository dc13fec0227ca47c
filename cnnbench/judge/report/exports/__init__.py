"""Values in formats of other programs: benchmark trackers, monitoring, experiment trackers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from cnnbench.judge.report.exports.figures import Figure

FORMATS: dict[str, str] = {
    "bencher": "cnnbench.judge.report.exports.bencher",
    "github-action-benchmark": "cnnbench.judge.report.exports.github_action_benchmark",
    "openmetrics": "cnnbench.judge.report.exports.openmetrics",
    "mlflow": "cnnbench.judge.report.exports.mlflow",
}
"""Formats by name; a module with ``render(figures) -> Export`` each."""


class Export(NamedTuple):
    """The document of a format, and a sentence on values that the format cannot hold."""

    text: str
    left_out: str = ""


def render(figures: Sequence[Figure], format: str) -> Export:
    """Some values in one of `FORMATS`; raises a KeyError for another format."""
    return cast("Export", import_module(FORMATS[format]).render(figures))
