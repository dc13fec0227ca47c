"""``python -m cnnbench``."""

from __future__ import annotations

from cnnbench.cli import entry_point

if __name__ == "__main__":
    entry_point()
