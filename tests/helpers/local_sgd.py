"""The plug-in of docs/examples/local_sgd_plugin.py."""

from __future__ import annotations

from pathlib import Path

PLUGIN = str(Path(__file__).parents[2] / "docs" / "examples" / "local_sgd_plugin.py")
MODE = "local_sgd"
EVERY = 2
"""Steps between two exchanges."""
