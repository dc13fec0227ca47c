"""A report as one HTML file: nothing from outside, nothing that runs but our own script."""

from __future__ import annotations

from cnnbench.report.html.page import render

__all__ = ["render"]
