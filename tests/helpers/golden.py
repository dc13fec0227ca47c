"""Outputs against files that were looked at."""

from __future__ import annotations

import os
from pathlib import Path


def golden(path: Path, text: str) -> str:
    """What the file holds; UPDATE_GOLDEN=1 writes the text there first."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")
